"""Reliability: how often predictions of a given probability are right."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.curve import Floats
from longtail.evaluation.metrics import find_hits
from longtail.evaluation.steps import FIRST
from longtail.topk import NO_LABEL, TopK

BINS = 15


class Reliability(NamedTuple):
    """Predictions in bins of equal width, by their probability.

    Attributes:
        counts: (bins,) how many predictions each bin holds.
        means: (bins,) the mean of their probabilities; NaN where there is none.
        shares: (bins,) the share of them that are right; NaN where there is none.
    """

    counts: NDArray[np.int64]
    means: Floats
    shares: Floats

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |mean − share| over all predictions."""
        some = self.counts > 0
        gaps = np.abs(self.means[some] - self.shares[some])
        return float(gaps @ self.counts[some] / max(self.counts.sum(), 1))


class ReliabilityCounts:
    """Predictions counted in bins, as they come."""

    def __init__(self, bins: int = BINS) -> None:
        """Begin without predictions."""
        self._counts = np.zeros(bins, np.int64)
        self._sums, self._right = np.zeros(bins), np.zeros(bins)

    def add(self, probabilities: NDArray[Any], hits: NDArray[Any]) -> "ReliabilityCounts":
        """Count predictions, of which `hits` are right."""
        flat, bins = np.asarray(probabilities, np.float64).ravel(), len(self._counts)
        chosen = np.clip((flat * bins).astype(np.int64), 0, bins - 1)
        # One after the other, so that the sums are the same however predictions are divided.
        np.add.at(self._sums, chosen, flat)
        np.add.at(self._right, chosen, np.asarray(hits, np.float64).ravel())
        self._counts += np.bincount(chosen, minlength=bins)
        return self

    def add_first(self, top: TopK, Y: sp.csr_matrix) -> "ReliabilityCounts":
        """Count the first five labels of each document."""
        first = top.first(FIRST)
        given = first.labels != NO_LABEL
        return self.add(first.scores[given], find_hits(first, Y)[given])

    def result(self) -> Reliability:
        """Return what was counted."""
        with np.errstate(invalid="ignore"):
            return Reliability(self._counts, self._sums / self._counts, self._right / self._counts)


def reliability(probabilities: NDArray[Any], hits: NDArray[Any], bins: int = BINS) -> Reliability:
    """Compare the probabilities of predictions with how many of them are right."""
    return ReliabilityCounts(bins).add(probabilities, hits).result()


def reliability_of_first(top: TopK, Y: sp.csr_matrix) -> Reliability:
    """Compare the probabilities of the first five labels of each document with the truth."""
    return ReliabilityCounts().add_first(top, Y).result()


def error_of_first(top: TopK, Y: sp.csr_matrix) -> float:
    """Return the expected calibration error of the first five labels of each document."""
    return reliability_of_first(top, Y).error
