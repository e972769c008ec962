"""How `linear` chooses C, tested by leaving data sets out.

    python -m bench.linear_rules DATA/bibtex DATA/delicious DATA/stackexchange DATA/yso \
        --documents 55000 --also bundled
    python -m bench.linear_rules DATA/bibtex DATA/delicious --folds 10 \
        --rules 0.5,200,0.35 0.4,200,0.4

A rule is a constant C of labels, or one that rises for those with few documents; nodes above labels
keep theirs. Each is trained on
four fifths of the training split and measured on the rest; with --folds, on all parts but one and
measured on that, for each part in turn. In rotation one set is left out, the rule that is best on
the others is chosen, and measured on the one left out and on the sets of --also. What counts is the
mean of P@1, 3, 5 and PSP@1, 3, 5, in points above the first rule, C = 0.5.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

import longtail
from bench.table import markdown
from bench.trials import PRECISION, TAIL, read_part
from longtail import evaluate
from longtail.data.dataset import Dataset
from longtail.data.debian import load_debian
from longtail.models import Linear
from longtail.models.linear import choices
from longtail.text.tfidf import Tfidf

Measured = dict[str, dict[str, dict[str, float]]]  # of a data set, by a rule


class Rule(NamedTuple):
    """C = `least` for labels of `common` documents or more, rising with (common / n)^power."""

    least: float
    common: int = 1
    power: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Return the rule of the numbers least,common,power; the last two may be left out."""
        least, common, power = (*text.split(","), "1", "0")[:3]
        return cls(float(least), int(common), float(power))

    @property
    def name(self) -> str:
        """How tables call it."""
        if not self.power:
            return f"C = {self.least:g}"
        return f"C = {self.least:g}·max(1, {self.common}/n)^{self.power:g}"

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let training choose C by this rule."""
        costs = choices.RULES["steep"]._replace(least=self.least, power=self.power)
        with patch.object(choices, "COMMON", self.common), patch.dict(choices.RULES, steep=costs):
            yield


RULES = [
    *(Rule(C) for C in (0.5, 0.25, 1.0, 2.0)),
    *(Rule(0.5, common, power) for common in (50, 200) for power in (0.2, 0.35, 0.5)),
    Rule(0.5, 1000, 0.35),
    *(Rule(0.4, 200, power) for power in (0.35, 0.4)),
    *(Rule(0.35, common, power) for common, power in ((500, 0.35), (200, 0.45))),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every rule on every set, then print the rotation."""
    parser = argparse.ArgumentParser(prog="python -m bench.linear_rules", description=__doc__)
    parser.add_argument("data", nargs="+", help="folders of data sets, or bundled")
    parser.add_argument("--also", nargs="*", default=[], help="sets that nothing is chosen on")
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--folds", type=int, default=1, help="parts that are held out in turn")
    parser.add_argument("--rules", nargs="*", type=Rule.parse, default=RULES, metavar="C,N,POWER")
    args = parser.parse_args(arguments)
    names = {data: Path(data).name for data in [*args.data, *args.also]}
    found: Measured = {}
    for data, name in names.items():
        parts = read_parts(data, args.documents, args.folds)
        found[name] = average([measure_rules(*part, args.rules) for part in parts])
        print(markdown(["rule", *PRECISION, *TAIL], describe(name, found[name])), flush=True)
    also = [names[data] for data in args.also]
    print(rotate(found, [names[data] for data in args.data], also))


def read_parts(
    data: str, n_documents: int | None, n_folds: int
) -> Iterator[tuple[Dataset, Dataset]]:
    """Yield the documents to train on and those to measure on, as rows."""
    if n_folds == 1:
        yield as_rows(*read_part(data, "valid", n_documents))
        return
    whole, _ = load_debian() if data == "bundled" else longtail.load(data)
    order = np.random.default_rng(0).permutation(len(whole))[:n_documents]
    for fold in range(n_folds):
        held = np.sort(order[fold::n_folds])
        yield as_rows(whole.take(np.setdiff1d(order, held)), whole.take(held))


def as_rows(train: Dataset, held: Dataset) -> tuple[Dataset, Dataset]:
    """Return both, texts as tf-idf rows."""
    if train.X is not None:
        return train, held
    features = Tfidf()
    X = features.fit_transform(train.texts or [])
    return (
        Dataset(X=X, Y=train.Y, label_names=train.label_names),
        Dataset(X=features.transform(held.texts or []), Y=held.Y, label_names=held.label_names),
    )


def measure_rules(
    train: Dataset, held: Dataset, rules: Sequence[Rule]
) -> dict[str, dict[str, float]]:
    """Return the metrics of each rule, with one tree."""
    found = {}
    for rule in rules:
        with rule.used():
            fitted = Linear.preset("fast", C_rule="steep").fit(train)
        metrics = evaluate(fitted.predict(held), held, train=train)
        found[rule.name] = {name: metrics[name] for name in (*PRECISION, *TAIL)}
    return found


def average(parts: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the mean of each metric over the parts that were held out."""
    return {
        rule: {name: fmean(part[rule][name] for part in parts) for name in metrics}
        for rule, metrics in parts[0].items()
    }


def describe(name: str, measured: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the rows of the table of a data set."""
    return [
        [f"{name}: {rule}", *(f"{value:.2f}" for value in metrics.values())]
        for rule, metrics in measured.items()
    ]


def gain(measured: dict[str, dict[str, float]], rule: str) -> float:
    """Return by how much a rule is better than the first one, in the mean of all metrics."""
    ours, usual = measured[rule], next(iter(measured.values()))
    return sum(ours[name] - usual[name] for name in ours) / len(ours)


def rotate(found: Measured, sets: Sequence[str], also: Sequence[str]) -> str:
    """Return a table: the rule chosen without a set, and what it gains there."""
    rows = []
    for left_out in sets:
        others = [name for name in sets if name != left_out]
        chosen = max(
            found[left_out], key=lambda rule: sum(gain(found[name], rule) for name in others)
        )
        for tested in (left_out, *also):
            best = max(found[tested], key=lambda rule: gain(found[tested], rule))
            gains = [gain(found[tested], rule) for rule in (chosen, best)]
            rows.append([left_out, chosen, tested, *(f"{each:+.2f}" for each in gains), best])
    heading = ["left out", "chosen on the others", "tested on"]
    return markdown([*heading, "gain", "of the best", "which is"], rows)


if __name__ == "__main__":
    main()
