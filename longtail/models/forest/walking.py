"""Walking through trees: which leaves a document falls into, and what the documents there carry.

The score of a label is the mean over all trees of the share of a leaf's documents that carry it.
Sums are made tree by tree, in one order for each document, so that they are the same in any batch
and on any number of threads.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.models.forest.growing import Tree
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.rows import Rows, add_matrix, describe_matrix, take_matrix, view_rows
from longtail.runtime.schema import Schema, floats, indices
from longtail.runtime.store import Files
from longtail.runtime.varint import decode, encode
from longtail.search.kernels import NOTHING, Best, offer, sort_best
from longtail.search.voters import Carried
from longtail.topk import NO_LABEL, TopK

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Starts = NDArray[np.int64]

BATCH = 256  # documents that a thread takes at a time
LARGEST = float(np.finfo(np.float32).max)  # a threshold is as large as a feature may be


class Trees(NamedTuple):
    """All trees, one behind the other; see `growing.Tree`.

    Attributes:
        start: (n_trees + 1,) where the leaves of each tree begin.
        features: (n_leaves − n_trees,) what each node asks for.
        thresholds: (n_leaves − n_trees,) a value above goes right.
        left: (n_leaves − n_trees,) how many leaves are on the left.
        borders: (n_leaves + 1,) where the documents of each leaf begin.
        documents: those of all leaves.
    """

    start: Starts
    features: Ids
    thresholds: Floats
    left: Ids
    borders: Starts
    documents: Ids

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> "Trees":
        """Put trees together."""
        return cls(
            _running_sum([len(tree.sizes) for tree in trees]),
            np.concatenate([tree.features for tree in trees]),
            np.concatenate([tree.thresholds for tree in trees]),
            np.concatenate([tree.left for tree in trees]),
            _running_sum(np.concatenate([tree.sizes for tree in trees])),
            np.concatenate([tree.documents for tree in trees]),
        )

    @property
    def n_trees(self) -> int:
        """How many trees there are."""
        return len(self.start) - 1

    def add(self, leaves: Ids, first: int) -> "Trees":
        """Return the trees with more documents.

        Args:
            leaves: (n, n_trees) the leaves that they fall into.
            first: the number of the first of them; the others follow.
        """
        n = len(leaves)
        own = np.repeat(np.arange(self.start[-1]), np.diff(self.borders))
        everywhere = np.concatenate([own, leaves.ravel()])
        numbers = np.repeat(np.arange(first, first + n, dtype=np.int32), self.n_trees)
        order = np.argsort(everywhere, kind="stable")
        sizes = np.bincount(everywhere, minlength=int(self.start[-1]))
        documents = np.concatenate([self.documents, numbers])[order]
        return self._replace(borders=_running_sum(sizes), documents=documents)

    def add_to_files(self, files: Files, n_documents: int) -> None:
        """Add the trees to a model's files: most numbers are small and take a byte or two."""
        files.arrays["trees.leaves"] = np.diff(self.start).astype(np.int32)
        files.arrays["trees.features"] = encode(self.features)
        files.arrays["trees.left"] = encode(self.left)
        files.arrays["trees.thresholds"] = self.thresholds
        shape = (int(self.start[-1]), n_documents)
        ones = np.ones(len(self.documents), np.float32)
        leaves = sp.csr_matrix((ones, self.documents, self.borders), shape=shape)
        add_matrix(files, "leaves", leaves.sorted_indices())

    @staticmethod
    def describe() -> Schema:
        """Return the schema of what `add_to_files` adds; `from_files` checks how it fits."""
        coded = {
            f"trees.{part}": indices(f"trees.n_{part}", into=256, dtypes=(np.uint8,))
            for part in ("features", "left")
        }
        trees = Schema(
            arrays={
                "trees.leaves": indices("n_trees", into=2**31 - 1)._replace(empty=False),
                "trees.thresholds": floats("n_nodes", most=LARGEST, empty=True),
                **coded,
            }
        )
        return trees | describe_matrix("leaves", "n_leaves")

    @classmethod
    def from_files(cls, files: Files, n_documents: int, n_features: int) -> "Trees":
        """Take back what `add_to_files` wrote; raise ValueError if it does not fit together."""
        counts, thresholds = files.arrays["trees.leaves"], files.arrays["trees.thresholds"]
        start = _running_sum(counts)
        n_nodes = len(thresholds)
        if counts.min() < 1 or start[-1] != n_nodes + len(counts):
            raise ValueError(f"{n_nodes} nodes of {len(counts)} trees cannot have these leaves")
        features = decode(files.arrays["trees.features"], n_nodes, "trees.features")
        left = decode(files.arrays["trees.left"], n_nodes, "trees.left")
        if n_nodes and features.max() >= n_features:
            raise ValueError(f"trees.features must hold whole numbers below {n_features}")
        leaves = take_matrix(files, "leaves", int(start[-1]), n_documents)
        if (np.diff(leaves.indptr) < 1).any():
            raise ValueError("a leaf of the trees has no documents")
        borders = leaves.indptr.astype(np.int64)
        trees = cls(start, features, thresholds, left, borders, leaves.indices.astype(np.int32))
        if not _is_sound(trees):
            raise ValueError("trees.left must hold fewer leaves than there are below a node")
        return trees


class Found(NamedTuple):
    """The labels that n documents' leaves have, in no order.

    Attributes:
        start: (n + 1,) where the labels of each document begin.
        labels: of all documents.
        scores: of these labels, from 0 to 1.
    """

    start: Starts
    labels: Ids
    scores: Floats


def find_labels(X: sp.csr_matrix, trees: Trees, Y: Carried, min_split: int = 0) -> Found:
    """Return the labels that documents' leaves have, with their scores.

    Args:
        X: the documents.
        trees: the trees.
        Y: the labels of the documents in their leaves.
        min_split: nodes with fewer documents are taken for leaves.
    """
    rows, n = view_rows(X), X.shape[0]
    parts = pairwise(cut(n, max(1, -(-n // BATCH))))
    tasks = [(rows, a, b, int(X.shape[1]), trees, Y, min_split) for a, b in parts]
    found = in_threads(_find_labels, tasks)
    lengths, labels, scores = map(np.concatenate, zip(*found, strict=True))
    return Found(_running_sum(lengths), labels, scores)


def find_leaves(X: sp.csr_matrix, trees: Trees) -> Ids:
    """Return (n, n_trees) the leaves that documents fall into, counted through all trees."""
    rows, n = view_rows(X), X.shape[0]
    parts = pairwise(cut(n, max(1, -(-n // BATCH))))
    tasks = [(rows, a, b, int(X.shape[1]), trees) for a, b in parts]
    return np.concatenate(in_threads(_find_leaves, tasks))


def rank_found(found: Found, k: int) -> TopK:
    """Return the k best of the labels that were found; -1 where there are fewer."""
    n = len(found.start) - 1
    tasks = [(found, a, b, k) for a, b in pairwise(cut(n, n_threads()))]
    parts = in_threads(_rank, tasks)
    labels, scores = map(np.concatenate, zip(*parts, strict=True))
    return TopK(labels, scores)


def look_up_found(found: Found, candidates: Ids, n_labels: int) -> Floats:
    """Return the scores (n, c) of candidates; 0 for those that were not found, and for -1."""
    n = len(found.start) - 1
    tasks = [(found, a, b, candidates, n_labels) for a, b in pairwise(cut(n, n_threads()))]
    return np.concatenate(in_threads(_look_up, tasks))


def _running_sum(counts: NDArray[Any] | Sequence[int]) -> Starts:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


# -- compiled -------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _is_sound(trees: Trees) -> bool:
    """Whether every node has a leaf at least on each side, so that all walks end."""
    spans = np.empty(len(trees.left) + 1, np.int64)  # leaves below nodes that are still to come
    for tree in range(len(trees.start) - 1):
        node, last = trees.start[tree] - tree, trees.start[tree + 1] - tree - 1
        height = 0
        if node < last:
            spans[0], height = last - node + 1, 1
        while height:
            height -= 1
            span, left = spans[height], trees.left[node]
            if not 0 < left < span:
                return False
            node += 1
            if span - left > 1:
                spans[height] = span - left
                height += 1
            if left > 1:
                spans[height] = left
                height += 1
    return True


@njit(nogil=True, cache=True)
def _walk(trees: Trees, tree: int, x: Floats, min_split: int) -> tuple[int, int]:
    """Return the first leaf that a document falls into, and the one behind the last."""
    leaf, end = trees.start[tree], trees.start[tree + 1]
    node = leaf - tree
    while end - leaf > 1:
        if min_split and trees.borders[end] - trees.borders[leaf] < min_split:
            break
        left = trees.left[node]
        if x[trees.features[node]] > trees.thresholds[node]:
            leaf += left
            node += left
        else:
            end = leaf + left
            node += 1
    return leaf, end


@njit(nogil=True, cache=True)
def _spread(X: Rows, d: int, x: Floats) -> None:
    for cell in range(X.start[d], X.start[d + 1]):
        x[X.columns[cell]] = X.values[cell]


@njit(nogil=True, cache=True)
def _clear(X: Rows, d: int, x: Floats) -> None:
    for cell in range(X.start[d], X.start[d + 1]):
        x[X.columns[cell]] = 0


@njit(nogil=True, cache=True)
def _find_labels(
    X: Rows, first: int, last: int, n_features: int, trees: Trees, Y: Carried, min_split: int
) -> tuple[Starts, Ids, Floats]:
    x, n_trees = np.zeros(n_features, np.float32), len(trees.start) - 1
    sums, own = np.zeros(Y.n_labels), np.empty(Y.n_labels, np.int32)
    lengths = np.zeros(last - first, np.int64)
    labels, scores = np.empty(1024, np.int32), np.empty(1024, np.float32)
    at = 0
    for d in range(first, last):
        _spread(X, d, x)
        n_own = 0
        for tree in range(n_trees):
            leaf, end = _walk(trees, tree, x, min_split)
            begin, stop = trees.borders[leaf], trees.borders[end]
            vote = 1 / (stop - begin)
            for place in range(begin, stop):
                other = trees.documents[place]
                for cell in range(Y.start[other], Y.start[other + 1]):
                    label = Y.labels[cell]
                    if sums[label] == 0:
                        own[n_own] = label
                        n_own += 1
                    sums[label] += vote
        _clear(X, d, x)
        while at + n_own > len(labels):
            labels = np.concatenate((labels, np.empty_like(labels)))
            scores = np.concatenate((scores, np.empty_like(scores)))
        for label in own[:n_own]:
            labels[at], scores[at] = label, np.float32(min(1.0, sums[label] / n_trees))
            sums[label] = 0
            at += 1
        lengths[d - first] = n_own
    return lengths, labels[:at].copy(), scores[:at].copy()


@njit(nogil=True, cache=True)
def _find_leaves(X: Rows, first: int, last: int, n_features: int, trees: Trees) -> Ids:
    x, n_trees = np.zeros(n_features, np.float32), len(trees.start) - 1
    leaves = np.empty((last - first, n_trees), np.int32)
    for d in range(first, last):
        _spread(X, d, x)
        for tree in range(n_trees):
            leaves[d - first, tree] = _walk(trees, tree, x, 0)[0]
        _clear(X, d, x)
    return leaves


@njit(nogil=True, cache=True)
def _rank(found: Found, first: int, last: int, k: int) -> tuple[Ids, Floats]:
    best_labels = np.full((last - first, k), NOTHING, np.int32)
    best_scores = np.full((last - first, k), np.float32(-np.inf))
    for i in range(last - first):
        best = Best(best_labels[i], best_scores[i])
        for cell in range(found.start[first + i], found.start[first + i + 1]):
            offer(best, found.labels[cell], found.scores[cell])
        sort_best(best)
        for place in range(k):
            if best.ids[place] == NOTHING:
                best.ids[place], best.scores[place] = NO_LABEL, 0
    return best_labels, best_scores


@njit(nogil=True, cache=True)
def _look_up(found: Found, first: int, last: int, candidates: Ids, n_labels: int) -> Floats:
    known = np.zeros(n_labels, np.float32)
    scores = np.zeros((last - first, candidates.shape[1]), np.float32)
    for d in range(first, last):
        cells = range(found.start[d], found.start[d + 1])
        for cell in cells:
            known[found.labels[cell]] = found.scores[cell]
        for place in range(candidates.shape[1]):
            if candidates[d, place] >= 0:
                scores[d - first, place] = known[candidates[d, place]]
        for cell in cells:
            known[found.labels[cell]] = 0
    return scores
