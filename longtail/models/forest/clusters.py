"""Growing a tree whose nodes ask which of a few clusters of documents a document resembles most.

    y_d     the labels of document d as a vector of length 1, as in `growing`
    C       (n_labels, k) the centres of k clusters of label vectors
    Z       (n_features, k) the mean features of the documents of each cluster

At a node, documents with similar labels are put together by spherical k-means over their label
vectors, which begins with documents that differ (k-means++). A cluster is then known by the mean
features of its documents, and each document goes to the cluster whose mean is the most similar
to it, as a new one will: not all to those that their labels would say. What a tree is grown on are
rows of length 1 after each feature was weighed by how rare it is, and each tree sees some of the
features alone, so that trees differ.

Siblini, Kuntz and Meyer, "CRAFTML, an Efficient Clustering-based Random Forest for Extreme
Multi-label Learning", ICML 2018. There, features and labels are projected at random; here, features
are left out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.models.forest.growing import DEEPEST, Exact, Floats, Ids, State, draw_share
from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows
from longtail.search.voters import Carried

Starts = NDArray[np.int64]

ROUNDS = 3  # of k-means
DRAWN = 2000  # documents of a node, from which its clusters begin
FAR = 1e-6  # least distance of a document that begins a cluster
CODES = np.float32(127)  # a mean has so many steps between 0 and its largest value
LEAST_CODE = np.float32(8)  # steps; features of a mean that count less are left out


class ClusterTree(NamedTuple):
    """A tree whose branches stand in preorder: a branch, all that is below it, then the next.

    Attributes:
        below: (n_branches,) how many leaves are below each; 1 is a leaf.
        spans: (n_branches,) how many branches there are from it to the next one beside it.
        start: (n_branches + 1,) where the features of each branch begin.
        columns: which features a document should have to go there.
        values: what each of them counts.
        sizes: (n_leaves,) how many documents each leaf has, in order.
        documents: those of all leaves.
    """

    below: Ids
    spans: Ids
    start: Starts
    columns: Ids
    values: Floats
    sizes: Ids
    documents: Ids


class Scratch(NamedTuple):
    """Room for what a node computes; `centres`, `means` and the marks are zero between nodes."""

    centres: Floats
    sums: Floats
    labels: Ids
    has_label: NDArray[np.bool_]
    means: Floats
    features: Ids
    has_feature: NDArray[np.bool_]
    cluster: Ids
    distance: Exact


@njit(nogil=True, cache=True)
def _make_scratch(n_features: int, n_labels: int, n_documents: int, k: int) -> Scratch:
    return Scratch(
        np.zeros((n_labels, k), np.float32),
        np.zeros((n_labels, k), np.float32),
        np.empty(n_labels, np.int32),
        np.zeros(n_labels, np.bool_),
        np.zeros((n_features, k), np.float32),
        np.empty(n_features, np.int32),
        np.zeros(n_features, np.bool_),
        np.empty(n_documents, np.int32),
        np.empty(n_documents, np.float64),
    )


@njit(nogil=True, cache=True)
def weigh_features(X: Rows, n_features: int) -> tuple[Floats, Exact]:
    """Return how rare each feature is, and 1 over each row's length when weighed by it."""
    n = len(X.start) - 1
    held, lengths = np.zeros(n_features), np.ones(n)
    for cell in range(X.start[0], X.start[n]):
        held[X.columns[cell]] += X.values[cell] != 0
    rarity = np.log1p(n / np.maximum(held, 1.0)).astype(np.float32)
    for d in range(n):
        square = 0.0
        for cell in range(X.start[d], X.start[d + 1]):
            square += (np.float64(X.values[cell]) * rarity[X.columns[cell]]) ** 2
        if square > 0:
            lengths[d] = 1 / np.sqrt(square)
    return rarity, lengths


# -- clusters of label vectors --------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _mark_labels(Y: Carried, documents: Ids, scratch: Scratch) -> int:
    """List the labels of a node; return how many there are."""
    n = 0
    for d in documents:
        for cell in range(Y.start[d], Y.start[d + 1]):
            label = Y.labels[cell]
            if not scratch.has_label[label]:
                scratch.has_label[label] = True
                scratch.labels[n] = label
                n += 1
    return n


@njit(nogil=True, cache=True)
def _draw_some(documents: Ids, most: int, state: State) -> Ids:
    """Return so many of the documents at most, drawn evenly."""
    drawn = documents.copy()
    n = min(most, len(drawn))
    for i in range(n if n < len(drawn) else 0):
        other = i + int(draw_share(state) * (len(drawn) - i))
        drawn[i], drawn[other] = drawn[other], drawn[i]
    return drawn[:n]


@njit(nogil=True, cache=True)
def _begin_clusters(
    Y: Carried, documents: Ids, weights: Exact, state: State, scratch: Scratch
) -> int:
    """Set the first centres, documents that differ from those before; return how many there are.

    The more a document differs, the rather it is drawn. Where all are the same there are fewer.
    """
    centres, distance = scratch.centres, scratch.distance
    drawn, most = _draw_some(documents, DRAWN, state), len(documents) // 2
    distance[: len(drawn)] = 1.0
    for c in range(min(centres.shape[1], most)):
        total = distance[: len(drawn)].sum()
        if total < FAR * len(drawn):
            return c
        aim, place = draw_share(state) * total, 0
        while place < len(drawn) - 1 and aim >= distance[place]:
            aim -= distance[place]
            place += 1
        d = drawn[place]
        for cell in range(Y.start[d], Y.start[d + 1]):
            centres[Y.labels[cell], c] = weights[d]
        for i in range(len(drawn)):
            d, likeness = drawn[i], 0.0
            for cell in range(Y.start[d], Y.start[d + 1]):
                likeness += weights[d] * centres[Y.labels[cell], c]
            distance[i] = min(distance[i], max(0.0, 1 - likeness))
    return int(min(centres.shape[1], most))


@njit(nogil=True, cache=True)
def _find_largest(values: Floats, alive: NDArray[np.bool_]) -> int:
    """Return the place of the largest value, the first one of several."""
    best = -1
    for c in range(len(values)):
        if alive[c] and (best < 0 or values[c] > values[best]):
            best = c
    return best


@njit(nogil=True, cache=True)
def _cluster_labels(
    Y: Carried, documents: Ids, weights: Exact, n_labels: int, k: int, scratch: Scratch
) -> None:
    """Put documents with similar labels together: `cluster[i]` is that of the i-th."""
    centres, sums, cluster = scratch.centres, scratch.sums, scratch.cluster
    likeness, alive = np.empty(k, np.float32), np.ones(k, np.bool_)
    for _ in range(ROUNDS):
        for i in range(len(documents)):
            d = documents[i]
            likeness[:] = 0
            for cell in range(Y.start[d], Y.start[d + 1]):
                label = Y.labels[cell]
                for c in range(k):
                    likeness[c] += centres[label, c]
            cluster[i] = _find_largest(likeness, alive)
            for cell in range(Y.start[d], Y.start[d + 1]):
                sums[Y.labels[cell], cluster[i]] += np.float32(weights[d])
        for c in range(k):
            square = 0.0
            for label in scratch.labels[:n_labels]:
                square += np.float64(sums[label, c]) ** 2
            scale = np.float32(1 / np.sqrt(square)) if square > 0 else np.float32(0)
            for label in scratch.labels[:n_labels]:
                centres[label, c] = sums[label, c] * scale
                sums[label, c] = 0


# -- what a cluster is known by -------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _find_means(
    X: Rows, documents: Ids, rarity: Floats, lengths: Exact, k: int, scratch: Scratch
) -> int:
    """Set what each feature of the clusters counts; return how many features there are.

    A mean has length 1 before its features are weighed once more, for rows that are not weighed.
    It is rounded as it will be stored, and features that hardly count are left out.
    """
    means, n = scratch.means, 0
    for i in range(len(documents)):
        d, c = documents[i], scratch.cluster[i]
        for cell in range(X.start[d], X.start[d + 1]):
            feature = X.columns[cell]
            if rarity[feature] == 0:
                continue
            if not scratch.has_feature[feature]:
                scratch.has_feature[feature] = True
                scratch.features[n] = feature
                n += 1
            means[feature, c] += np.float32(rarity[feature] * X.values[cell] * lengths[d])
    for c in range(k):
        square, largest = 0.0, np.float32(0)
        for feature in scratch.features[:n]:
            square += np.float64(means[feature, c]) ** 2
            largest = max(largest, abs(means[feature, c] * rarity[feature]))
        if largest == 0:
            continue
        scale = np.float32(1 / np.sqrt(square))
        step = largest * scale / CODES
        for feature in scratch.features[:n]:
            value = means[feature, c] * rarity[feature] * scale
            code = np.float32(np.rint(value / step))
            means[feature, c] = code * step if abs(code) >= LEAST_CODE else np.float32(0)
    return n


@njit(nogil=True, cache=True)
def _assign(
    X: Rows, documents: Ids, alive: NDArray[np.bool_], counts: Ids, scratch: Scratch
) -> None:
    """Send each document to the cluster that it resembles most, of those that are alive."""
    k = len(alive)
    likeness = np.empty(k, np.float32)
    counts[:] = 0
    for i in range(len(documents)):
        d = documents[i]
        likeness[:] = 0
        for cell in range(X.start[d], X.start[d + 1]):
            feature, value = X.columns[cell], X.values[cell]
            for c in range(k):
                likeness[c] += value * scratch.means[feature, c]
        scratch.cluster[i] = _find_largest(likeness, alive)
        counts[scratch.cluster[i]] += 1


@njit(nogil=True, cache=True)
def _assign_all(X: Rows, documents: Ids, min_leaf: int, counts: Ids, scratch: Scratch) -> None:
    """Send documents to clusters of `min_leaf` at least; to none, if fewer than two are left."""
    alive = np.ones(len(counts), np.bool_)
    while True:
        _assign(X, documents, alive, counts, scratch)
        are_enough = counts >= min_leaf
        if (alive == are_enough).all():
            return
        alive = are_enough
        if alive.sum() < 2:
            counts[:] = 0
            return


@njit(nogil=True, cache=True)
def _find_clusters(
    X: Rows,
    Y: Carried,
    documents: Ids,
    weights: Exact,
    rarity: Floats,
    lengths: Exact,
    min_leaf: int,
    state: State,
    scratch: Scratch,
) -> tuple[Ids, int]:
    """Return how many documents go to each cluster, and how many features these are known by.

    Means are left in `scratch`, to be stored and cleared.
    """
    n_labels = _mark_labels(Y, documents, scratch)
    k = _begin_clusters(Y, documents, weights, state, scratch)
    counts, n_features = np.zeros(max(k, 1), np.int32), 0
    if k > 1:
        _cluster_labels(Y, documents, weights, n_labels, k, scratch)
        n_features = _find_means(X, documents, rarity, lengths, k, scratch)
        _assign_all(X, documents, min_leaf, counts, scratch)
    for label in scratch.labels[:n_labels]:
        scratch.has_label[label] = False
        scratch.centres[label, :] = 0
    return counts, n_features


@njit(nogil=True, cache=True)
def _divide(documents: Ids, counts: Ids, scratch: Scratch) -> None:
    """Put the documents of each cluster together, in their order."""
    at, aside = np.empty(len(counts), np.int64), documents.copy()
    first = 0
    for c in range(len(counts)):
        at[c] = first
        first += counts[c]
    for i in range(len(aside)):
        c = scratch.cluster[i]
        documents[at[c]] = aside[i]
        at[c] += 1


# -- the whole tree -------------------------------------------------------------------------------


class Branches(NamedTuple):
    """Branches in the order in which they were found, and room for more.

    Attributes:
        parents: the branch that each begins at; -1 is the root.
        is_leaf: whether nothing is below it.
        begins, ends: where its features are.
    """

    parents: Ids
    is_leaf: NDArray[np.bool_]
    begins: Starts
    ends: Starts


@njit(nogil=True, cache=True)
def _store_mean(
    c: int, n_features: int, scratch: Scratch, columns: Ids, values: Floats, at: int
) -> tuple[Ids, Floats, int]:
    """Add the mean of a cluster behind others; return the arrays, and where they end."""
    while at + n_features > len(columns):
        columns = np.concatenate((columns, np.empty_like(columns)))
        values = np.concatenate((values, np.empty_like(values)))
    for feature in scratch.features[:n_features]:
        if scratch.means[feature, c] != 0:
            columns[at], values[at] = feature, scratch.means[feature, c]
            at += 1
    return columns, values, at


@njit(nogil=True, cache=True)
def _build_tree(
    branches: Branches, n: int, columns: Ids, values: Floats, sizes: Ids, documents: Ids
) -> ClusterTree:
    """Count what is below each of n branches, and put their features in their order."""
    below, spans = np.zeros(n, np.int32), np.ones(n, np.int32)
    for branch in range(n - 1, -1, -1):
        below[branch] += branches.is_leaf[branch]
        parent = branches.parents[branch]
        if parent >= 0:
            below[parent] += below[branch]
            spans[parent] += spans[branch]
    start = np.zeros(n + 1, np.int64)
    start[1:] = np.cumsum(branches.ends[:n] - branches.begins[:n])
    own_columns, own_values = np.empty(start[-1], np.int32), np.empty(start[-1], np.float32)
    for branch in range(n):
        begin, end = branches.begins[branch], branches.ends[branch]
        own_columns[start[branch] : start[branch + 1]] = columns[begin:end]
        own_values[start[branch] : start[branch + 1]] = values[begin:end]
    return ClusterTree(below, spans, start, own_columns, own_values, sizes, documents)


@njit(nogil=True, cache=True)
def grow_clusters(
    X: Rows,
    Y: Carried,
    drawn: Ids,
    rarity: Floats,
    lengths: Exact,
    weights: Exact,
    min_split: int,
    min_leaf: int,
    branching: int,
    seed: int,
) -> ClusterTree:
    """Grow a tree.

    Args:
        X: the features of documents.
        Y: their labels; each has one at least.
        drawn: the documents to grow it on.
        rarity: (n_features,) what each feature is weighed by; 0 if this tree does not see it.
        lengths: (n,) 1 over the length of each document's weighed features.
        weights: (n,) what each label of a document counts.
        min_split: how many of them a node has at least.
        min_leaf: how many of them a leaf has at least.
        branching: into how many clusters a node is divided at most.
        seed: fixes all that is random.
    """
    n, order, state = len(drawn), drawn.copy(), np.array([seed], np.uint64)
    scratch = _make_scratch(len(rarity), Y.n_labels, n, branching)
    branches = Branches(
        np.empty(2 * n, np.int32),
        np.zeros(2 * n, np.bool_),
        np.empty(2 * n, np.int64),
        np.empty(2 * n, np.int64),
    )
    columns, values, at = np.empty(1024, np.int32), np.empty(1024, np.float32), 0
    sizes, n_leaves, n_branches = np.empty(n, np.int32), 0, 0
    stack = np.empty((n + 1, 6), np.int64)  # first document, last, depth, parent, its features
    stack[0], height = (0, n, 0, -1, 0, 0), 1
    while height:
        height -= 1
        first, last, depth, own, begin, end = stack[height]
        if depth:  # the root is no branch
            branches.parents[n_branches] = own
            branches.begins[n_branches], branches.ends[n_branches] = begin, end
            own = n_branches
            n_branches += 1
        documents, n_parts = order[first:last], 0
        if len(documents) >= max(min_split, 2 * min_leaf) and depth < DEEPEST:
            counts, n_features = _find_clusters(
                X, Y, documents, weights, rarity, lengths, min_leaf, state, scratch
            )
            n_parts = (counts > 0).sum()
            if n_parts:
                _divide(documents, counts, scratch)
            scratch.features[:n_features].sort()
            for c in range(len(counts) - 1, -1, -1):  # the first one comes off the stack first
                if counts[c]:
                    begin = at
                    columns, values, at = _store_mean(c, n_features, scratch, columns, values, at)
                    stack[height] = (last - counts[c], last, depth + 1, own, begin, at)
                    last -= counts[c]
                    height += 1
            for feature in scratch.features[:n_features]:
                scratch.has_feature[feature] = False
                scratch.means[feature, :] = 0
        if not n_parts:
            branches.is_leaf[max(own, 0)] = depth > 0
            sizes[n_leaves] = len(documents)
            n_leaves += 1
    return _build_tree(branches, n_branches, columns, values, sizes[:n_leaves].copy(), order)
