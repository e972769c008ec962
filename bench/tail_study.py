"""`python -m bench.tail_study DATA`: how well models do on documents that carry only tail labels.

MNN's claim is about such documents: nothing near them in label space could be learned from. A label
is in the tail if it belongs to the rarest labels that hold the last 20 % of all training pairs, as
in `longtail data info`; `--at-most N` takes the labels with at most N training documents instead.
A test document counts as "only tail" if all its labels are in the tail, at least one of them known
from training, and as "no head" if none of its labels is among those that hold the first 50 %. Every
model is trained with its defaults on the training split.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.plots import draw_bars
from bench.table import markdown
from longtail import Dataset, evaluate, load
from longtail.data.describe import HEAD, TAIL, TORSO, UNSEEN, assign_bands
from longtail.models import get_model_class, model_names
from longtail.runtime.parallel import n_threads, set_threads
from longtail.topk import TopK

MODELS = ("linear", "glas", "dxml", "rank-ae", "mnn")
MEASURES = ("P@1", "P@3", "P@5", "recall@5")
HEADINGS = ["documents", "how many", "model", *MEASURES, "train s"]

Ids = NDArray[np.int64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train every model, print one table."""
    args = _arguments(arguments)
    set_threads(args.threads)
    settings: dict[str, dict[str, str]] = {}
    for setting in args.set:
        target, value = setting.split("=", 1)
        model, name = target.split(".", 1)
        settings.setdefault(model, {})[name] = value
    rows = study(args.data, args.models.split(","), settings, args.at_most)
    print(markdown(HEADINGS, rows))
    if args.json is not None:
        args.json.write_text(json.dumps([dict(zip(HEADINGS, row, strict=True)) for row in rows]))
    if args.plot is not None:
        draw(rows, args.plot)


def study(
    data: Path,
    models: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
    at_most: int | None,
) -> list[list[str]]:
    """Return the table's rows: for each group of test documents, one a model."""
    train, test = load(data)
    if test is None:
        raise SystemExit(f"{data} has no test split")
    test = test.align(train.label_names)
    groups = group_documents(train, test, at_most)
    classes = {name: get_model_class(name) for name in models}  # before the first one trains
    rows = []
    for name, model_class in classes.items():
        start = time.perf_counter()
        model = model_class.from_settings(settings.get(name, {})).fit(train)
        seconds = f"{time.perf_counter() - start:.0f}"
        top = model.predict(test)
        for group, chosen in groups.items():
            if len(chosen):
                measures = _measure(top, test, chosen)
                rows.append([group, f"{len(chosen):,}", name, *measures, seconds])
                print(*rows[-1], flush=True)
    return sorted(rows, key=lambda row: list(groups).index(row[0]))


def draw(rows: Sequence[Sequence[str]], path: Path) -> None:
    """Draw a panel of bars for each group of documents."""
    panels: dict[str, dict[str, list[float]]] = {}
    for group, how_many, model, *measures, _ in rows:
        panel = panels.setdefault(f"{group} ({how_many} documents)", {})
        panel[model] = [float(measure) for measure in measures]
    draw_bars(panels, MEASURES, path)


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
    return {
        "all": np.arange(test.n_documents),
        "no head": np.flatnonzero((n_in[HEAD] == 0) & (some | (n_in[TORSO] > 0))),
        "only tail": np.flatnonzero((n_in[HEAD] + n_in[TORSO] == 0) & some),
    }


def _count(data: Dataset, which: NDArray[np.bool_]) -> Ids:
    """Return how many of each document's labels are among `which`."""
    total = np.concatenate(([0], np.cumsum(which[data.Y.indices])))
    return np.asarray(total[data.Y.indptr[1:]] - total[data.Y.indptr[:-1]], np.int64)


def _measure(top: TopK, test: Dataset, chosen: Ids) -> list[str]:
    metrics = evaluate(TopK(top.labels[chosen], top.scores[chosen]), test.Y[chosen])
    return [f"{metrics[name]:.1f}" for name in MEASURES]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tail_study", description=__doc__)
    parser.add_argument("data", type=Path)
    known = [name for name in MODELS if name in model_names()]
    parser.add_argument("--models", default=",".join(known))
    parser.add_argument("--at-most", type=int, help="training documents of a tail label")
    parser.add_argument("--set", action="append", default=[], metavar="MODEL.NAME=VALUE")
    parser.add_argument("--threads", type=int, default=n_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file for the figure")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
