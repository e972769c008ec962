"""Paired bootstrap: confidence intervals and p-values, with the same samples for every method.

A metric over n documents is 100 · Σ reached / Σ possible. A sample draws n of the documents with
replacement and computes the metric again. The middle 95 % of the samples are the interval of a
metric, and of the difference of two methods on the same samples. The p-value of a difference is the
share of samples that lie at least as far from the difference as 0 does (two-sided). The p-values
are corrected for the number of pairs by Holm's method: the i-th smallest of m is multiplied by
m − i + 1, and none is smaller than an earlier one.

Only test documents are sampled. The interval does not show what another training set or another
seed would change.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from longtail.evaluation.metrics import PerDocument

Floats = NDArray[np.float64]

LEVEL = 0.05
FEWEST, MOST = 2_000, 10_000  # draws
CELLS = 100_000_000  # documents drawn in all samples together, about, within these bounds
BLOCK_CELLS = 8_000_000  # documents drawn at a time


@dataclass(frozen=True)
class MetricInterval:
    """A metric of one method, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The difference of two methods in one metric, one minus other.

    Attributes:
        one: the number of the first method.
        other: the number of the second.
        value: the difference, in points.
        low: where its 95 % interval begins.
        high: where its 95 % interval ends.
        p: the p-value.
        p_corrected: the p-value, corrected for the number of pairs.
    """

    one: int
    other: int
    value: float
    low: float
    high: float
    p: float
    p_corrected: float

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant at LEVEL."""
        return self.p_corrected < LEVEL


@dataclass(frozen=True)
class Draws:
    """The draws of one metric: for each method its value, and one value a draw."""

    values: Floats  # (methods,)
    drawn: Floats  # (draws, methods)

    def spread(self, method: int) -> MetricInterval:
        """Return a method's value with its interval."""
        low, high = np.percentile(self.drawn[:, method], [50 * LEVEL, 100 - 50 * LEVEL])
        return MetricInterval(float(self.values[method]), float(low), float(high))

    def differences(self) -> list[Difference]:
        """Compare every method with every other."""
        found = [
            self._difference(one, other) for one, other in combinations(range(len(self.values)), 2)
        ]
        corrected = correct([p for *_, p in found])
        return [Difference(*each, fixed) for each, fixed in zip(found, corrected, strict=True)]

    def _difference(self, one: int, other: int) -> tuple[int, int, float, float, float, float]:
        value = float(self.values[one] - self.values[other])
        drawn = self.drawn[:, one] - self.drawn[:, other]
        low, high = np.percentile(drawn, [50 * LEVEL, 100 - 50 * LEVEL])
        # rounding must not make a difference of nothing look like one
        as_far = np.abs(drawn - value) >= abs(value) - 1e-9
        p = (1 + int(as_far.sum())) / (1 + len(drawn))
        return one, other, value, float(low), float(high), p


def choose_n_draws(n_documents: int, n_methods: int) -> int:
    """Return fewer draws for more documents, but enough to be significant after correction."""
    n_pairs = n_methods * (n_methods - 1) // 2
    n = int(np.clip(CELLS // max(n_documents, 1), FEWEST, MOST))
    return max(n, round(2 * n_pairs / LEVEL))


def draw_metrics(
    methods: Sequence[Mapping[str, PerDocument]], n_draws: int, seed: int = 0
) -> dict[str, Draws]:
    """Return the draws of every metric; all methods were measured on the same documents."""
    names = list(methods[0])
    reached = np.stack([each[name].reached for name in names for each in methods], axis=1)
    possible = np.stack([methods[0][name].possible for name in names], axis=1)
    sums = [(w @ reached, w @ possible) for w in _weights(len(reached), n_draws, seed)]
    drawn_reached = np.concatenate([top for top, _ in sums]).reshape(n_draws, len(names), -1)
    drawn_possible = np.concatenate([bottom for _, bottom in sums])[:, :, None]
    drawn = 100 * drawn_reached / np.where(drawn_possible > 0, drawn_possible, 1)
    values = [[each[name].percent() for each in methods] for name in names]
    return {name: Draws(np.array(values[i]), drawn[:, i]) for i, name in enumerate(names)}


def _weights(n_documents: int, n_draws: int, seed: int) -> Iterator[Floats]:
    """Yield (block, n_documents) how often each document is drawn."""
    rng = np.random.default_rng(seed)
    block = max(1, min(n_draws, BLOCK_CELLS // n_documents))
    for start in range(0, n_draws, block):
        size = min(block, n_draws - start)
        weights = np.empty((size, n_documents))
        for row in range(size):
            chosen = rng.integers(0, n_documents, n_documents)
            weights[row] = np.bincount(chosen, minlength=n_documents)
        yield weights


def correct(ps: Sequence[float]) -> list[float]:
    """Return Holm's correction of many p."""
    order = np.argsort(ps, kind="stable")
    corrected = np.empty(len(ps))
    largest = 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, ps[i] * (len(ps) - place)))
        corrected[i] = largest
    return corrected.tolist()


def mean_of_seeds(seeds: Sequence[Mapping[str, PerDocument]]) -> dict[str, PerDocument]:
    """Return for each document the mean of what several trainings reached on it."""
    return {
        name: PerDocument(
            np.mean([each[name].reached for each in seeds], axis=0), seeds[0][name].possible
        )
        for name in seeds[0]
    }
