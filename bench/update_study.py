"""How well new labels are found after an update.

    python -m bench.update_study DATA/bibtex bundled --model linear --hidden 0.1 --seeds 5

Some labels, drawn by the seed, are hidden: the model is trained on the training documents that
carry none of them, less a share of these (--added). The others are then added, by `update`, by
`update --train` where there is something to train, or by training anew on all documents. Measured
is which share of the hidden labels of held-out documents is among the first five, P@1 of all
held-out documents, and of those without a hidden label. A fifth of the training split is held out
(seed 0, at most 20,000 documents); the test split is not used.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.table import markdown
from bench.trials import read_part, spread
from longtail import Dataset, evaluate
from longtail.errors import ParameterError
from longtail.models import Model, get_model_class

HEADINGS = ["data", "after", "recall@5 of new labels", "P@1", "P@1 of old documents", "s", "CPU s"]
RECALL, PRECISION, OLD, SECONDS, CPU = "recall", "P@1", "P@1 old", "seconds", "CPU seconds"
K = 5

Run = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure with every seed, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.update_study", description=__doc__)
    parser.add_argument("data", nargs="+", help="folders of data sets, or bundled")
    parser.add_argument("--model", default="dxml")
    parser.add_argument("--added", type=float, default=0.0, help="share of the other documents")
    parser.add_argument("--hidden", type=float, default=0.1, help="share of the labels")
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in args.set)
    model = get_model_class(args.model)
    rows = []
    for data in args.data:
        train, held = read_part(data, "valid", args.documents)
        runs: dict[str, list[Run]] = {}
        for seed in range(args.seeds):
            parts = hide_labels(train, args.hidden, seed, args.added)
            study = Study(model, {**settings, "seed": seed}, train, held, *parts)
            for step, run in study.measure().items():
                runs.setdefault(step, []).append(run)
                print(Path(data).name, seed, step, run, flush=True)
        for step, each in runs.items():
            cells = [spread(each, name) for name in (RECALL, PRECISION, OLD, SECONDS, CPU)]
            rows.append([Path(data).name, step, *cells])
    print(markdown(HEADINGS, rows))


def hide_labels(
    data: Dataset, share: float, seed: int, added: float = 0.0
) -> tuple[Dataset, Dataset, list[str]]:
    """Return the documents to begin with, those to add, and the labels hidden from the first."""
    rng = np.random.default_rng(seed)
    carried = np.unique(data.Y.indices)
    hidden = rng.choice(carried, max(1, round(share * len(carried))), replace=False)
    has_hidden = np.asarray(data.Y[:, hidden].sum(axis=1)).ravel() > 0
    is_added = has_hidden | (rng.random(len(data)) < added)
    first, more = np.flatnonzero(~is_added), np.flatnonzero(is_added)
    return data.take(first), data.take(more), [data.label_names[i] for i in hidden.tolist()]


@dataclass(frozen=True)
class Study:
    """One seed: a model, the documents to begin with, those to add, and those to measure on."""

    model: type[Model]
    settings: Run
    train: Dataset
    held: Dataset
    first: Dataset
    more: Dataset
    hidden: Sequence[str]

    def measure(self) -> dict[str, Run]:
        """Return what is reached before the update, after it, and after training anew."""
        make = self.model.from_settings
        found = {"training without them": self.run(lambda: make(self.settings).fit(self.first))}
        files = make(self.settings).fit(self.first).to_files()
        for step, train in {"update": False, "update --train": True}.items():
            fresh = self.model.from_files(files, Path())
            with suppress(ParameterError):  # where there is nothing to train further
                found[step] = self.run(partial(fresh.partial_fit, self.more, train=train))
        found["training on all"] = self.run(lambda: make(self.settings).fit(self.train))
        return found

    def run(self, make: Callable[[], Model]) -> Run:
        """Return what a model reaches, and the seconds it takes to make it."""
        began, cpu = time.perf_counter(), time.process_time()
        model = make()
        took = {SECONDS: time.perf_counter() - began, CPU: time.process_time() - cpu}
        return judge(model, self.held, self.hidden) | took


def judge(model: Model, held: Dataset, hidden: Sequence[str]) -> Run:
    """Return the recall of the hidden labels, and P@1 of all documents and of those without."""
    top = model.predict(held, k=K)
    number = {name: i for i, name in enumerate(held.label_names)}
    chosen = np.array([number[name] for name in hidden])
    place = np.array([number[name] for name in model.label_names_], np.int64)
    wanted = held.Y[:, chosen].toarray() > 0
    hits = _found(place[top.labels], chosen)
    recall = 100 * float((hits & wanted).sum() / max(1, wanted.sum()))
    old = held.take(np.flatnonzero(~wanted.any(axis=1)))
    precision = {PRECISION: held, OLD: old}
    return {RECALL: recall} | {
        name: evaluate(model.predict(part, k=K), part.align(model.label_names_))["P@1"]
        for name, part in precision.items()
    }


def _found(labels: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (n, len(chosen)) whether each chosen label is among those of a row."""
    return np.stack([(labels == label).any(axis=1) for label in chosen.tolist()], axis=1)


if __name__ == "__main__":
    main()
