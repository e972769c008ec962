"""Small trees that correct log-odds: gradient boosting in which each tree asks the same questions.

A tree has a few questions, such as "is the third input above 0.2?", and asks all of them of every
candidate; so it is a table of 2^depth values, quick to apply and too simple to learn much by heart.
Each question is chosen so that all leaves together are divided best by it, by the usual gain of
gradient boosting with second derivatives, on inputs that were cut into bins.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.schema import Array, floats, indices

Floats = NDArray[np.float32]
Hits = NDArray[np.bool_]

DEPTH = 4
N_TREES = 100
RATE = 0.1  # of what a tree finds, so much is taken
N_BINS = 64
CALM = 20.0  # added to the weight of a leaf; the larger, the less few candidates can say
CHANCE = float(np.log(0.01))  # log-odds; candidates below are left as they are
MOST = 200_000  # candidates that trees are grown on


class Trees(NamedTuple):
    """Trees that ask the same few questions of every candidate.

    Attributes:
        columns: (n_trees, depth) which input a question looks at.
        places: (n_trees, depth) the answer is yes where the input is above.
        values: (n_trees, 2^depth) what is added to the log-odds, by the answers as bits.
    """

    columns: NDArray[np.int32]
    places: Floats
    values: Floats

    @classmethod
    def none(cls) -> Self:
        """Return no tree at all."""
        return cls(
            np.zeros((0, DEPTH), np.int32),
            np.zeros((0, DEPTH), np.float32),
            np.zeros((0, 2**DEPTH), np.float32),
        )

    @staticmethod
    def describe(n_inputs: int) -> dict[str, Array]:
        """Return what the arrays must be for candidates with so many inputs."""
        n = "stacker.n_trees"
        return {
            "columns": indices(n, DEPTH, into=n_inputs),
            "places": floats(n, DEPTH, empty=True),
            "values": floats(n, 2**DEPTH, empty=True),
        }


def grow_trees(inputs: Floats, hits: Hits, margins: NDArray[np.float64]) -> Trees:
    """Return trees that, added to the log-odds `margins`, predict the hits better."""
    open_ = np.flatnonzero(margins > CHANCE)
    open_ = open_[:: -(-len(open_) // MOST) or 1]
    if not hits[open_].any():
        return Trees.none()
    inputs = inputs[open_]
    edges = _cut_into_bins(inputs)
    binned = np.empty(inputs.T.shape, np.uint8)
    for column in range(len(edges)):
        binned[column] = np.searchsorted(edges[column], inputs[:, column], side="left")
    columns, bins, values = _grow(binned, hits[open_].astype(np.float64), margins[open_], N_TREES)
    return Trees(columns, edges[columns, bins], values)


def _cut_into_bins(inputs: Floats) -> Floats:
    """Return (n_inputs, N_BINS − 1) the places between bins of about as many candidates."""
    shares = np.linspace(0, 1, N_BINS + 1)[1:-1]
    some = inputs[:: max(1, len(inputs) // 100_000)]
    edges: Floats = np.quantile(some, shares, axis=0).T.astype(np.float32)
    return np.ascontiguousarray(edges)


@njit(nogil=True, cache=True)
def _grow(
    binned: NDArray[np.uint8],
    hits: NDArray[np.float64],
    margins: NDArray[np.float64],
    n_trees: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64], Floats]:
    n = binned.shape[1]
    columns = np.zeros((n_trees, DEPTH), np.int32)
    bins = np.zeros((n_trees, DEPTH), np.int64)
    values = np.zeros((n_trees, 2**DEPTH), np.float32)
    slope, curve = np.empty(n), np.empty(n)
    leaf = np.empty(n, np.int64)
    for tree in range(n_trees):
        for i in range(n):
            p = 1 / (1 + np.exp(-margins[i]))
            slope[i], curve[i] = hits[i] - p, max(p * (1 - p), 1e-6)
        leaf[:] = 0
        for level in range(DEPTH):
            column, place = _best_question(binned, slope, curve, leaf, 2**level)
            columns[tree, level], bins[tree, level] = column, place
            for i in range(n):
                leaf[i] = 2 * leaf[i] + (binned[column, i] > place)
        up, down = np.zeros(2**DEPTH), np.full(2**DEPTH, CALM)
        for i in range(n):
            up[leaf[i]] += slope[i]
            down[leaf[i]] += curve[i]
        for j in range(2**DEPTH):
            values[tree, j] = RATE * up[j] / down[j]
        for i in range(n):
            margins[i] += values[tree, leaf[i]]
    return columns, bins, values


@njit(nogil=True, cache=True)
def _best_question(
    binned: NDArray[np.uint8],
    slope: NDArray[np.float64],
    curve: NDArray[np.float64],
    leaf: NDArray[np.int64],
    n_leaves: int,
) -> tuple[int, int]:
    """Return the input and the bin that divide all leaves best, together."""
    best, column, place = -1.0, 0, 0
    for candidate in range(len(binned)):
        up, down = np.zeros((n_leaves, N_BINS)), np.zeros((n_leaves, N_BINS))
        for i in range(len(slope)):
            up[leaf[i], binned[candidate, i]] += slope[i]
            down[leaf[i], binned[candidate, i]] += curve[i]
        gains = np.zeros(N_BINS - 1)
        for j in range(n_leaves):
            all_up, all_down = up[j].sum(), down[j].sum()
            left_up, left_down = 0.0, 0.0
            for b in range(N_BINS - 1):
                left_up += up[j, b]
                left_down += down[j, b]
                gains[b] += left_up**2 / (left_down + CALM)
                gains[b] += (all_up - left_up) ** 2 / (all_down - left_down + CALM)
        b = int(gains.argmax())
        if gains[b] > best:
            best, column, place = gains[b], candidate, b
    return column, place


@njit(nogil=True, cache=True)
def add_trees(
    margins: NDArray[np.float64],
    inputs: Floats,
    columns: NDArray[np.int32],
    places: Floats,
    values: Floats,
) -> None:
    """Add what the trees say to the log-odds of candidates that have a chance."""
    for i in range(len(inputs)):
        if margins[i] <= CHANCE:
            continue
        for tree in range(len(columns)):
            leaf = 0
            for level in range(columns.shape[1]):
                leaf = 2 * leaf + (inputs[i, columns[tree, level]] > places[tree, level])
            margins[i] += values[tree, leaf]
