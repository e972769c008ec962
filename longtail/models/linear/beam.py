"""Beam search through a tree of trained linear classifiers, for one document or many.

Labels that are given get the score of their path by the same sums, whether a beam finds it or not.

All nodes of a tree are numbered through, level by level, the root being 0. The weights lie in
rows: a row holds, for one feature and one node, the weights of that feature for the node's
children. The rows of a feature stand together, ordered by node, so that a document touches one
place in memory for each of its features and finds there what every node of its beam needs.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.models.linear.solver import NodeWeights
from longtail.runtime.compiled import njit
from longtail.runtime.mapped import room
from longtail.runtime.rows import Rows

# Looking a node up by halving costs about as much as passing so many rows one by one.
STEPS_OF_A_SEARCH = 12
DOUBT = np.float32(2e-5)  # too little to change a probability that is shown
LEAST_LOG = np.float32(-1e30)  # of a probability; finite, whatever weights and values there are
UNKNOWN = np.float32(1)  # in place of a logarithm, which is never above 0


class TreeWeights(NamedTuple):
    """A trained tree.

    Attributes:
        level: (depth + 2,) the first node of each level; the last entry is the number of nodes.
        child: (n_inner + 1,) the first child of each node that has children.
        row: (n_features + 1,) the first row of each feature.
        node: (n_rows,) the node whose children a row is about, rising for each feature.
        start: (n_rows + 1,) the first weight of each row.
        offset: (n_weights,) the child that a weight belongs to, counted from the node's first.
        code: (n_weights,) the weights, from −127 to 127, in units of their classifier.
        unit: (n_nodes,) 1/127 of each classifier's largest weight; 0 where it has none.
        bias: (n_nodes,) what each node's classifier adds to every document's sum.
        leaves: (n_labels,) the label of each node of the last level.
    """

    level: NDArray[np.int64]
    child: NDArray[np.int64]
    row: NDArray[np.int64]
    node: NDArray[np.uint16] | NDArray[np.uint32]
    start: NDArray[np.int64] | NDArray[np.int32]
    offset: NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]
    code: NDArray[np.int8]
    unit: NDArray[np.float32]
    bias: NDArray[np.float32]
    leaves: NDArray[np.int32]

    def frozen(self) -> "TreeWeights":
        """Let nobody write to the arrays, as if they lay in files; code is compiled once for both.

        Otherwise the first prediction of a model that was just trained would compile it again.
        """
        for array in self:
            array.setflags(write=False)
        return self


def check_tree(name: str, tree: TreeWeights) -> None:
    """Raise ValueError unless all nodes have their children, and all weights their child."""
    n_inner = len(tree.child) - 1
    if len(tree.level) < 3 or tree.level[1] != 1 or tree.level[-2] != n_inner:
        raise ValueError(f"the levels of {name} do not begin with a root, or not end with labels")
    if len(tree.leaves) != len(tree.bias) - n_inner:
        raise ValueError(f"the last level of {name} does not have a node for every label")
    if not np.array_equal(tree.child[tree.level[:-1]], tree.level[1:]):
        raise ValueError(f"the children of a level of {name} are not the nodes of the next")
    if not _do_rise(tree.node, tree.row):
        raise ValueError(f"the nodes of a feature of {name} do not rise")
    if not _have_children(tree):
        raise ValueError(f"a weight of {name} belongs to a child that its node does not have")


@njit(nogil=True, cache=True)
def _do_rise(node: NDArray[Any], row: NDArray[np.int64]) -> bool:
    """Whether the nodes of each feature rise."""
    for feature in range(len(row) - 1):
        for place in range(row[feature] + 1, row[feature + 1]):
            if node[place] <= node[place - 1]:
                return False
    return True


@njit(nogil=True, cache=True)
def _have_children(tree: TreeWeights) -> bool:
    """Whether every weight belongs to a child that its node has."""
    for row in range(len(tree.node)):
        n_children = tree.child[tree.node[row] + 1] - tree.child[tree.node[row]]
        for place in range(tree.start[row], tree.start[row + 1]):
            if tree.offset[place] >= n_children:
                return False
    return True


def node_type(child: NDArray[np.int64]) -> type[np.unsignedinteger[Any]]:
    """Return the least type for the nodes that have these children."""
    return np.uint16 if len(child) <= 2**16 else np.uint32


def offset_type(child: NDArray[np.int64]) -> type[np.unsignedinteger[Any]]:
    """Return the least type for offsets of these children."""
    most = np.diff(child).max() - 1
    return next(kind for kind in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(kind).max)


def start_type(n_weights: int) -> type[np.signedinteger[Any]]:
    """Return the type for the places of so many weights."""
    return np.int32 if n_weights < 2**31 else np.int64


def empty_weights(
    level: NDArray[np.int64],
    child: NDArray[np.int64],
    unit: NDArray[np.float32],
    bias: NDArray[np.float32],
    leaves: NDArray[np.int32],
    n_rows: NDArray[np.int64],
    n_weights: NDArray[np.int64],
    *,
    in_files: bool = False,
) -> TreeWeights:
    """Return a tree with room for so many rows and weights of each feature."""
    row = np.concatenate(([0], np.cumsum(n_rows)))
    total = int(n_weights.sum())
    n_starts = int(row[-1]) + 1
    start = room(n_starts, start_type(total), in_file=in_files)
    start[-1] = total
    offset = room(total, offset_type(child), in_file=in_files)
    code = room(total, np.int8, in_file=in_files)
    node = room(int(row[-1]), node_type(child), in_file=in_files)
    return TreeWeights(level, child, row, node, start, offset, code, unit, bias, leaves)


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
            offset = first + block.children[place]
            unit = tree.unit[tree.child[node] + offset]
            weight = np.float32(0) if unit == 0 else np.rint(block.weights[place] / unit)
            tree.offset[next_weight[feature]] = offset
            tree.code[next_weight[feature]] = np.int8(weight)
            next_weight[feature] += 1


@njit(nogil=True, cache=True, inline="always")
def _log_probability(margin: np.float32, power: int) -> np.float32:
    """Turn a margin into the logarithm of a probability: e^(−max(0, 1 − m)^power), or σ(m).

    A little doubt, which falls with the margin, orders margins above 1: all would be sure.
    """
    if power == 0:
        return np.float32(min(margin, 0) - np.log1p(np.exp(-abs(margin))))
    gap = max(np.float32(1) - margin, np.float32(0))
    product = gap
    for _ in range(power - 1):
        product *= gap
    return -product - DOUBT / (np.float32(1) + max(margin, np.float32(0)))


@njit(nogil=True, cache=True, inline="always")
def _go_down(above: np.float32, margin: np.float32, power: int) -> np.float32:
    """Return the score of a node whose parent has the score `above`."""
    score = above + _log_probability(margin, power)
    # nor NaN: a node without a score would never be listed
    return score if score > LEAST_LOG else LEAST_LOG


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
        score = _go_down(above, margins[c], power)
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
        sums[first + tree.offset[place]] += value * np.float32(tree.code[place])


@njit(nogil=True, cache=True)
def _add_feature(
    tree: TreeWeights,
    feature: int,
    value: np.float32,
    beam: NDArray[np.int64],
    first: NDArray[np.int64],
    sums: NDArray[np.float32],
) -> None:
    """Add a feature's share to the sums, in units, of all children of the sorted `beam`."""
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
    labels, logs, _ = walk(X, first, last, tree, beam, k, power)
    return labels, logs


class Reached(NamedTuple):
    """The nodes that a search has followed, and the margins of all their children.

    Attributes:
        nodes: (n, depth, beam) the nodes of each level, −1 where there are fewer.
        first: (n, depth, beam) where the margins of the children of each begin.
        margins: those of all documents, in a row.
    """

    nodes: NDArray[np.int64]
    first: NDArray[np.int64]
    margins: NDArray[np.float32]


@njit(nogil=True, cache=True)
def walk(
    X: Rows, first: int, last: int, tree: TreeWeights, beam: int, k: int, power: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], Reached]:
    """Do as `search` does; also return what was reached, for labels that are asked about later."""
    depth = len(tree.level) - 2
    n, n_leaves = last - first, tree.level[depth + 1] - tree.level[depth]
    labels = np.full((n, min(k, n_leaves)), -1, np.int32)
    logs = np.full(labels.shape, np.float32(-np.inf))
    beam = min(beam, max(1, tree.level[depth]))  # a stranger's model may ask for any number
    followed, begins = np.full((n, depth, beam), -1, np.int64), np.zeros((n, depth, beam), np.int64)
    margins, size = np.empty(0, np.float32), 0
    for i in range(n):
        nodes, scores = np.zeros(1, np.int64), np.zeros(1, np.float32)
        for level in range(depth):
            width = labels.shape[1] if level == depth - 1 else beam
            width = min(width, tree.level[level + 2] - tree.level[level + 1])
            order = np.argsort(nodes)
            nodes, scores = nodes[order], scores[order]
            start, sums = _sum_children(X, first + i, tree, nodes)
            if size + len(sums) > len(margins):
                more = np.empty(size + n * len(sums), np.float32)
                margins = np.concatenate((margins[:size], more))
            margins[size : size + len(sums)] = sums
            for slot in range(len(nodes)):
                followed[i, level, slot], begins[i, level, slot] = nodes[slot], size + start[slot]
            size += len(sums)
            nodes, scores = _best_children(tree, nodes, scores, start, sums, width, power)
        for place in range(len(nodes)):
            labels[i, place] = tree.leaves[nodes[place] - tree.level[depth]]
            logs[i, place] = scores[place]
    return labels, logs, Reached(followed, begins, margins[:size])


@njit(nogil=True, cache=True)
def _sum_children(
    X: Rows, document: int, tree: TreeWeights, beam: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the sums of all children of the sorted `beam`, and where those of each node begin."""
    if not len(beam):
        return np.zeros(1, np.int64), np.empty(0, np.float32)
    first = np.zeros(len(beam) + 1, np.int64)
    for slot in range(len(beam)):
        first[slot + 1] = first[slot] + tree.child[beam[slot] + 1] - tree.child[beam[slot]]
    sums = np.zeros(first[len(beam)], np.float32)
    for cell in range(X.start[document], X.start[document + 1]):
        _add_feature(tree, X.columns[cell], X.values[cell], beam, first, sums)
    for slot in range(len(beam)):
        for c in range(first[slot + 1] - first[slot]):
            child = tree.child[beam[slot]] + c
            sums[first[slot] + c] = tree.bias[child] + tree.unit[child] * sums[first[slot] + c]
    return first, sums


@njit(nogil=True, cache=True)
def _best_children(
    tree: TreeWeights,
    nodes: NDArray[np.int64],
    scores: NDArray[np.float32],
    first: NDArray[np.int64],
    sums: NDArray[np.float32],
    width: int,
    power: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the `width` best children of `nodes`, or all where there are fewer."""
    width = min(width, len(sums))
    best, best_scores = np.full(width, -1, np.int64), np.full(width, np.float32(-np.inf))
    for slot in range(len(nodes)):
        own = sums[first[slot] : first[slot + 1]]
        _keep_best(own, tree.child[nodes[slot]], scores[slot], power, best, best_scores)
    return best, best_scores


NOTHING_REACHED = Reached(
    np.empty((0, 1, 1), np.int64), np.empty((0, 1, 1), np.int64), np.empty(0, np.float32)
)


class Paths(NamedTuple):
    """The way from the labels of a tree to its root.

    Attributes:
        leaf: (n_labels,) the node of each label.
        parent: (n_nodes,) the parent of each node, −1 for the root.
    """

    leaf: NDArray[np.int64]
    parent: NDArray[np.int64]


def find_paths(tree: TreeWeights) -> Paths:
    """Return the paths of a tree."""
    leaf = np.empty(len(tree.leaves), np.int64)
    leaf[tree.leaves] = np.arange(len(tree.leaves)) + tree.level[-2]
    n_inner = len(tree.child) - 1
    return Paths(leaf, np.concatenate(([-1], np.repeat(np.arange(n_inner), np.diff(tree.child)))))


@njit(nogil=True, cache=True)
def score_paths(
    X: Rows,
    first: int,
    tree: TreeWeights,
    paths: Paths,
    labels: NDArray[np.int32],
    logs: NDArray[np.float32],
    power: int,
    reached: Reached,
) -> None:
    """Write the logarithms of the probabilities of labels whose place in `logs` holds `UNKNOWN`.

    Args:
        X: the documents' features.
        first: the document of the first row of `labels`.
        tree: the trained tree.
        paths: of the tree.
        labels: (n, c) labels of each document; −1 is none, and left alone.
        logs: (n, c) what is known already.
        power: how margins become probabilities.
        reached: what a search for these documents has reached; nothing of no documents.
    """
    depth = len(tree.level) - 2
    path = np.empty((depth + 1, labels.shape[1]), np.int64)  # of each label, from the root
    at = np.empty(labels.shape[1], np.int64)  # where the margins of a node's children begin
    for i in range(len(labels)):
        asked = np.flatnonzero((labels[i] >= 0) & (logs[i] == UNKNOWN))
        if not len(asked):
            continue
        for j in range(len(asked)):
            path[depth, j] = paths.leaf[labels[i, asked[j]]]
            for level in range(depth, 0, -1):
                path[level - 1, j] = paths.parent[path[level, j]]
        scores = np.zeros(len(asked), np.float32)
        for level in range(depth):
            nodes = path[level, : len(asked)]
            _find_reached(reached, i, level, nodes, at)
            others = _sort_unique(nodes[at[: len(asked)] < 0])
            start, sums = _sum_children(X, first + i, tree, others)
            for j in range(len(asked)):
                child = path[level + 1, j] - tree.child[nodes[j]]
                if at[j] >= 0:
                    margin = reached.margins[at[j] + child]
                else:
                    margin = sums[start[np.searchsorted(others, nodes[j])] + child]
                scores[j] = _go_down(scores[j], margin, power)
        logs[i, asked] = scores


@njit(nogil=True, cache=True)
def _find_reached(
    reached: Reached, i: int, level: int, nodes: NDArray[np.int64], at: NDArray[np.int64]
) -> None:
    """Write where the margins of the children of each node begin; −1 if it was not reached."""
    for j in range(len(nodes)):
        at[j] = -1
        if i < len(reached.nodes):
            for slot in range(reached.nodes.shape[2]):
                if reached.nodes[i, level, slot] == nodes[j]:
                    at[j] = reached.first[i, level, slot]
                    break


@njit(nogil=True, cache=True)
def weigh_cells(
    X: Rows, document: int, tree: TreeWeights, paths: Paths, label: int
) -> NDArray[np.float32]:
    """Return (depth, n_cells) what the cells of a document add to the margins on a label's path."""
    depth = len(tree.level) - 2
    first, last = X.start[document], X.start[document + 1]
    added = np.zeros((depth, last - first), np.float32)
    node = paths.leaf[label]
    for level in range(depth - 1, -1, -1):
        beam = np.array([paths.parent[node]])
        children = np.array([0, tree.child[beam[0] + 1] - tree.child[beam[0]]])
        for cell in range(first, last):
            sums = np.zeros(children[1], np.float32)
            _add_feature(tree, X.columns[cell], X.values[cell], beam, children, sums)
            added[level, cell - first] = tree.unit[node] * sums[node - tree.child[beam[0]]]
        node = beam[0]
    return added


@njit(nogil=True, cache=True)
def _sort_unique(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nodes in rising order, each once."""
    ordered = np.sort(nodes)
    n = 0
    for node in ordered:
        if n == 0 or ordered[n - 1] != node:
            ordered[n] = node
            n += 1
    return ordered[:n]


@njit(nogil=True, cache=True)
def unite(
    labels: NDArray[np.int32], logs: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the labels that any tree has found, and what each tree knows of them.

    Args:
        labels: (n_trees, n, width) what each tree has found; −1 is none.
        logs: (n_trees, n, width) the logarithms of their probabilities there.

    Returns:
        Labels (n, c), each once, −1 behind; logs (n_trees, n, c), `UNKNOWN` where a tree has not
        found the label.
    """
    n_trees, n, width = labels.shape
    united = np.full((n, n_trees * width), -1, np.int32)
    known = np.full((n_trees, n, n_trees * width), UNKNOWN)
    for i in range(n):
        size = 0
        for tree in range(n_trees):
            for place in range(width):
                label = labels[tree, i, place]
                if label < 0:
                    continue
                at = 0
                while at < size and united[i, at] != label:
                    at += 1
                united[i, at] = label
                known[tree, i, at] = logs[tree, i, place]
                size += at == size
    return united, known


@njit(nogil=True, cache=True)
def mean_probabilities(labels: NDArray[np.int32], logs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean (n, c) of e^log over the trees (n_trees, n, c); 0 where there is no label."""
    means = np.zeros(labels.shape, np.float32)
    for i in range(labels.shape[0]):
        for j in range(labels.shape[1]):
            if labels[i, j] >= 0:
                total = np.float32(0)
                for tree in range(len(logs)):
                    total += np.exp(logs[tree, i, j])
                means[i, j] = total / np.float32(len(logs))
    return means


@njit(nogil=True, cache=True)
def pick_best(
    labels: NDArray[np.int32], scores: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the k labels of each row with the highest scores; of equal ones the first."""
    best = np.full((len(labels), k), -1, np.int32)
    found = np.zeros((len(labels), k), np.float32)
    for i in range(len(labels)):
        left = np.where(labels[i] >= 0, scores[i], np.float32(-1))
        for rank in range(min(k, len(left))):
            top = np.argmax(left)
            if left[top] < 0:
                break
            best[i, rank], found[i, rank] = labels[i, top], left[top]
            left[top] = -1
    return best, found
