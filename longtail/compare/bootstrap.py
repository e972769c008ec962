"""Paired bootstrap: confidence intervals and p-values, with the same samples for every method.

A metric over n documents is 100 · Σ reached / Σ possible. A sample draws n of the documents with
replacement and computes the metric again. If a method was trained with s > 1 seeds, the sample also
draws s − 1 of them with replacement and takes their mean: with s of them, its variance would be too
small for a mean of s seeds (Rao and Wu 1988).

The middle 95 % of the samples are the interval of a metric, and of the difference of two methods on
the same samples. The p-value of a difference is the share of samples that lie at least as far from
the difference as 0 does (two-sided). The p-values are corrected for the number of pairs by Holm's
method: the i-th smallest of m is multiplied by m − i + 1, and none is smaller than an earlier one.

Only test documents and seeds are sampled. The interval does not show what other training documents
would change, nor, with a single seed, what another one would.
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
    methods: Sequence[Sequence[Mapping[str, PerDocument]]], n_draws: int, seed: int = 0
) -> dict[str, Draws]:
    """Return the draws of every metric; a method is what each of its seeds reached.

    All were measured on the same documents.
    """
    runs = [run for seeds in methods for run in seeds]
    names = list(runs[0])
    reached = np.stack([run[name].reached for name in names for run in runs], axis=1)
    possible = np.stack([runs[0][name].possible for name in names], axis=1)
    sums = [(w @ reached, w @ possible) for w in _weights(len(reached), n_draws, seed)]
    drawn_reached = np.concatenate([top for top, _ in sums]).reshape(n_draws, len(names), -1)
    drawn_possible = np.concatenate([bottom for _, bottom in sums])[:, :, None]
    by_run = 100 * drawn_reached / np.where(drawn_possible > 0, drawn_possible, 1)
    drawn = _draw_seeds(by_run, [len(seeds) for seeds in methods], seed)
    return {
        name: Draws(np.array([_mean(seeds, name) for seeds in methods]), drawn[:, i])
        for i, name in enumerate(names)
    }


def _mean(seeds: Sequence[Mapping[str, PerDocument]], metric: str) -> float:
    return float(np.mean([run[metric].percent() for run in seeds]))


def _draw_seeds(by_run: Floats, n_seeds: Sequence[int], seed: int) -> Floats:
    """Turn (draws, metrics, runs) into (draws, metrics, methods): means of seeds, drawn anew."""
    rng = np.random.default_rng([seed, 1])
    drawn = []
    for n, end in zip(n_seeds, np.cumsum(n_seeds), strict=True):
        size = max(n - 1, 1)
        weights = rng.multinomial(size, np.full(n, 1 / n), len(by_run)) / size
        drawn.append(np.einsum("dmr,dr->dm", by_run[:, :, end - n : end], weights))
    return np.stack(drawn, axis=2)


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
