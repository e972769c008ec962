"""What training chooses from the data where the parameters leave it open.

All rules were chosen on held-out documents, each tested on data sets that it was not chosen on: see
docs/experiments/linear.md.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.mapped import BLOCK

LEAST_C, COMMON, C_POWER = 0.4, 200, 0.4  # of labels
INNER_C, INNER_POWER = 0.5, 0.35  # of nodes above them
SMALLEST_C, LARGEST_C = 1e-9, 1e6  # that float32 holds, and more or less than ever helps
MOST_PRUNED, MOST_PRUNED_FLAT, PRUNED_SHARE = 0.1, 0.05, 0.85
PASSES, PASSES_OF_SEVERAL = 10, 5
DEMAND = 0.02  # of a label, for each e-fold of its documents


def choose_C(
    given: float | None, n_documents: NDArray[np.int64], *, inner: bool = False
) -> NDArray[np.float32]:
    """Return how much a wrong document counts for each classifier, by its positive documents.

    A classifier with few of them can hardly overfit, but is too timid with a small C: it never
    reaches a margin that competes with those of frequent labels. Those of `inner` nodes, which
    decide what is looked at, may be bolder than those of frequent labels.
    """
    if given is not None:
        return np.full(len(n_documents), max(given, SMALLEST_C), np.float32)
    few = np.maximum(1, COMMON / np.maximum(n_documents, 1))
    least, power = (INNER_C, INNER_POWER) if inner else (LEAST_C, C_POWER)
    return (least * few**power).astype(np.float32)


def choose_C_of_levels(
    given: float | None, n_documents: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.float32]]:
    """Return the same for all levels of a tree, of which the labels' is the last."""
    last = len(n_documents) - 1
    return [choose_C(given, each, inner=level < last) for level, each in enumerate(n_documents)]


def choose_prune(given: float | None, X: sp.csr_matrix, *, flat: bool) -> float:
    """Return below which absolute value weights are left out; fewer are where there is no tree.

    Weights are sums of documents' values, and those of long documents are small.
    """
    if given is not None:
        return given
    blocks = range(0, X.nnz, BLOCK)
    squares = sum(np.square(X.data[a : a + BLOCK], dtype=np.float64).sum() for a in blocks)
    size = np.sqrt(squares / max(1, X.nnz))
    return float(min(MOST_PRUNED_FLAT if flat else MOST_PRUNED, PRUNED_SHARE * size))


def choose_passes(given: int | None, n_trees: int) -> int:
    """Return the most passes over documents: several trees even out what is unfinished."""
    if given is not None:
        return given
    return PASSES if n_trees == 1 else PASSES_OF_SEVERAL


def choose_demand(n_documents: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return how much larger a label's margin must be than that of one with a single document.

    A classifier with few documents hardly reaches the margins of frequent labels, even where it is
    right: of two labels whose margins are all but equal, the rarer one is the better guess.
    """
    return (DEMAND * np.log(np.maximum(n_documents, 1))).astype(np.float32)
