"""What updates add and what they cost: new labels found, old documents labelled as before.

    python -m bench.update_study DATA/bibtex bundled --model linear,glas --hidden 0.05 --seeds 3

Some labels, drawn by the seed, are hidden: the model is trained on the training documents that
carry none of them, less a share of these (--added). The others are then added, by `update`, by
`update --train` where there is something to train, or by training anew on all documents. Measured
on held-out documents is which share of the hidden labels is among the first five; P@1 of all; and
P@1 and P@5 of old documents, which carry no hidden label, so that a hidden label given to one is
an error. "P@1 lost" is what these lose to the model before the update, with the standard error of
the mean over seeds; they are counted seed by seed. Labels on more
than 3 % of the documents (--most) are not hidden: without theirs, what is left to train on is not
like the documents to measure on, and training on all documents loses as much. A fifth of the
training split is held out (seed 0, at most 20,000 documents); the test split is not used.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.table import markdown
from bench.trials import read_part, spread
from longtail import Dataset, evaluate
from longtail.errors import ParameterError
from longtail.models import Model, get_model_class

COLUMNS = {
    "recall": "recall@5 of new labels",
    "P@1": "P@1",
    "old P@1": "P@1 of old documents",
    "old P@5": "P@5",
    "seconds": "s",
    "CPU seconds": "CPU s",
}
LOST = {"lost": "P@1 lost", "lost 5": "P@5 lost"}
BEFORE, UPDATE, TRAIN, ANEW = (
    "training without them",
    "update",
    "update --train",
    "training on all",
)
K = 5

Run = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure with every seed, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.update_study", description=__doc__)
    parser.add_argument("data", nargs="+", help="folders of data sets, or bundled")
    parser.add_argument("--model", default="dxml", help="one, or several with commas between")
    parser.add_argument("--added", type=float, default=0.0, help="share of the other documents")
    parser.add_argument("--hidden", type=float, default=0.1, help="share of the labels")
    parser.add_argument(
        "--most", type=float, default=0.03, help="share of the documents that a hidden label has"
    )
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--held", type=int, help="measure on at most so many")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--no-anew", action="store_true", help="do not train on all documents")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[MODEL.]NAME=VALUE", help="of one, or of all"
    )
    args = parser.parse_args(arguments)
    rows = []
    for data, name in product(args.data, args.model.split(",")):
        runs: dict[str, list[Run]] = {}
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for step, run in measure(data, name, seed, args).items():
                runs.setdefault(step, []).append(run)
                figures = {key: round(value, 2) for key, value in run.items()}
                print(Path(data).name, name, seed, step, figures, flush=True)
        for step, each in runs.items():
            n_old = f"{sum(run['old'] for run in each):,}"
            figures = [
                *(spread(each, key) for key in COLUMNS),
                *(mean_error(each, key) for key in LOST),
            ]
            rows.append([Path(data).name, name, step, *figures, n_old])
    names = [*COLUMNS.values(), *LOST.values(), "old documents"]
    print(markdown(["data", "model", "after", *names], rows))


def mean_error(runs: Sequence[Run], name: str) -> str:
    """Return the mean, and its standard error if there are several runs."""
    values = np.array([run[name] for run in runs])
    if len(values) < 2:
        return f"{values.mean():.2f}"
    return f"{values.mean():.2f} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


def measure(data: str, name: str, seed: int, args: argparse.Namespace) -> dict[str, Run]:
    """Return what one seed gives, step by step."""
    train, held = read_part(data, "valid", args.documents)
    # Not the first ones: sets may be sorted by what they are about.
    chosen = np.random.default_rng(0).permutation(len(held))[: args.held]
    held = held.take(np.sort(chosen))
    settings = {**choose_settings(name, args.set), "seed": seed}
    parts = hide_labels(train, args.hidden, seed, args.added, args.most)
    found = Study(get_model_class(name), settings, train, held, *parts).measure(not args.no_anew)
    before = found[BEFORE]
    for run in found.values():
        run["lost"], run["lost 5"] = (before[each] - run[each] for each in ("old P@1", "old P@5"))
    return found


def choose_settings(name: str, given: Sequence[str]) -> Run:
    """Return the settings that are for one model, or for all."""
    pairs = dict(pair.split("=", 1) for pair in given)
    of_all = {key: value for key, value in pairs.items() if "." not in key}
    mine = f"{name}."
    own = {key.removeprefix(mine): pairs[key] for key in pairs if key.startswith(mine)}
    return {**of_all, **own}


def hide_labels(
    data: Dataset, share: float, seed: int, added: float = 0.0, most: float = 1.0
) -> tuple[Dataset, Dataset, list[str]]:
    """Return the documents to begin with, those to add, and the labels hidden from the first."""
    rng = np.random.default_rng(seed)
    counts = np.bincount(data.Y.indices, minlength=data.n_labels)
    carried = np.flatnonzero((counts > 0) & (counts <= most * len(data)))
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

    def measure(self, anew: bool) -> dict[str, Run]:
        """Return what is reached before the update, after it, and after training anew."""
        make = self.model.from_settings
        model = make(self.settings)
        found = {BEFORE: self.run(lambda: model.fit(self.first))}
        files = model.to_files()
        for step, train in {UPDATE: False, TRAIN: True}.items():
            fresh = self.model.from_files(files, Path())
            with suppress(ParameterError):  # where there is nothing to train further
                found[step] = self.run(partial(fresh.partial_fit, self.more, train=train))
        if anew:
            found[ANEW] = self.run(lambda: make(self.settings).fit(self.train))
        return found

    def run(self, make: Callable[[], Model]) -> Run:
        """Return what a model reaches, and the seconds it takes to make it."""
        began, cpu = time.perf_counter(), time.process_time()
        model = make()
        took = {"seconds": time.perf_counter() - began, "CPU seconds": time.process_time() - cpu}
        return judge(model, self.held, self.hidden) | took


def judge(model: Model, held: Dataset, hidden: Sequence[str]) -> Run:
    """Return the recall of the hidden labels, and the precision of all and of old documents."""
    top = model.predict(held, k=K)
    number = {name: i for i, name in enumerate(held.label_names)}
    chosen = np.array([number[name] for name in hidden])
    place = np.array([number[name] for name in model.label_names_], np.int64)
    wanted = held.Y[:, chosen].toarray() > 0
    hits = _found(np.where(top.labels >= 0, place[top.labels], -1), chosen)
    recall = 100 * float((hits & wanted).sum() / max(1, wanted.sum()))
    is_old = ~wanted.any(axis=1) & (np.diff(held.Y.indptr) > 0)
    everywhere = evaluate(top, held.align(model.label_names_))
    rows = np.flatnonzero(is_old)
    old = evaluate(top.take(rows), held.take(rows).align(model.label_names_))
    return {
        "recall": recall,
        "P@1": everywhere["P@1"],
        "old P@1": old["P@1"],
        "old P@5": old["P@5"],
        "old": len(rows),
    }


def _found(labels: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (n, len(chosen)) whether each chosen label is among those of a row."""
    return np.stack([(labels == label).any(axis=1) for label in chosen.tolist()], axis=1)


if __name__ == "__main__":
    main()
