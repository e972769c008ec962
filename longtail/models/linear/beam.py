"""Beam search through a tree of trained linear classifiers, for one document or many.

All nodes of a tree are numbered through, level by level, the root being 0. The weights lie in
rows: a row holds, for one feature and one node, the weights of that feature for the node's
children. The rows of a feature stand together, ordered by node, so that a document touches one
place in memory for each of its features and finds there what every node of its beam needs.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.models.linear.solver import NodeWeights
from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows
from longtail.runtime.schema import Schema, Sizes, floats, indices, permutation, starts
from longtail.runtime.store import Files

# Looking a node up by halving costs about as much as passing so many rows one by one.
STEPS_OF_A_SEARCH = 12
LEAST_LOG = np.float32(-1e30)  # of a probability; finite, whatever weights and values there are


class TreeWeights(NamedTuple):
    """A trained tree.

    Attributes:
        level: (depth + 2,) the first node of each level; the last entry is the number of nodes.
        child: (n_inner + 1,) the first child of each node that has children.
        row: (n_features + 1,) the first row of each feature.
        node: (n_rows,) the node whose children a row is about, rising for each feature.
        start: (n_rows + 1,) the first weight of each row.
        offset: (n_weights,) the child that a weight belongs to, counted from the node's first.
        weight: (n_weights,) the weights.
        bias: (n_nodes,) what each node's classifier adds to every document's sum.
        leaves: (n_labels,) the label of each node of the last level.
    """

    level: NDArray[np.int64]
    child: NDArray[np.int64]
    row: NDArray[np.int64]
    node: NDArray[np.int32]
    start: NDArray[np.int64] | NDArray[np.int32]
    offset: NDArray[np.uint16] | NDArray[np.uint32]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    leaves: NDArray[np.int32]


def describe_tree(name: str) -> Schema:
    """Return the schema of a tree's arrays."""
    n_nodes, n_inner, n_rows = f"{name}.n_nodes", f"{name}.n_inner", f"{name}.n_rows"
    n_weights = f"{name}.n_weights"
    arrays = {
        "bias": floats(n_nodes),
        "level": starts(f"{name}.n_levels", of=n_nodes, empty_parts=False),
        "child": starts(n_inner, of=n_nodes, first=1, empty_parts=False),
        "leaves": permutation("n_labels"),
        "node": indices(n_rows, into=n_inner),
        "row": starts("n_features", of=n_rows),
        "weight": floats(n_weights, empty=True),
        "start": starts(n_rows, of=n_weights, dtypes=(np.int32, np.int64)),
        "offset": indices(n_weights, into=n_nodes, dtypes=(np.uint16, np.uint32)),
    }
    named = {f"{name}.{field}": array for field, array in arrays.items()}
    return Schema(arrays=named, rules=[partial(_check_nodes, name)])


def _check_nodes(name: str, files: Files, sizes: Sizes) -> None:
    """Raise ValueError unless all nodes have their children, and all weights their child."""
    tree = TreeWeights(*(files.arrays[f"{name}.{field}"] for field in TreeWeights._fields))
    n_inner = len(tree.child) - 1
    if len(tree.level) < 3 or tree.level[1] != 1 or tree.level[-2] != n_inner:
        raise ValueError(f"the levels of {name} do not begin with a root, or not end with labels")
    if len(tree.leaves) != len(tree.bias) - n_inner:
        raise ValueError(f"the last level of {name} does not have a node for every label")
    if not np.array_equal(tree.child[tree.level[:-1]], tree.level[1:]):
        raise ValueError(f"the children of a level of {name} are not the nodes of the next")
    is_first = np.zeros(len(tree.node) + 1, np.bool_)
    is_first[tree.row] = True  # of a feature
    if ((tree.node[1:] <= tree.node[:-1]) & ~is_first[1:-1]).any():
        raise ValueError(f"the nodes of a feature of {name} do not rise")
    n_children = np.diff(tree.child)[tree.node]
    if (tree.offset >= np.repeat(n_children, np.diff(tree.start))).any():
        raise ValueError(f"a weight of {name} belongs to a child that its node does not have")


def empty_weights(
    level: NDArray[np.int64],
    child: NDArray[np.int64],
    bias: NDArray[np.float32],
    leaves: NDArray[np.int32],
    n_rows: NDArray[np.int64],
    n_weights: NDArray[np.int64],
) -> TreeWeights:
    """Return a tree with room for so many rows and weights of each feature."""
    row = np.concatenate(([0], np.cumsum(n_rows)))
    total = int(n_weights.sum())
    n_starts = int(row[-1]) + 1
    start = np.zeros(n_starts, np.int32) if total < 2**31 else np.zeros(n_starts, np.int64)
    start[-1] = total
    small = np.diff(child).max() <= 2**16
    offset = np.empty(total, np.uint16) if small else np.empty(total, np.uint32)
    weight = np.empty(total, np.float32)
    node = np.empty(row[-1], np.int32)
    return TreeWeights(level, child, row, node, start, offset, weight, bias, leaves)


@njit(nogil=True, cache=True)
def count_rows(
    block: NodeWeights,
    node: int,
    last_node: NDArray[np.int32],
    n_rows: NDArray[np.int64],
    n_weights: NDArray[np.int64],
) -> None:
    """Count what `block` adds to each feature; all blocks of a node come one after the other."""
    for i in range(len(block.features)):
        feature = block.features[i]
        n_rows[feature] += last_node[feature] != node
        last_node[feature] = node
        n_weights[feature] += block.start[i + 1] - block.start[i]


@njit(nogil=True, cache=True)
def place_rows(
    block: NodeWeights,
    node: int,
    first: int,
    last_node: NDArray[np.int32],
    next_row: NDArray[np.int64],
    next_weight: NDArray[np.int64],
    tree: TreeWeights,
) -> None:
    """Copy `block`, whose children begin at the node's child `first`, into `tree`."""
    for i in range(len(block.features)):
        feature = block.features[i]
        if last_node[feature] != node:
            last_node[feature] = node
            tree.node[next_row[feature]] = node
            tree.start[next_row[feature]] = next_weight[feature]
            next_row[feature] += 1
        for place in range(block.start[i], block.start[i + 1]):
            tree.offset[next_weight[feature]] = first + block.children[place]
            tree.weight[next_weight[feature]] = block.weights[place]
            next_weight[feature] += 1


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
        if not score > LEAST_LOG:  # nor NaN: a node without a score would never be listed
            score = LEAST_LOG
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


@njit(nogil=True, cache=True, inline="always")
def _add_row(
    tree: TreeWeights, row: int, value: np.float32, first: int, sums: NDArray[np.float32]
) -> None:
    """Add a feature's share to the sums of one node's children, which begin at `first`."""
    for place in range(tree.start[row], tree.start[row + 1]):
        sums[first + tree.offset[place]] += value * tree.weight[place]


@njit(nogil=True, cache=True)
def _add_feature(
    tree: TreeWeights,
    feature: int,
    value: np.float32,
    beam: NDArray[np.int64],
    first: NDArray[np.int64],
    sums: NDArray[np.float32],
) -> None:
    """Add a feature's share to the sums of the children of all nodes in the sorted `beam`."""
    row, end = tree.row[feature], tree.row[feature + 1]
    for slot in range(len(beam)):
        node = beam[slot]
        if (end - row) > STEPS_OF_A_SEARCH * (len(beam) - slot):
            size = end - row
            while size > 0:
                half = size // 2
                if tree.node[row + half] < node:
                    row += half + 1
                    size -= half + 1
                else:
                    size = half
        else:
            while row < end and tree.node[row] < node:
                row += 1
        if row == end:
            return
        if tree.node[row] == node:
            _add_row(tree, row, value, first[slot], sums)
            row += 1


@njit(nogil=True, cache=True)
def search(
    X: Rows, first: int, last: int, tree: TreeWeights, beam: int, k: int, power: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the best labels of the documents first ≤ i < last.

    Args:
        X: the documents' features.
        first: the first document.
        last: one after the last document.
        tree: the trained tree.
        beam: how many nodes of a level are followed.
        k: how many labels to return.
        power: how margins become probabilities.

    Returns:
        Labels (n, k), -1 where there are fewer, and the logarithms of their probabilities.
    """
    depth = len(tree.level) - 2
    n_leaves = tree.level[depth + 1] - tree.level[depth]
    labels = np.full((last - first, min(k, n_leaves)), -1, np.int32)
    logs = np.full(labels.shape, np.float32(-np.inf))
    for i in range(last - first):
        nodes, scores = np.zeros(1, np.int64), np.zeros(1, np.float32)
        for level in range(depth):
            width = labels.shape[1] if level == depth - 1 else beam
            width = min(width, tree.level[level + 2] - tree.level[level + 1])
            nodes, scores = _step(X, first + i, tree, nodes, scores, width, power)
        for place in range(len(nodes)):
            labels[i, place] = tree.leaves[nodes[place] - tree.level[depth]]
            logs[i, place] = scores[place]
    return labels, logs


@njit(nogil=True, cache=True)
def _step(
    X: Rows,
    document: int,
    tree: TreeWeights,
    nodes: NDArray[np.int64],
    scores: NDArray[np.float32],
    width: int,
    power: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the `width` best children of `nodes`, or all where there are fewer."""
    order = np.argsort(nodes)
    beam = nodes[order]
    first = np.zeros(len(beam) + 1, np.int64)
    for slot in range(len(beam)):
        first[slot + 1] = first[slot] + tree.child[beam[slot] + 1] - tree.child[beam[slot]]
    sums = np.empty(first[len(beam)], np.float32)
    for slot in range(len(beam)):
        for c in range(first[slot + 1] - first[slot]):
            sums[first[slot] + c] = tree.bias[tree.child[beam[slot]] + c]
    for cell in range(X.start[document], X.start[document + 1]):
        _add_feature(tree, X.columns[cell], X.values[cell], beam, first, sums)
    width = min(width, len(sums))
    best, best_scores = np.full(width, -1, np.int64), np.full(width, np.float32(-np.inf))
    for slot in range(len(beam)):
        own = sums[first[slot] : first[slot + 1]]
        above = scores[order[slot]]
        _keep_best(own, tree.child[beam[slot]], above, power, best, best_scores)
    return best, best_scores
