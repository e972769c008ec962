"""`python -m bench.tail_study DATA …`: how well models do on documents that carry only tail labels.

    python -m bench.tail_study DATA/stackexchange DATA/yso --models linear glas mnn \
        mnn:preset=paper --seeds 3 --out tail.jsonl --plot tail.png

MNN's claim is about such documents: nothing near them in label space could be learned from. A label
is in the tail if it belongs to the rarest labels that hold the last 20 % of all training pairs, as
in `longtail data info`; `--at-most N` takes the labels with at most N training documents instead.
A test document counts as "only tail" if all its labels are in the tail, at least one of them known
from training, and as "no head" if none of its labels is among those that hold the first 50 %.

A model is trained on the training split with its defaults, but for what follows its name, such as
`mnn:preset=paper,dim=512`. A line of --out is a model with a seed on a group of documents; what is
there already is not trained again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.plots import draw_bars
from bench.table import markdown
from bench.trials import Run, mean, read_runs, spread
from longtail import Dataset, evaluate, load
from longtail.data.describe import HEAD, TAIL, TORSO, UNSEEN, assign_bands
from longtail.models import Model, get_model_class, model_names
from longtail.runtime.parallel import n_threads, set_threads
from longtail.topk import TopK

MODELS = ("linear", "glas", "dxml", "mnn", "mnn:preset=paper")
MEASURES = ("P@1", "P@3", "P@5", "recall@5")
GROUPS = ("all", "no head", "only tail")
HEADINGS = ["data", "documents", "how many", "model", "seeds", *MEASURES, "train s"]

Ids = NDArray[np.int64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train what is not in --out, print one table."""
    args = _arguments(arguments)
    set_threads(args.threads)
    runs = read_runs(args.out)
    known = {_key(run) for run in runs}
    wanted = set()
    for data in args.data:
        models = [
            {"data": data.name, "at_most": args.at_most, "model": model, "seed": seed}
            for seed, model in product(range(args.seeds), args.models)
        ]
        wanted |= {_key(model) for model in models}
        for run in study(data, [model for model in models if _key(model) not in known]):
            with args.out.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(*run.values(), flush=True)
            runs.append(run)
    runs = [run for run in runs if _key(run) in wanted]
    print(summarize(runs))
    if args.plot is not None:
        draw(runs, args.plot)


def _key(run: Run) -> tuple[str, int | None, str, int]:
    return run["data"], run["at_most"], run["model"], run["seed"]


def study(data: Path, models: Sequence[Run]) -> Iterable[Run]:
    """Train each model with its seed; yield a run for every group of test documents."""
    if not models:
        return
    classes = [read_model(model["model"]) for model in models]  # before the first one trains
    train, test = load(data)
    if test is None:
        raise SystemExit(f"{data} has no test split")
    test = test.align(train.label_names)
    groups = group_documents(train, test, models[0]["at_most"])
    for model, (model_class, settings) in zip(models, classes, strict=True):
        start = time.perf_counter()
        fitted = model_class.from_settings({**settings, "seed": str(model["seed"])}).fit(train)
        seconds = round(time.perf_counter() - start, 1)
        top = fitted.predict(test)
        for group, chosen in groups.items():
            if len(chosen):
                measures = _measure(top, test, chosen)
                yield {**model, "group": group, "n": len(chosen), **measures, "seconds": seconds}


def read_model(text: str) -> tuple[type[Model], dict[str, str]]:
    """Return the class and the settings of a model such as `mnn:preset=paper,dim=512`."""
    name, _, settings = text.partition(":")
    pairs = [pair.partition("=") for pair in settings.split(",") if pair]
    return get_model_class(name), {key: value for key, _, value in pairs}


def summarize(runs: Sequence[Run]) -> str:
    """Return a table: for each group of documents of a data set, a row a model."""
    rows = []
    for data, group, model, each in _by_group(runs):
        measures = [spread(each, measure) for measure in MEASURES]
        seconds = f"{mean(each, 'seconds'):.0f}"
        rows.append([data, group, f"{each[0]['n']:,}", model, f"{len(each)}", *measures, seconds])
    return markdown(HEADINGS, rows)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw a panel of bars for each group of documents of a data set, with standard deviations."""
    heights: dict[str, dict[str, list[float]]] = {}
    spreads: dict[str, dict[str, list[float]]] = {}
    for data, group, model, each in _by_group(runs):
        title = f"{data}: {group} ({each[0]['n']:,} documents)"
        values = [[run[measure] for run in each] for measure in MEASURES]
        heights.setdefault(title, {})[model] = [statistics.fmean(each) for each in values]
        spreads.setdefault(title, {})[model] = [
            statistics.stdev(each) if len(each) > 1 else 0.0 for each in values
        ]
    draw_bars(heights, MEASURES, path, spreads)


def _by_group(runs: Sequence[Run]) -> Iterable[tuple[str, str, str, list[Run]]]:
    """Yield the runs of each model that differ by their seeds only, set by set, group by group."""
    for data, group in product(dict.fromkeys(run["data"] for run in runs), GROUPS):
        here = [run for run in runs if (run["data"], run["group"]) == (data, group)]
        for model in dict.fromkeys(run["model"] for run in here):
            yield data, group, model, [run for run in here if run["model"] == model]


def group_documents(train: Dataset, test: Dataset, at_most: int | None = None) -> dict[str, Ids]:
    """Return the test documents of each group; a document without labels is only in "all"."""
    counts = np.zeros(test.Y.shape[1], np.int64)
    counts[: train.Y.shape[1]] = np.bincount(train.Y.indices, minlength=train.Y.shape[1])
    band = assign_bands(counts)
    if at_most is not None:
        band[(counts > 0) & (counts <= at_most)] = TAIL
        band[(counts > at_most) & (band == TAIL)] = TORSO
    n_in = {which: _count(test, band == which) for which in (HEAD, TORSO, TAIL, UNSEEN)}
    some = n_in[TAIL] > 0
    found = (
        np.arange(test.n_documents),
        np.flatnonzero((n_in[HEAD] == 0) & (some | (n_in[TORSO] > 0))),
        np.flatnonzero((n_in[HEAD] + n_in[TORSO] == 0) & some),
    )
    return dict(zip(GROUPS, found, strict=True))


def _count(data: Dataset, which: NDArray[np.bool_]) -> Ids:
    """Return how many of each document's labels are among `which`."""
    total = np.concatenate(([0], np.cumsum(which[data.Y.indices])))
    return np.asarray(total[data.Y.indptr[1:]] - total[data.Y.indptr[:-1]], np.int64)


def _measure(top: TopK, test: Dataset, chosen: Ids) -> dict[str, float]:
    metrics = evaluate(TopK(top.labels[chosen], top.scores[chosen]), test.Y[chosen])
    return {name: round(metrics[name], 3) for name in MEASURES}


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tail_study", description=__doc__)
    parser.add_argument("data", type=Path, nargs="+")
    known = [name for name in MODELS if name.partition(":")[0] in model_names()]
    parser.add_argument("--models", nargs="+", default=known, metavar="NAME[:SETTING=VALUE,…]")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each model")
    parser.add_argument("--at-most", type=int, help="training documents of a tail label")
    parser.add_argument("--threads", type=int, default=n_threads())
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file of the runs")
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file for the figure")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
