"""Try settings of several forms of a model on held-out documents, as many of each form.

    python -m bench.trials bench/spaces/mnn.toml DATA/bibtex DATA/delicious --model mnn \
        --trials 24 --device cuda --jobs 4 --out mnn.jsonl

A space is a TOML file with a table for each form: what stays fixed, and below `try` the values to
choose from. Trial 0 takes the first value of each; the others are drawn at random, without
repetition. A form with nothing to try is an ablation: `--seeds 5` trains it five times. `model` in
a form takes another model. DATA is a folder, or `bundled`.

Every setting is trained on four fifths of the training split (seed 0) and measured on the rest, at
most 20,000 documents; `--part test` trains on all of it and measures on the test split. A run is a
line of --out and is never repeated, so an interrupted study goes on where it stopped.
"""

import argparse
import json
import statistics
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import longtail
from bench.table import markdown
from longtail.data.dataset import Dataset
from longtail.data.debian import load_debian
from longtail.errors import LongtailError
from longtail.models import get_model_class
from longtail.runtime.parallel import n_threads, set_threads

Run = dict[str, Any]
Space = dict[str, tuple[dict[str, Any], dict[str, list[Any]]]]

MOST_HELD = 20_000
PRECISION, TAIL = ("P@1", "P@3", "P@5"), ("PSP@1", "PSP@3", "PSP@5")
KEY = ("part", "documents", "form", "model", "settings", "seed")  # and the data: one run


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, make the runs that are missing, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.trials", description=__doc__)
    parser.add_argument("space", type=Path)
    parser.add_argument("data", nargs="+", help="folders of data sets, or bundled")
    parser.add_argument("--model", help="of forms that name none")
    parser.add_argument("--forms", help="only these, such as paper,ours")
    parser.add_argument("--trials", type=int, default=1, help="settings of each form")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each setting")
    parser.add_argument("--part", choices=("valid", "test"), default="valid")
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file, a line a run")
    args = parser.parse_args(arguments)
    runs = list_runs(read_space(args.space), args)
    done = read_runs(args.out)
    known = {_key(run) for run in done}
    open_runs = [run for run in runs if _key(run) not in known]
    for run in make_runs(open_runs, args.jobs):
        with args.out.open("a") as file:
            file.write(json.dumps(run) + "\n")
        print(describe(run), flush=True)
        done.append(run)
    wanted = {_key(run) for run in runs}
    print(summarize([run for run in done if _key(run) in wanted]))


def read_space(path: Path) -> Space:
    """Return for each form what is fixed, and what is tried."""
    with path.open("rb") as file:
        tables = tomllib.load(file)
    space = {}
    for form, table in tables.items():
        tried = table.pop("try", {})
        space[form] = (table, tried)
    return space


def list_runs(space: Space, args: argparse.Namespace) -> list[Run]:
    """Return the runs, trial by trial, so that forms have been tried as often at any time."""
    forms = args.forms.split(",") if args.forms else list(space)
    drawn = {form: draw_settings(*space[form], args.trials) for form in forms}
    shared = {"part": args.part, "documents": args.documents, "device": args.device}
    runs = []
    for trial, seed, data, form in product(range(args.trials), range(args.seeds), args.data, forms):
        if trial < len(drawn[form]):
            settings = dict(drawn[form][trial])
            model = settings.pop("model", args.model)
            name = {"data": str(data), "form": form, "model": model, "trial": trial, "seed": seed}
            runs.append({**name, "settings": settings, **shared})
    return runs


def draw_settings(
    fixed: dict[str, Any], tried: dict[str, list[Any]], n_trials: int
) -> list[dict[str, Any]]:
    """Return the first setting and others drawn at random, all different."""
    grid = list(product(*tried.values()))
    order = [0, *(1 + np.random.default_rng(0).permutation(len(grid) - 1)).tolist()]
    return [{**fixed, **dict(zip(tried, grid[place], strict=True))} for place in order[:n_trials]]


def read_runs(path: Path) -> list[Run]:
    """Return the runs of earlier calls."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _key(run: Run) -> str:
    return json.dumps([Path(run["data"]).name, *(run[name] for name in KEY)], sort_keys=True)


# -- one run ------------------------------------------------------------------------------------


def make_runs(runs: Sequence[Run], n_jobs: int) -> Iterable[Run]:
    """Yield every run with what was measured, in processes that share the cores."""
    each = max(1, n_threads() // n_jobs)
    with ProcessPoolExecutor(n_jobs, get_context("spawn"), set_threads, (each,)) as pool:
        for future in as_completed([pool.submit(measure, run) for run in runs]):
            yield future.result()


def measure(run: Run) -> Run:
    """Train one setting and measure it; an error is what is measured, too."""
    train, held = read_part(run["data"], run["part"], run["documents"])
    model_class = get_model_class(run["model"])
    settings = {**run["settings"], "seed": run["seed"]}
    if model_class.has_parameter("device"):
        settings["device"] = run["device"]
    begun = time.perf_counter()
    try:
        model = model_class.from_settings({key: _as_text(settings[key]) for key in settings})
        model.fit(train)
        seconds = time.perf_counter() - begun
        found = longtail.evaluate(model.predict(held), held, train=train)
    except LongtailError as error:
        return {**run, "error": str(error)}
    metrics = {name: round(found[name], 3) for name in (*PRECISION, *TAIL)}
    return {**run, **metrics, "seconds": round(seconds, 1)}


@lru_cache(maxsize=2)
def read_part(data: str, part: str, n_documents: int | None) -> tuple[Dataset, Dataset]:
    """Return the documents to train on and those to measure on."""
    train, test = load_debian() if data == "bundled" else longtail.load(data)
    if part == "test":
        if test is None:
            raise SystemExit(f"{data} has no test split")
        held = test
    else:
        train, held = train.split(min(0.2, MOST_HELD / len(train)))
    if n_documents is not None and n_documents < len(train):
        chosen = np.random.default_rng(0).permutation(len(train))[:n_documents]
        train = train.take(np.sort(chosen))
    return train, held


def _as_text(value: Any) -> str:
    """Return a value as `--set` would spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- tables ---------------------------------------------------------------------------------------


def describe(run: Run) -> str:
    """Return a line about a run."""
    where = f"{Path(run['data']).name} {run['form']} {run['trial']}/{run['seed']}"
    what = " ".join(f"{key}={value}" for key, value in run["settings"].items())
    if "error" in run:
        return f"{where}: {run['error']} ({what})"
    found = " / ".join(f"{run[name]:.1f}" for name in PRECISION)
    return f"{where}: {found} in {run['seconds']:.0f} s ({what})"


def summarize(runs: Sequence[Run]) -> str:
    """Return a table: of each form and data set the best setting, and how many were tried."""
    rows = []
    for data, form in dict.fromkeys((run["data"], run["form"]) for run in runs):
        mine = [run for run in runs if (run["data"], run["form"]) == (data, form)]
        tried: dict[str, list[Run]] = {}
        for run in mine:
            if "error" not in run:
                tried.setdefault(json.dumps(run["settings"], sort_keys=True), []).append(run)
        n_tried = len({json.dumps(run["settings"], sort_keys=True) for run in mine})
        name = [Path(data).name, form, str(n_tried)]
        if not tried:
            rows.append([*name, "", "failed", "", "", ""])
            continue
        best = max(tried.values(), key=lambda each: sum(mean(each, name) for name in PRECISION))
        what = " ".join(f"{key}={value}" for key, value in best[0]["settings"].items())
        figures = [" / ".join(spread(best, key) for key in keys) for keys in (PRECISION, TAIL)]
        seconds = f"{mean(best, 'seconds'):.0f}"
        rows.append([*name, str(len(best)), *figures, seconds, what])
    heading = ["data", "form", "tried", "seeds", "P@1 / 3 / 5", "PSP@1 / 3 / 5", "s", "best"]
    return markdown(heading, rows)


def mean(runs: Sequence[Run], name: str) -> float:
    """Return the mean of a measure."""
    return statistics.fmean(run[name] for run in runs)


def spread(runs: Sequence[Run], name: str) -> str:
    """Return the mean, and the standard deviation if there are several runs."""
    if len(runs) < 2:
        return f"{mean(runs, name):.1f}"
    return f"{mean(runs, name):.1f} ± {statistics.stdev(run[name] for run in runs):.1f}"


if __name__ == "__main__":
    main()
