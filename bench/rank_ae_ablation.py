"""`python -m bench.rank_ae_ablation DATA … --out DIR`: what each component of Rank-AE contributes.

Figure 4 of the paper on any data sets: the model as it is, without attention, and with binary
cross-entropy in place of the ranking loss; and, of our own, without the direct way past the inner
layers. P@1, 3 and 5 are measured on the test split, with the times of training and testing. Runs
are stored in DIR/runs.jsonl and never repeated; `--share 2/4` takes every fourth.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import longtail
from bench.plots import draw_bars
from bench.table import markdown
from longtail.models.rank_ae.model import RankAE

VARIANTS: dict[str, dict[str, Any]] = {
    "no attention": {"attention": False},
    "no ranking loss": {"loss": "bce"},
    "no direct way": {"residual": False},
    "Rank-AE": {},
}
CUTS = (1, 3, 5)
HEADINGS = ["data", "variant", "P@1", "P@3", "P@5", "train s", "test s", "device"]


def measure(path: Path, variant: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one variant and measure it on the test split."""
    train, test = longtail.load(path)
    if test is None:
        train, test = train.split(0.2, seed=1)
    start = time.perf_counter()
    model = RankAE.from_settings({**settings, **VARIANTS[variant]}).fit(train)
    fitted = time.perf_counter()
    top = model.predict(test)
    seconds = {"train": fitted - start, "test": time.perf_counter() - fitted}
    report = longtail.evaluate(top, test.align(train.label_names))
    return {
        "data": path.name,
        "variant": variant,
        **{f"P@{k}": round(report[f"P@{k}"], 2) for k in CUTS},
        **{name: round(value, 1) for name, value in seconds.items()},
        "device": settings.get("device", "auto"),
    }


def read_runs(out: Path) -> list[dict[str, Any]]:
    """Return the runs that are done, those of all shares."""
    files = sorted(out.glob("runs*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def show(out: Path) -> None:
    """Write and print the table, and draw the figure, of what is done."""
    done = read_runs(out)
    names = list(dict.fromkeys(run["data"] for run in done))
    order = list(VARIANTS)
    done.sort(key=lambda run: (names.index(run["data"]), order.index(run["variant"])))
    keys = ["data", "variant", *(f"P@{k}" for k in CUTS), "train", "test", "device"]
    text = markdown(HEADINGS, [[str(run[key]) for key in keys] for run in done])
    (out / "ablation.md").write_text(text + "\n")
    print(text)
    panels = {
        name: {run["variant"]: [run[f"P@{k}"] for k in CUTS] for run in done if run["data"] == name}
        for name in names
    }
    draw_bars(panels, [f"P@{k}" for k in CUTS], out / "ablation.png")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the runs that are not done yet, then show all."""
    args = _arguments(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = dict(pair.split("=", 1) for pair in args.set)
    if args.device:
        settings["device"] = args.device
    place, n_shares = map(int, args.share.split("/"))
    file = args.out / ("runs.jsonl" if n_shares == 1 else f"runs-{place}.jsonl")
    known = {(run["data"], run["variant"]) for run in read_runs(args.out)}
    runs = [(path, variant) for path in args.data for variant in VARIANTS]
    for path, variant in runs[place - 1 :: n_shares]:
        if (path.name, variant) not in known:
            result = measure(path, variant, settings)
            with file.open("a") as log:
                log.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)
    if n_shares == 1:
        show(args.out)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rank_ae_ablation", description=__doc__)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device")
    parser.add_argument("--share", default="1/1", help="such as 2/4: every fourth run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
