"""How well new labels are found after an update.

    python -m bench.dxml_update DATA/bibtex bundled --hidden 0.1 --seeds 5

Some labels, drawn by the seed, are hidden: the model is trained on the training documents that
carry none of them. The others are then added, by `update`, by `update --train`, or by training
anew on all documents. Measured is which share of the hidden labels of held-out documents is among
the first five, and P@1 of all held-out documents. A fifth of the training split is held out (seed
0, at most 20,000 documents); the test split is not used.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.table import markdown
from bench.trials import read_part, spread
from longtail import Dataset, evaluate
from longtail.models.dxml.model import DXML

HEADINGS = ["data", "after", "recall@5 of new labels", "P@1", "s"]
RECALL, PRECISION, SECONDS = "recall", "P@1", "seconds"
K = 5

Run = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure with every seed, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.dxml_update", description=__doc__)
    parser.add_argument("data", nargs="+", help="folders of data sets, or bundled")
    parser.add_argument("--hidden", type=float, default=0.1, help="share of the labels")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in args.set)
    rows = []
    for data in args.data:
        train, held = read_part(data, "valid", None)
        runs: dict[str, list[Run]] = {}
        for seed in range(args.seeds):
            for step, run in measure(train, held, args.hidden, {**settings, "seed": seed}).items():
                runs.setdefault(step, []).append(run)
                print(Path(data).name, seed, step, run, flush=True)
        for step, each in runs.items():
            cells = [spread(each, RECALL), spread(each, PRECISION), spread(each, SECONDS)]
            rows.append([Path(data).name, step, *cells])
    print(markdown(HEADINGS, rows))


def hide_labels(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset, list[str]]:
    """Return the documents without the hidden labels, those with some, and the hidden labels."""
    rng = np.random.default_rng(seed)
    carried = np.unique(data.Y.indices)
    hidden = rng.choice(carried, max(1, round(share * len(carried))), replace=False)
    has_hidden = np.asarray(data.Y[:, hidden].sum(axis=1)).ravel() > 0
    first, more = np.flatnonzero(~has_hidden), np.flatnonzero(has_hidden)
    return data.take(first), data.take(more), [data.label_names[i] for i in hidden.tolist()]


def measure(train: Dataset, held: Dataset, share: float, settings: Run) -> dict[str, Run]:
    """Return what is reached before the update, after it, and after training anew."""
    first, more, hidden = hide_labels(train, share, int(settings["seed"]))
    found: dict[str, Run] = {}

    def note(step: str, model: DXML, began: float) -> None:
        seconds = time.perf_counter() - began
        found[step] = {**judge(model, held, hidden), SECONDS: seconds}

    began = time.perf_counter()
    model = DXML.from_settings(settings).fit(first)
    note("training without them", model, began)
    files = model.to_files()
    for train_further, step in ((False, "update"), (True, "update --train")):
        began, again = time.perf_counter(), DXML.from_files(files, Path())
        note(step, again.partial_fit(more, train=train_further), began)
    began = time.perf_counter()
    note("training on all", DXML.from_settings(settings).fit(train), began)
    return found


def judge(model: DXML, held: Dataset, hidden: Sequence[str]) -> Run:
    """Return the recall of the hidden labels, and P@1."""
    top = model.predict(held, k=K)
    number = {name: i for i, name in enumerate(held.label_names)}
    chosen = np.array([number[name] for name in hidden])
    place = np.array([number[name] for name in model.label_names_], np.int64)
    wanted = held.Y[:, chosen].toarray() > 0
    hits = _found(place[top.labels], chosen)
    recall = 100 * float((hits & wanted).sum() / max(1, wanted.sum()))
    return {RECALL: recall, PRECISION: evaluate(top, held.align(model.label_names_))[PRECISION]}


def _found(labels: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (n, len(chosen)) whether each chosen label is among those of a row."""
    return np.stack([(labels == label).any(axis=1) for label in chosen.tolist()], axis=1)


if __name__ == "__main__":
    main()
