"""What questions and branches have in common: leaves in order, and a document spread out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.models.forest.growing import Floats
from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows
from longtail.runtime.schema import indices

Starts = NDArray[np.int64]
Spans = NDArray[np.int32]  # (n, n_trees, 2) the first leaf, and the one behind the last


class Shape(NamedTuple):
    """Which leaves and documents trees have, as `Trees` says, and how many features there are."""

    start: Starts
    borders: Starts
    n_features: int


def running_sum(counts: NDArray[Any] | Sequence[int]) -> Starts:
    """Return where each of several parts begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def coded(*parts: str) -> dict[str, Any]:
    """Return what describes arrays of numbers that take as many bytes as they need."""
    return {
        f"trees.{part}": indices(f"trees.n_{part}", into=256, dtypes=(np.uint8,)) for part in parts
    }


@njit(nogil=True, cache=True)
def spread(X: Rows, d: int, x: Floats) -> None:
    """Write a document's features into x, which holds zeros."""
    for cell in range(X.start[d], X.start[d + 1]):
        x[X.columns[cell]] = X.values[cell]


@njit(nogil=True, cache=True)
def clear(X: Rows, d: int, x: Floats) -> None:
    """Make x hold zeros again."""
    for cell in range(X.start[d], X.start[d + 1]):
        x[X.columns[cell]] = 0
