"""What training chooses from the data where the parameters leave it open.

All rules were chosen on held-out documents, each tested on data sets that it was not chosen on: see
docs/experiments/linear.md.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.mapped import BLOCK

CRule = Literal["steep", "even"]

COMMON = 200  # documents; labels of as many or more have the smallest C
SMALLEST_C, LARGEST_C = 1e-9, 1e6  # that float32 holds, and more or less than ever helps
MOST_PRUNED, PRUNED_SHARE = 0.1, 1.1
MOST_PRUNED_FLAT, PRUNED_SHARE_FLAT = 0.05, 0.85  # without a tree
PASSES, PASSES_OF_SEVERAL = 15, 8
TOLERANCE, TOLERANCE_OF_SEVERAL = 0.2, 0.5
DEMAND = 0.02  # of a label, for each e-fold of its documents


class Costs(NamedTuple):
    """How much a wrong document counts for a classifier (C), by its positive documents.

    C is the least for COMMON of them or more, and rises with (COMMON / n)^power. A classifier with
    few can hardly overfit, but is too timid with a small C: it never reaches a margin that competes
    with those of frequent labels.

    Attributes:
        least: of labels.
        power: of labels.
        inner_least: of the nodes above labels, which decide what is looked at.
        inner_power: of these.
    """

    least: float
    power: float = 0.0
    inner_least: float = 0.0
    inner_power: float = 0.0

    @classmethod
    def constant(cls, C: float) -> "Costs":
        """Return the same C for all classifiers."""
        C = max(C, SMALLEST_C)
        return cls(C, 0.0, C, 0.0)

    def of_labels(self, n_documents: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return C of labels with so many documents."""
        return _raise_for_few(self.least, self.power, n_documents)

    def of_levels(self, n_documents: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Return C of all levels of a tree, of which the labels' is the last."""
        *inner, labels = n_documents
        above = [_raise_for_few(self.inner_least, self.inner_power, each) for each in inner]
        return [*above, self.of_labels(labels)]


# `steep` is what most data sets want, `even` those where words tell frequent labels apart: `trial`.
RULES: Mapping[CRule, Costs] = {
    "steep": Costs(0.4, 0.4, 0.5, 0.35),
    "even": Costs(0.8, 0.2, 1.0, 0.35),
}


def _raise_for_few(
    least: float, power: float, n_documents: NDArray[np.int64]
) -> NDArray[np.float32]:
    few = np.maximum(1, COMMON / np.maximum(n_documents, 1))
    return (least * few**power).astype(np.float32)


def choose_prune(given: float | None, X: sp.csr_matrix, *, flat: bool) -> float:
    """Return below which absolute value weights are left out; fewer are where there is no tree.

    Weights are sums of documents' values, and those of long documents are small.
    """
    if given is not None:
        return given
    blocks = range(0, X.nnz, BLOCK)
    squares = sum(np.square(X.data[a : a + BLOCK], dtype=np.float64).sum() for a in blocks)
    size = np.sqrt(squares / max(1, X.nnz))
    if flat:
        return float(min(MOST_PRUNED_FLAT, PRUNED_SHARE_FLAT * size))
    return float(min(MOST_PRUNED, PRUNED_SHARE * size))


def choose_passes(given: int | None, n_trees: int) -> int:
    """Return the most passes over documents: several trees even out what is unfinished."""
    if given is not None:
        return given
    return PASSES if n_trees == 1 else PASSES_OF_SEVERAL


def choose_tolerance(given: float | None, n_trees: int) -> float:
    """Return how small steps must be to end training, for the same reason larger for several."""
    if given is not None:
        return given
    return TOLERANCE if n_trees == 1 else TOLERANCE_OF_SEVERAL


def choose_demand(n_documents: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return how much larger a label's margin must be than that of one with a single document.

    A classifier with few documents hardly reaches the margins of frequent labels, even where it is
    right: of two labels whose margins are all but equal, the rarer one is the better guess.
    """
    return (DEMAND * np.log(np.maximum(n_documents, 1))).astype(np.float32)
