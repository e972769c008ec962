"""Beam search through a tree of trained linear classifiers, for one document or many.

All nodes of a tree are numbered through, level by level, the root being 0. The classifiers of
a node's children lie together in a chunk, a sparse matrix with a row for each feature that
matters to any of them.

Two ways to bring a document and a chunk together give the same sums in the same order: where
many documents ask for a chunk, its rows are spread out in a table by feature; where few do,
each of the document's features is looked up by binary search.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from longtail.rows import Rows

MAX_CHUNK = 65_536  # children, as TreeWeights.offset can count; a larger node has more chunks


class TreeWeights(NamedTuple):
    """A trained tree.

    Attributes:
        level: (depth + 2,) the first node of each level; the last entry is the number of nodes.
        chunk: (n_inner + 1,) the first chunk of each inner node.
        child: (n_chunks + 1,) the first child of each chunk.
        row: (n_chunks + 1,) the first row of each chunk.
        feature: (n_rows,) the feature of each row, rising within a chunk.
        start: (n_rows + 1,) the first weight of each row.
        offset: (n_weights,) the child that a weight belongs to, counted from its chunk's first.
        weight: (n_weights,) the weights.
        bias: (n_nodes,) what each node's classifier adds to every document's sum.
        leaves: (n_labels,) the label of each node of the last level.
    """

    level: NDArray[np.int64]
    chunk: NDArray[np.int64]
    child: NDArray[np.int64]
    row: NDArray[np.int64]
    feature: NDArray[np.int32]
    start: NDArray[np.int64]
    offset: NDArray[np.uint16]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    leaves: NDArray[np.int32]


_TYPES = {
    **dict.fromkeys(("level", "chunk", "child", "row", "start"), np.int64),
    **dict.fromkeys(("feature", "leaves"), np.int32),
    **dict.fromkeys(("weight", "bias"), np.float32),
    "offset": np.uint16,
}


def check_tree(tree: TreeWeights, n_features: int, n_labels: int) -> None:
    """Raise ValueError unless every index of `tree` stays within its array.

    Compiled code does not check, so a tree that comes from a file has to pass here first.
    """
    for name, array in tree._asdict().items():
        if array.ndim != 1 or array.dtype != _TYPES[name]:
            raise ValueError(f"{name} is not one row of {_TYPES[name].__name__}")
    if len(tree.level) < 3 or tree.level[0] != 0 or tree.level[1] != 1:
        raise ValueError("the levels do not begin with a root")
    n_nodes, n_inner = int(tree.level[-1]), int(tree.level[-2])
    for name, size, end in (
        ("level", len(tree.level), n_nodes),
        ("chunk", n_inner + 1, len(tree.child) - 1),
        ("row", len(tree.child), len(tree.feature)),
        ("start", len(tree.feature) + 1, len(tree.weight)),
    ):
        array = getattr(tree, name)
        if len(array) != size or array[0] != 0 or array[-1] != end or (np.diff(array) < 0).any():
            raise ValueError(f"{name} does not divide what it should divide")
    _check_children(tree)
    for name, array, end in (
        ("feature", tree.feature, n_features),
        ("leaves", tree.leaves, n_labels),
    ):
        if len(array) and not 0 <= int(array.min()) <= int(array.max()) < end:
            raise ValueError(f"{name} holds numbers that are not below {end}")
    if len(tree.offset) != len(tree.weight) or len(tree.bias) != n_nodes:
        raise ValueError("the weights and their nodes differ in number")
    if len(tree.leaves) != n_nodes - n_inner or len(tree.leaves) != n_labels:
        raise ValueError(f"the tree has {len(tree.leaves)} leaves for {n_labels} labels")


def _check_children(tree: TreeWeights) -> None:
    """Raise ValueError unless the children of each level are just the nodes of the next."""
    n_children = np.diff(tree.child)
    if (n_children < 0).any() or n_children.max(initial=0) > MAX_CHUNK:
        raise ValueError(f"a chunk has more than {MAX_CHUNK} children, or fewer than none")
    firsts = tree.child[tree.chunk[tree.level[:-1]]]
    if not np.array_equal(firsts, tree.level[1:]):
        raise ValueError("the children of a level are not the nodes of the next")
    weights_before = tree.start[tree.row]
    largest = np.zeros(len(n_children), np.int64)
    filled = np.flatnonzero(np.diff(weights_before))
    if len(filled):
        largest[filled] = np.maximum.reduceat(tree.offset, weights_before[filled])
    if (largest[filled] >= n_children[filled]).any():
        raise ValueError("a weight belongs to a child that its chunk does not have")


@njit(nogil=True, cache=True, inline="always")
def _log_probability(margin: np.float32, power: int) -> np.float32:
    """Turn a margin into the logarithm of a probability: e^(−max(0, 1 − m)^power), or σ(m)."""
    if power == 0:
        return np.float32(min(margin, 0) - np.log1p(np.exp(-abs(margin))))
    gap = max(np.float32(1) - margin, np.float32(0))
    product = gap
    for _ in range(power - 1):
        product *= gap
    return -product


@njit(nogil=True, cache=True)
def _keep_best(
    margins: NDArray[np.float32],
    first: int,
    above: np.float32,
    power: int,
    nodes: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """Put the nodes first, first + 1, … into the list of the best.

    `above` is their parent's score; equal scores are ordered by node number.
    """
    last = len(nodes) - 1
    for c in range(len(margins)):
        score = above + _log_probability(margins[c], power)
        if score < scores[last]:
            continue
        node, place = first + c, last
        if score == scores[last] and node > nodes[last]:
            continue
        while place > 0 and (
            score > scores[place - 1] or (score == scores[place - 1] and node < nodes[place - 1])
        ):
            nodes[place] = nodes[place - 1]
            scores[place] = scores[place - 1]
            place -= 1
        nodes[place] = node
        scores[place] = score


@njit(nogil=True, cache=True)
def _sum_by_table(
    X: Rows, document: int, tree: TreeWeights, table: NDArray[np.int64], sums: NDArray[np.float32]
) -> None:
    for cell in range(X.start[document], X.start[document + 1]):
        row = table[X.columns[cell]]
        if row >= 0:
            value = X.values[cell]
            for place in range(tree.start[row], tree.start[row + 1]):
                sums[tree.offset[place]] += value * tree.weight[place]


@njit(nogil=True, cache=True)
def _sum_by_search(
    X: Rows, document: int, tree: TreeWeights, chunk: int, sums: NDArray[np.float32]
) -> None:
    low, last = tree.row[chunk], tree.row[chunk + 1]
    for cell in range(X.start[document], X.start[document + 1]):
        feature = X.columns[cell]
        size = last - low
        while size > 0:  # features rise along the document too, so `low` never moves back
            half = size // 2
            if tree.feature[low + half] < feature:
                low += half + 1
                size -= half + 1
            else:
                size = half
        if low == last:
            return
        if tree.feature[low] == feature:
            value = X.values[cell]
            for place in range(tree.start[low], tree.start[low + 1]):
                sums[tree.offset[place]] += value * tree.weight[place]


@njit(nogil=True, cache=True)
def _visits(beam: NDArray[np.int64], first: int, n_nodes: int) -> tuple[NDArray[np.int64], ...]:
    """List by node which places of the flattened beam ask for it."""
    start = np.zeros(n_nodes + 1, np.int64)
    flat = beam.ravel()
    for node in flat:
        if node >= 0:
            start[node - first + 1] += 1
    for i in range(n_nodes):
        start[i + 1] += start[i]
    fill = start[:-1].copy()
    places = np.empty(start[n_nodes], np.int64)
    for place in range(len(flat)):
        if flat[place] >= 0:
            node = flat[place] - first
            places[fill[node]] = place
            fill[node] += 1
    return start, places


@njit(nogil=True, cache=True)
def search(
    X: Rows,
    first: int,
    last: int,
    tree: TreeWeights,
    beam: int,
    k: int,
    power: int,
    table: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the best labels of the documents first ≤ i < last.

    Args:
        X: features, rising within each document.
        first: the first document.
        last: one after the last document.
        tree: the trained tree.
        beam: how many nodes of a level are followed.
        k: how many labels to return.
        power: how margins become probabilities.
        table: -1 for each feature; left that way. Empty: never use the table.

    Returns:
        Labels (n, k), -1 where there are fewer, and the logarithms of their probabilities.
    """
    n = last - first
    depth = len(tree.level) - 2
    nodes = np.zeros((n, 1), np.int64)
    scores = np.zeros((n, 1), np.float32)
    sums = np.zeros(np.diff(tree.child).max(), np.float32)
    for level in range(depth):
        base, n_nodes = tree.level[level], tree.level[level + 1] - tree.level[level]
        width = k if level == depth - 1 else beam
        width = min(width, tree.level[level + 2] - tree.level[level + 1])
        best = np.full((n, width), -1, np.int64)
        best_scores = np.full((n, width), np.float32(-np.inf))
        start, places = _visits(nodes, base, n_nodes)
        for node in range(n_nodes):
            if start[node] == start[node + 1]:
                continue
            for chunk in range(tree.chunk[base + node], tree.chunk[base + node + 1]):
                n_rows = tree.row[chunk + 1] - tree.row[chunk]
                use_table = len(table) > 0 and (start[node + 1] - start[node]) * 64 > n_rows
                if use_table:
                    for row in range(tree.row[chunk], tree.row[chunk + 1]):
                        table[tree.feature[row]] = row
                for visit in range(start[node], start[node + 1]):
                    i, slot = divmod(places[visit], nodes.shape[1])
                    n_children = tree.child[chunk + 1] - tree.child[chunk]
                    for c in range(n_children):
                        sums[c] = tree.bias[tree.child[chunk] + c]
                    if use_table:
                        _sum_by_table(X, first + i, tree, table, sums)
                    else:
                        _sum_by_search(X, first + i, tree, chunk, sums)
                    _keep_best(
                        sums[:n_children],
                        tree.child[chunk],
                        scores[i, slot],
                        power,
                        best[i],
                        best_scores[i],
                    )
                if use_table:
                    for row in range(tree.row[chunk], tree.row[chunk + 1]):
                        table[tree.feature[row]] = -1
        nodes, scores = best, best_scores
    labels = np.full((n, nodes.shape[1]), -1, np.int32)
    for i in range(n):
        for slot in range(nodes.shape[1]):
            if nodes[i, slot] >= 0:
                labels[i, slot] = tree.leaves[nodes[i, slot] - tree.level[depth]]
    return labels, scores
