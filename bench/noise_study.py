"""`python -m bench.noise_study DATA --out DIR`: what wrong labels do to each model.

Figure 3 of the Rank-AE paper on any data set. Labels of four fifths of the training documents are
spoiled at rates from 0 to 60 %: either removed (missing), or removed and replaced by as many labels
drawn at random (missing + invalid). The other fifth stays clean and decides which of a model's
settings counts; the test split is clean as well, and what is shown is measured there.

Every run is one line of DIR/runs.jsonl and is never repeated; `--share 2/4` takes every fourth run,
so that several processes can share the work. DIR/noise.md and DIR/noise.png hold what is done.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import longtail
from bench.plots import draw_lines
from bench.table import markdown
from longtail.data import Dataset
from longtail.models import get_model_class

Run = dict[str, Any]

NOISES = {"missing": "missing labels", "both": "missing + invalid labels"}
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# The settings of each model among which the clean fifth chooses.
MODELS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "Rank-AE": ("rank-ae", [{"epochs": 10}, {"epochs": 4}]),
    "BCE-AE": ("rank-ae", [{"loss": "bce", "epochs": 10}, {"loss": "bce", "epochs": 4}]),
    "linear": ("linear", [{}]),
    "GLaS": ("glas", [{"epochs": 5}, {"epochs": 2}]),
}
CUTS = (1, 3, 5)


def spoil(Y: sp.csr_matrix, noise: str, rate: float, seed: int = 0) -> sp.csr_matrix:
    """Remove each pair with the probability `rate`; put as many random ones there for "both"."""
    rng = np.random.default_rng(seed)
    removed = rng.random(Y.nnz) < rate
    rows = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    kept = (rows[~removed], Y.indices[~removed])
    if noise == "both":
        wrong = _draw_wrong(Y, rows[removed], rng)
        kept = (np.append(kept[0], rows[removed]), np.append(kept[1], wrong))
    spoiled = sp.csr_matrix((np.ones(len(kept[0]), np.float32), kept), shape=Y.shape)
    spoiled.sum_duplicates()
    spoiled.data.fill(1)
    return spoiled


def _draw_wrong(Y: sp.csr_matrix, rows: Any, rng: np.random.Generator) -> Any:
    """Return for each row a random label that the document never carried, if one is soon found."""
    carried = set(zip(*(ids.tolist() for ids in Y.nonzero()), strict=True))
    wrong = rng.integers(Y.shape[1], size=len(rows))
    for _ in range(20):
        pairs = zip(rows.tolist(), wrong.tolist(), strict=True)
        again = np.array([pair in carried for pair in pairs], dtype=bool)
        wrong[again] = rng.integers(Y.shape[1], size=int(again.sum()))
    return wrong


def list_runs(models: Sequence[str], noises: Sequence[str], rates: Sequence[float]) -> list[Run]:
    """Return all runs; at rate 0 all noises are the same, so one of them is enough."""
    runs = []
    for rate, noise, model in product(rates, noises, models):
        if rate or noise == noises[0]:
            for setting in MODELS[model][1]:
                runs.append({"model": model, "noise": noise, "rate": rate, "setting": setting})
    return runs


def measure(run: Run, train: Dataset, test: Dataset, device: str | None) -> Run:
    """Train on spoiled labels; measure on the clean fifth and on the test split."""
    noisy, clean = train.split(0.2)
    spoiled = spoil(noisy.Y, run["noise"], run["rate"])
    name = MODELS[run["model"]][0]
    settings = dict(run["setting"])
    if device is not None and name != "linear":
        settings["device"] = device
    start = time.perf_counter()
    model = get_model_class(name)(**settings)
    model.fit(Dataset(spoiled, noisy.label_names, X=noisy.X, texts=noisy.texts))
    seconds = time.perf_counter() - start
    found = {"seconds": round(seconds, 1)}
    for split, data in (("valid", clean), ("test", test)):
        report = longtail.evaluate(model.predict(data), data)
        found[split] = {f"P@{k}": round(report[f"P@{k}"], 2) for k in CUTS}  # type: ignore[assignment]
    return {**run, **found}


def choose(done: Sequence[Run]) -> list[Run]:
    """Keep of each model, noise and rate the setting that was best on the clean fifth."""
    best: dict[tuple[Any, ...], Run] = {}
    for run in done:
        key = (run["model"], run["noise"], run["rate"])
        if key not in best or run["valid"]["P@5"] > best[key]["valid"]["P@5"]:
            best[key] = run
    return list(best.values())


def series(
    done: Sequence[Run], model: str, noise: str, cut: int
) -> tuple[list[float], list[float]]:
    """Return the rates in percent and the precision at each of them."""
    points = {
        run["rate"]: run["test"][f"P@{cut}"]
        for run in choose(done)
        if run["model"] == model and (run["noise"] == noise or not run["rate"])
    }
    return [100 * rate for rate in sorted(points)], [points[rate] for rate in sorted(points)]


def table(done: Sequence[Run]) -> str:
    """Return one row for each noise and model: P@1 / P@3 / P@5 at each rate."""
    rates = sorted({run["rate"] for run in done})
    rows = []
    for noise, model in product(NOISES, MODELS):
        cells = []
        for rate in rates:
            found = [
                run
                for run in choose(done)
                if run["model"] == model
                and run["rate"] == rate
                and (run["noise"] == noise or not rate)
            ]
            cells.append(
                " / ".join(f"{found[0]['test'][f'P@{k}']:.1f}" for k in CUTS) if found else ""
            )
        if any(cells):
            rows.append([NOISES[noise], model, *cells])
    return markdown(["noise", "model", *(f"{100 * rate:.0f} %" for rate in rates)], rows)


def read_runs(path: Path) -> list[Run]:
    """Return the runs that are done."""
    files = sorted(path.parent.glob("runs*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def show(out: Path) -> None:
    """Write and print the table, and draw the figure, of what is done."""
    done = read_runs(out / "runs.jsonl")
    (out / "noise.md").write_text(table(done) + "\n")
    print(table(done))
    panels = {
        f"{NOISES[noise]}, P@{cut}": {
            model: series(done, model, noise, cut)
            for model in MODELS
            if series(done, model, noise, cut)[0]
        }
        for noise, cut in product(NOISES, CUTS)
    }
    draw_lines(panels, out / "noise.png", columns=3, x_label="spoiled labels, %", y_label="P, %")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the runs that are not done yet, then show all."""
    args = _arguments(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    place, n_shares = map(int, args.share.split("/"))
    file = args.out / ("runs.jsonl" if n_shares == 1 else f"runs-{place}.jsonl")
    known = [_key(run) for run in read_runs(file)]
    runs = list_runs(args.models.split(","), args.noises.split(","), args.rates)
    train, test = longtail.load(args.data)
    if test is None:
        train, test = train.split(0.2, seed=1)
    for run in runs[place - 1 :: n_shares]:
        if _key(run) in known:
            continue
        result = measure(run, train, test.align(train.label_names), args.device)
        with file.open("a") as log:
            log.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)
    if n_shares == 1:
        show(args.out)


def _key(run: Run) -> str:
    return json.dumps([run["model"], run["noise"], run["rate"], run["setting"]], sort_keys=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.noise_study", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--noises", default=",".join(NOISES))
    parser.add_argument(
        "--rates", type=lambda text: [float(rate) for rate in text.split(",")], default=RATES
    )
    parser.add_argument("--device")
    parser.add_argument("--share", default="1/1", help="such as 2/4: every fourth run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
