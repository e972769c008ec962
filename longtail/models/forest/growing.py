"""Growing an extremely randomized tree over documents with sparse features and many labels.

    y_d       the labels of document d as a vector of length 1: each is `weights[d]`
    T         (n_labels,) the sum of y over the documents of a node
    R         (n_labels,) the same over those that a question moves to one side
    |T|²      `square`; that of the others is |T − R|² = |T|² − 2 T·R + |R|²

At a node every feature is tried with the probability `share`, each with one threshold, which is
drawn evenly between the least and the largest value in the node; absent cells are zeros. Of these
questions the node takes the one with the largest |R|²/n_R + |T − R|²/(n − n_R): it makes the sum of
squared distances to the mean label vector of each side the smallest. R is summed over the documents
whose value is on another side than zero, so that a question costs the labels of documents that have
the feature.

Which features are tried follows from a hash of their numbers, so that a node reads the values of
these alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows
from longtail.search.voters import Carried

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Exact = NDArray[np.float64]
State = NDArray[np.uint64]

DEEPEST = 1000  # questions from the root; documents without anything in common would need as many
PURE = 1 - 1e-9  # of n²; above, all documents of a node have the same labels
BETTER = 1 + 1e-9  # times the best so far; what differs less differs by rounding
GOLDEN, MIX_1, MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
S11, S27, S30, S31, S32 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
UNIT = 1 / 2**53
LEAST_TRIED = 3  # features, of all that there are, are tried however small the share
ALL = np.uint64(1 << 32)


class Tree(NamedTuple):
    """A tree whose nodes stand in preorder: a node, all below its left side, then its right side.

    A node with k leaves on its left has k − 1 nodes there; so its right side begins k nodes later.

    Attributes:
        features: (n_leaves − 1,) what each node asks for.
        thresholds: (n_leaves − 1,) a value above goes right.
        left: (n_leaves − 1,) how many leaves are on the left.
        sizes: (n_leaves,) how many documents each leaf has, from left to right.
        documents: those of all leaves, from left to right.
    """

    features: Ids
    thresholds: Floats
    left: Ids
    sizes: Ids
    documents: Ids


class Scratch(NamedTuple):
    """Room for what a node computes; `slots` is -1 and `sums`, `moved` are zero between nodes.

    Attributes:
        slots: (n_features,) the place of each feature among those tried.
        features: those tried, with `counts`, `lows` and `highs` of their values in the node.
        thresholds: one for each of them.
        cell_slots: the values of tried features: of which of them, of which document, and what.
        starts: where the documents of each feature begin in `bucket`.
        ends: where they end.
        bucket: documents on another side than zero, feature by feature.
        moved: (n_documents,) which documents the best question moves.
        sums: (2, n_labels) T and R.
    """

    slots: Ids
    features: Ids
    counts: Ids
    lows: Floats
    highs: Floats
    thresholds: Floats
    cell_slots: Ids
    cell_documents: Ids
    cell_values: Floats
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    bucket: Ids
    moved: NDArray[np.bool_]
    sums: Exact


# -- random numbers -------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def draw(state: State) -> np.uint64:
    """Return 64 random bits, as splitmix64 makes them."""
    state[0] += GOLDEN
    z: np.uint64 = state[0]
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    return z ^ (z >> S31)


@njit(nogil=True, cache=True)
def draw_share(state: State) -> float:
    """Return a random number from 0 to below 1."""
    return float((draw(state) >> S11) * UNIT)


@njit(nogil=True, cache=True)
def _is_tried(feature: int, key: np.uint64, limit: np.uint64) -> np.bool_:
    """Whether a hash of the feature, other for each key, is below the limit of 32 bits."""
    z = (np.uint64(feature) + key) * GOLDEN
    z = (z ^ (z >> S32)) * MIX_2
    return (z >> S32) < limit


# -- one node -------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def add_labels(Y: Carried, documents: Ids, weights: Exact, sums: Exact) -> float:
    """Add the documents' label vectors to sums of zero; return the squared length of these."""
    square = 0.0
    for d in documents:
        weight = weights[d]
        for cell in range(Y.start[d], Y.start[d + 1]):
            label = Y.labels[cell]
            square += weight * (2 * sums[label] + weight)
            sums[label] += weight
    return square


@njit(nogil=True, cache=True)
def _clear_labels(Y: Carried, documents: Ids, sums: Exact) -> None:
    for d in documents:
        for cell in range(Y.start[d], Y.start[d + 1]):
            sums[Y.labels[cell]] = 0


@njit(nogil=True, cache=True)
def judge_split(
    Y: Carried, moved: Ids, n: int, weights: Exact, square: float, T: Exact, R: Exact
) -> float:
    """Return |R|²/n_R + |T − R|²/(n − n_R) for the documents that a question moves.

    Args:
        Y: the labels of documents.
        moved: the documents that are moved.
        n: how many the node has.
        weights: what each label of a document counts.
        square: |T|².
        T: the sum over the node.
        R: zeros, and left so.
    """
    own, shared = 0.0, 0.0
    for d in moved:
        weight = weights[d]
        for cell in range(Y.start[d], Y.start[d + 1]):
            label = Y.labels[cell]
            own += weight * (2 * R[label] + weight)
            shared += weight * T[label]
            R[label] += weight
    _clear_labels(Y, moved, R)
    return own / len(moved) + (square - 2 * shared + own) / (n - len(moved))


@njit(nogil=True, cache=True)
def _collect_cells(
    X: Rows, documents: Ids, key: np.uint64, limit: np.uint64, scratch: Scratch
) -> tuple[int, int]:
    """Find the tried features of a node; return how many there are, and how many cells."""
    slots, features, counts, lows, highs = scratch[:5]
    n_features, n_cells = 0, 0
    for d in documents:
        for cell in range(X.start[d], X.start[d + 1]):
            feature = X.columns[cell]
            if not _is_tried(feature, key, limit):
                continue
            slot, value = slots[feature], X.values[cell]
            if slot < 0:
                slot = n_features
                n_features += 1
                slots[feature], features[slot], counts[slot] = slot, feature, 0
                lows[slot], highs[slot] = value, value
            counts[slot] += 1
            lows[slot], highs[slot] = min(lows[slot], value), max(highs[slot], value)
            scratch.cell_slots[n_cells], scratch.cell_documents[n_cells] = slot, d
            scratch.cell_values[n_cells] = value
            n_cells += 1
    for slot in range(n_features):
        slots[features[slot]] = -1
        if counts[slot] < len(documents):
            lows[slot] = min(lows[slot], np.float32(0))
            highs[slot] = max(highs[slot], np.float32(0))
    return n_features, n_cells


@njit(nogil=True, cache=True)
def _draw_threshold(state: State, low: np.float32, high: np.float32) -> np.float32:
    """Return a number from `low` to below `high`."""
    drawn = np.float32(low + draw_share(state) * (np.float64(high) - low))
    return drawn if low <= drawn < high else low


@njit(nogil=True, cache=True)
def _fill_buckets(
    state: State, n_features: int, n_cells: int, min_leaf: int, scratch: Scratch
) -> None:
    """Draw thresholds, and sort out which documents each question moves."""
    starts, ends, thresholds = scratch.starts, scratch.ends, scratch.thresholds
    at = 0
    for slot in range(n_features):
        starts[slot], ends[slot] = at, at
        low, high = scratch.lows[slot], scratch.highs[slot]
        if low < high and scratch.counts[slot] >= min_leaf:
            thresholds[slot] = _draw_threshold(state, low, high)
            at += scratch.counts[slot]
        else:
            thresholds[slot] = np.float32(np.nan)  # no value is on either side of it
    for cell in range(n_cells):
        slot, value = scratch.cell_slots[cell], scratch.cell_values[cell]
        threshold = thresholds[slot]
        if value > threshold >= 0 or value <= threshold < 0:
            scratch.bucket[ends[slot]] = scratch.cell_documents[cell]
            ends[slot] += 1


@njit(nogil=True, cache=True)
def _find_question(
    X: Rows,
    Y: Carried,
    documents: Ids,
    weights: Exact,
    square: float,
    min_leaf: int,
    limit: np.uint64,
    state: State,
    scratch: Scratch,
) -> int:
    """Return the best of the questions that are tried, by its slot; -1 if none is possible."""
    key = draw(state)
    n_features, n_cells = _collect_cells(X, documents, key, limit, scratch)
    _fill_buckets(state, n_features, n_cells, min_leaf, scratch)
    n, best, best_gain = len(documents), -1, 0.0
    for slot in range(n_features):
        moved = scratch.bucket[scratch.starts[slot] : scratch.ends[slot]]
        if len(moved) < min_leaf or n - len(moved) < min_leaf:
            continue
        T, R = scratch.sums[0], scratch.sums[1]
        gain = judge_split(Y, moved, n, weights, square, T, R)
        if gain > BETTER * best_gain:
            best, best_gain = slot, gain
    return best


@njit(nogil=True, cache=True)
def _divide(documents: Ids, aside: Ids, slot: int, scratch: Scratch) -> int:
    """Put the documents of the left side first, in their order; return how many there are."""
    moved = scratch.bucket[scratch.starts[slot] : scratch.ends[slot]]
    goes_right = scratch.thresholds[slot] >= 0
    for d in moved:
        scratch.moved[d] = True
    n_left, n_right = 0, 0
    for d in documents:
        if scratch.moved[d] == goes_right:
            aside[n_right] = d
            n_right += 1
        else:
            documents[n_left] = d
            n_left += 1
    documents[n_left:] = aside[:n_right]
    for d in moved:
        scratch.moved[d] = False
    return n_left


# -- the whole tree -------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _make_scratch(
    X: Rows, documents: Ids, n_features: int, n_labels: int, n_documents: int
) -> Scratch:
    n_cells = 0
    for d in documents:
        n_cells += X.start[d + 1] - X.start[d]
    most = min(n_features, n_cells)
    return Scratch(
        np.full(n_features, np.int32(-1)),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.float32),
        np.empty(most, np.float32),
        np.empty(most, np.float32),
        np.empty(n_cells, np.int32),
        np.empty(n_cells, np.int32),
        np.empty(n_cells, np.float32),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(n_cells, np.int32),
        np.zeros(n_documents, np.bool_),
        np.zeros((2, n_labels)),
    )


@njit(nogil=True, cache=True)
def weigh_labels(Y: Carried) -> Exact:
    """Return what each label of a document counts, so that its label vector has length 1."""
    weights = np.zeros(len(Y.start) - 1)
    for d in range(len(weights)):
        n_labels = Y.start[d + 1] - Y.start[d]
        weights[d] = 1 / np.sqrt(n_labels) if n_labels else 0.0
    return weights


@njit(nogil=True, cache=True)
def grow_tree(
    X: Rows,
    Y: Carried,
    n_features: int,
    drawn: Ids,
    weights: Exact,
    min_split: int,
    min_leaf: int,
    share: float,
    seed: int,
) -> Tree:
    """Grow a tree.

    Args:
        X: the features of documents.
        Y: their labels; each has one at least.
        n_features: how many features there are.
        drawn: the documents to grow it on.
        weights: (n,) what each label of a document counts.
        min_split: how many of them a node has at least.
        min_leaf: how many of them a leaf has at least.
        share: of the features of a node's documents, so many are tried.
        seed: fixes all that is random.
    """
    state = np.array([seed], np.uint64)
    scratch = _make_scratch(X, drawn, n_features, Y.n_labels, len(weights))
    limit = np.uint64(min(1.0, max(share, LEAST_TRIED / n_features)) * 2.0**32)
    n, order, aside = len(drawn), drawn.copy(), np.empty(len(drawn), np.int32)
    features, thresholds = np.empty(n, np.int32), np.empty(n, np.float32)
    left, sizes, before = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    n_nodes, n_leaves = 0, 0
    stack = np.empty((n + 2, 4), np.int64)  # first document, last, depth, node of which it is right
    stack[0], height = (0, n, 0, -1), 1
    while height:
        height -= 1
        first, last, depth, parent = stack[height]
        documents = order[first:last]
        if parent >= 0:
            left[parent] = n_leaves - before[parent]
        best = -1
        if len(documents) >= max(min_split, 2 * min_leaf) and depth < DEEPEST:
            square = add_labels(Y, documents, weights, scratch.sums[0])
            if square < PURE * len(documents) ** 2:
                for tried in (limit, ALL):  # all features, if none of those tried is possible
                    best = _find_question(
                        X, Y, documents, weights, square, min_leaf, tried, state, scratch
                    )
                    if best >= 0:
                        break
            _clear_labels(Y, documents, scratch.sums[0])
        if best < 0:
            sizes[n_leaves] = len(documents)
            n_leaves += 1
            continue
        features[n_nodes] = scratch.features[best]
        thresholds[n_nodes] = scratch.thresholds[best]
        before[n_nodes] = n_leaves
        middle = first + _divide(documents, aside, best, scratch)
        stack[height] = (middle, last, depth + 1, n_nodes)
        stack[height + 1] = (first, middle, depth + 1, -1)
        height, n_nodes = height + 2, n_nodes + 1
    return Tree(
        features[:n_nodes].copy(),
        thresholds[:n_nodes].copy(),
        left[:n_nodes].copy(),
        sizes[:n_leaves].copy(),
        order,
    )
