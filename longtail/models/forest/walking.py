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

from longtail.models.forest.clusters import ClusterTree
from longtail.models.forest.growing import Tree
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.rows import (
    Rows,
    add_matrix,
    describe_matrix,
    round_values,
    take_matrix,
    view_rows,
)
from longtail.runtime.schema import Schema, floats, indices
from longtail.runtime.store import Files
from longtail.runtime.varint import decode, encode
from longtail.search.kernels import NOTHING, Best, offer, sort_best
from longtail.search.voters import Carried
from longtail.topk import NO_LABEL, TopK

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Starts = NDArray[np.int64]
Spans = NDArray[np.int32]  # (n, n_trees, 2) the first leaf, and the one behind the last

BATCH = 256  # documents that a thread takes at a time
LARGEST = float(np.finfo(np.float32).max)  # a threshold is as large as a feature may be


class Shape(NamedTuple):
    """Which leaves and documents trees have, as `Trees` says, and how many features there are."""

    start: Starts
    borders: Starts
    n_features: int


class Questions(NamedTuple):
    """What the nodes of all trees ask, one tree behind the other; see `growing.Tree`.

    Attributes:
        features: (n_leaves − n_trees,) what each node asks for.
        thresholds: (n_leaves − n_trees,) a value above goes right.
        left: (n_leaves − n_trees,) how many leaves are on the left.
    """

    features: Ids
    thresholds: Floats
    left: Ids

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> "Questions":
        """Put trees together."""
        return cls(
            np.concatenate([tree.features for tree in trees]),
            np.concatenate([tree.thresholds for tree in trees]),
            np.concatenate([tree.left for tree in trees]),
        )

    def walk(self, X: Rows, first: int, last: int, shape: Shape, min_split: int) -> Spans:
        """Return the leaves that documents fall into; see `Trees.walk`."""
        return _walk_questions(X, first, last, shape, self, min_split)

    def add_to_files(self, files: Files) -> None:
        """Add them to a model's files: most numbers are small and take a byte or two."""
        files.arrays["trees.features"] = encode(self.features)
        files.arrays["trees.left"] = encode(self.left)
        files.arrays["trees.thresholds"] = self.thresholds

    @staticmethod
    def describe() -> Schema:
        """Return the schema of what `add_to_files` adds."""
        thresholds = floats("n_nodes", most=LARGEST, empty=True)
        return Schema(arrays={"trees.thresholds": thresholds, **_coded("features", "left")})

    @classmethod
    def from_files(cls, files: Files, counts: Ids, n_features: int) -> "Questions":
        """Take back what `add_to_files` wrote, for trees of so many leaves."""
        thresholds, start = files.arrays["trees.thresholds"], _running_sum(counts)
        n_nodes = len(thresholds)
        if start[-1] != n_nodes + len(counts):
            raise ValueError(f"{n_nodes} nodes of {len(counts)} trees cannot have these leaves")
        features = decode(files.arrays["trees.features"], n_nodes, "trees.features")
        left = decode(files.arrays["trees.left"], n_nodes, "trees.left")
        if n_nodes and features.max() >= n_features:
            raise ValueError(f"trees.features must hold whole numbers below {n_features}")
        if not _are_sound_questions(start, left):
            raise ValueError("trees.left must hold fewer leaves than there are below a node")
        return cls(features, thresholds, left)


class Roots(NamedTuple):
    """The branches at the roots of all trees, by feature.

    Every document comes by them, and they know most features: to look up what a document has takes
    a tenth of the time of going through all that they know.

    Attributes:
        start: (n_trees + 1,) where the branches of each root begin, counted through all trees.
        features: (n_known,) those that any of them knows, in order.
        weights: (n_known, n_roots' branches) what such a feature counts for each of them.
    """

    start: Starts
    features: Ids
    weights: Rows

    @classmethod
    def of(cls, first: Starts, spans: Ids, centres: sp.csr_matrix) -> "Roots":
        """Take them from all branches, whose attributes these are."""
        start, branches = _list_roots(first, spans)
        own = centres[branches]
        features, columns = np.unique(own.indices, return_inverse=True)
        shape = len(branches), len(features)
        by_feature = sp.csr_matrix((own.data, columns, own.indptr), shape).T.tocsr()
        return cls(start, features.astype(np.int32, copy=False), view_rows(by_feature))


class Branches(NamedTuple):
    """Where the nodes of all trees lead, one tree behind the other; see `clusters.ClusterTree`.

    Attributes:
        first: (n_trees + 1,) where the branches of each tree begin.
        below: (n_branches,) how many leaves are below each.
        spans: (n_branches,) how many branches there are from it to the next one beside it.
        centres: (n_branches, n_features) what a document should have to go there.
        roots: those of the branches where all documents come by.
    """

    first: Starts
    below: Ids
    spans: Ids
    centres: Rows
    roots: Roots

    @classmethod
    def of(cls, trees: Sequence[ClusterTree], n_features: int) -> "Branches":
        """Put trees together; what features count is rounded as it is stored."""
        first = _running_sum([len(tree.below) for tree in trees])
        start = _running_sum(np.concatenate([np.diff(tree.start) for tree in trees]))
        columns, values = (
            np.concatenate([getattr(tree, part) for tree in trees])
            for part in ("columns", "values")
        )
        centres = sp.csr_matrix((values, columns, start), shape=(int(first[-1]), n_features))
        below, spans = (
            np.concatenate([getattr(tree, part) for tree in trees]) for part in ("below", "spans")
        )
        return cls.to(first, below, spans, round_values(centres))

    @classmethod
    def to(cls, first: Starts, below: Ids, spans: Ids, centres: sp.csr_matrix) -> "Branches":
        """Return branches to these centres."""
        return cls(first, below, spans, view_rows(centres), Roots.of(first, spans, centres))

    def walk(self, X: Rows, first: int, last: int, shape: Shape, min_split: int) -> Spans:
        """Return the leaves that documents fall into; see `Trees.walk`."""
        return _walk_branches(X, first, last, shape, self, min_split)

    def add_to_files(self, files: Files) -> None:
        """Add them to a model's files."""
        files.arrays["trees.branches"] = np.diff(self.first).astype(np.int32)
        files.arrays["trees.below"] = encode(self.below)
        files.arrays["trees.spans"] = encode(self.spans)
        start, columns, values = self.centres
        shape = (len(self.below), int(columns.max(initial=-1)) + 1)
        add_matrix(files, "centres", sp.csr_matrix((values, columns, start), shape), rounded=True)

    @staticmethod
    def describe() -> Schema:
        """Return the schema of what `add_to_files` adds."""
        counts = indices("n_trees", into=2**31 - 1)
        trees = Schema(arrays={"trees.branches": counts, **_coded("below", "spans")})
        return trees | describe_matrix("centres", "n_branches", rounded=True)

    @classmethod
    def from_files(cls, files: Files, counts: Ids, n_features: int) -> "Branches":
        """Take back what `add_to_files` wrote, for trees of so many leaves."""
        first = _running_sum(files.arrays["trees.branches"])
        n = int(first[-1])
        below = decode(files.arrays["trees.below"], n, "trees.below")
        spans = decode(files.arrays["trees.spans"], n, "trees.spans")
        centres = take_matrix(files, "centres", n, n_features)
        if not _are_sound_branches(first, below, spans, counts):
            raise ValueError("trees.below and trees.spans do not fit the leaves of the trees")
        return cls.to(first, below, spans, centres)


class Trees(NamedTuple):
    """All trees, one behind the other.

    Attributes:
        start: (n_trees + 1,) where the leaves of each tree begin.
        borders: (n_leaves + 1,) where the documents of each leaf begin.
        documents: those of all leaves.
        cuts: how documents come to their leaves.
    """

    start: Starts
    borders: Starts
    documents: Ids
    cuts: Questions | Branches

    @classmethod
    def of(cls, trees: Sequence[Tree | ClusterTree], n_features: int) -> "Trees":
        """Put trees of one kind together."""
        clustered = [tree for tree in trees if isinstance(tree, ClusterTree)]
        plain = [tree for tree in trees if isinstance(tree, Tree)]
        return cls(
            _running_sum([len(tree.sizes) for tree in trees]),
            _running_sum(np.concatenate([tree.sizes for tree in trees])),
            np.concatenate([tree.documents for tree in trees]),
            Branches.of(clustered, n_features) if clustered else Questions.of(plain),
        )

    @property
    def n_trees(self) -> int:
        """How many trees there are."""
        return len(self.start) - 1

    def walk(self, X: sp.csr_matrix, min_split: int = 0) -> Spans:
        """Return (n, n_trees, 2) the first leaf of documents, and the one behind the last.

        Nodes with fewer than `min_split` documents are taken for leaves.
        """
        rows, n, shape = view_rows(X), X.shape[0], Shape(self.start, self.borders, int(X.shape[1]))
        parts = pairwise(cut(n, max(1, -(-n // BATCH))))
        tasks = [(rows, a, b, shape, min_split) for a, b in parts]
        return np.concatenate(in_threads(self.cuts.walk, tasks))

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
        """Add the trees to a model's files."""
        files.arrays["trees.leaves"] = np.diff(self.start).astype(np.int32)
        self.cuts.add_to_files(files)
        shape = (int(self.start[-1]), n_documents)
        ones = np.ones(len(self.documents), np.float32)
        leaves = sp.csr_matrix((ones, self.documents, self.borders), shape=shape)
        add_matrix(files, "leaves", leaves.sorted_indices())

    @staticmethod
    def describe(files: Files) -> Schema:
        """Return the schema of what `add_to_files` adds; `from_files` checks how it fits."""
        leaves = indices("n_trees", into=2**31 - 1)._replace(empty=False)
        own = _cuts_in(files).describe() | describe_matrix("leaves", "n_leaves")
        return Schema(arrays={"trees.leaves": leaves}) | own

    @classmethod
    def from_files(cls, files: Files, n_documents: int, n_features: int) -> "Trees":
        """Take back what `add_to_files` wrote; raise ValueError if it does not fit together."""
        counts = files.arrays["trees.leaves"]
        if counts.min() < 1:
            raise ValueError("a tree has no leaves")
        cuts = _cuts_in(files).from_files(files, counts, n_features)
        start = _running_sum(counts)
        leaves = take_matrix(files, "leaves", int(start[-1]), n_documents)
        if (np.diff(leaves.indptr) < 1).any():
            raise ValueError("a leaf of the trees has no documents")
        borders = leaves.indptr.astype(np.int64)
        return cls(start, borders, leaves.indices.astype(np.int32), cuts)


def _cuts_in(files: Files) -> type[Questions] | type[Branches]:
    return Branches if "trees.branches" in files.arrays else Questions


def _coded(*parts: str) -> dict[str, Any]:
    """Return what describes arrays of numbers that take as many bytes as they need."""
    return {
        f"trees.{part}": indices(f"trees.n_{part}", into=256, dtypes=(np.uint8,)) for part in parts
    }


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
    spans, n = trees.walk(X, min_split), X.shape[0]
    parts = pairwise(cut(n, max(1, -(-n // BATCH))))
    tasks = [(spans[a:b], trees.borders, trees.documents, Y) for a, b in parts]
    found = in_threads(_find_labels, tasks)
    lengths, labels, scores = map(np.concatenate, zip(*found, strict=True))
    return Found(_running_sum(lengths), labels, scores)


def find_leaves(X: sp.csr_matrix, trees: Trees) -> Ids:
    """Return (n, n_trees) the leaves that documents fall into, counted through all trees."""
    return trees.walk(X)[:, :, 0]


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
def _are_sound_questions(start: Starts, lefts: Ids) -> bool:
    """Whether every node has a leaf at least on each side, so that all walks end."""
    spans = np.empty(len(lefts) + 1, np.int64)  # leaves below nodes that are still to come
    for tree in range(len(start) - 1):
        node, last = start[tree] - tree, start[tree + 1] - tree - 1
        height = 0
        if node < last:
            spans[0], height = last - node + 1, 1
        while height:
            height -= 1
            span, left = spans[height], lefts[node]
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
def _are_sound_branches(first: Starts, below: Ids, spans: Ids, counts: Ids) -> bool:
    """Whether a node's branches are two at least and share its leaves, so that all walks end."""
    for tree in range(len(counts)):
        if not _divides(first[tree], first[tree + 1], counts[tree], below, spans):
            return False
        for branch in range(first[tree], first[tree + 1]):
            end = branch + spans[branch]
            if end > first[tree + 1] or not _divides(branch + 1, end, below[branch], below, spans):
                return False
    return True


@njit(nogil=True, cache=True)
def _divides(begin: int, end: int, n_leaves: int, below: Ids, spans: Ids) -> bool:
    """Whether the branches from `begin` to `end` share these leaves; one leaf has no branches."""
    n_branches, total, branch = 0, 0, begin
    while branch < end:
        if spans[branch] < 1 or below[branch] < 1:
            return False
        n_branches += 1
        total += below[branch]
        branch += spans[branch]
    if n_leaves == 1:
        return begin == end
    return branch == end and n_branches > 1 and total == n_leaves


@njit(nogil=True, cache=True)
def _spread(X: Rows, d: int, x: Floats) -> None:
    for cell in range(X.start[d], X.start[d + 1]):
        x[X.columns[cell]] = X.values[cell]


@njit(nogil=True, cache=True)
def _clear(X: Rows, d: int, x: Floats) -> None:
    for cell in range(X.start[d], X.start[d + 1]):
        x[X.columns[cell]] = 0


@njit(nogil=True, cache=True)
def _walk_questions(
    X: Rows, first: int, last: int, shape: Shape, questions: Questions, min_split: int
) -> Spans:
    x, n_trees = np.zeros(shape.n_features, np.float32), len(shape.start) - 1
    spans = np.empty((last - first, n_trees, 2), np.int32)
    for d in range(first, last):
        _spread(X, d, x)
        for tree in range(n_trees):
            leaf, end = shape.start[tree], shape.start[tree + 1]
            node = leaf - tree
            while end - leaf > 1:
                if min_split and shape.borders[end] - shape.borders[leaf] < min_split:
                    break
                left = questions.left[node]
                if x[questions.features[node]] > questions.thresholds[node]:
                    leaf += left
                    node += left
                else:
                    end = leaf + left
                    node += 1
            spans[d - first, tree, 0], spans[d - first, tree, 1] = leaf, end
        _clear(X, d, x)
    return spans


@njit(nogil=True, cache=True)
def _measure(centres: Rows, branch: int, x: Floats) -> np.float32:
    total = np.float32(0)
    for cell in range(centres.start[branch], centres.start[branch + 1]):
        total += centres.values[cell] * x[centres.columns[cell]]
    return total


@njit(nogil=True, cache=True)
def _list_roots(first: Starts, spans: Ids) -> tuple[Starts, Starts]:
    """Return where the branches of each root begin, and which they are."""
    start, branches = np.zeros(len(first), np.int64), np.empty(len(spans), np.int64)
    n = 0
    for tree in range(len(first) - 1):
        branch = first[tree]
        while branch < first[tree + 1]:
            branches[n] = branch
            n += 1
            branch += spans[branch]
        start[tree + 1] = n
    return start, branches[:n]


@njit(nogil=True, cache=True)
def _measure_roots(X: Rows, first: int, last: int, roots: Roots) -> Floats:
    """Return how similar documents are to the branches of all roots."""
    likeness = np.zeros((last - first, roots.start[-1]), np.float32)
    features, weights = roots.features, roots.weights
    for d in range(first, last):
        own = likeness[d - first]
        for cell in range(X.start[d], X.start[d + 1]):
            row = np.searchsorted(features, X.columns[cell])
            if row == len(features) or features[row] != X.columns[cell]:
                continue
            for entry in range(weights.start[row], weights.start[row + 1]):
                own[weights.columns[entry]] += weights.values[entry] * X.values[cell]
    return likeness


@njit(nogil=True, cache=True)
def _walk_branches(
    X: Rows, first: int, last: int, shape: Shape, branches: Branches, min_split: int
) -> Spans:
    x, n_trees = np.zeros(shape.n_features, np.float32), len(shape.start) - 1
    spans = np.empty((last - first, n_trees, 2), np.int32)
    at_roots = _measure_roots(X, first, last, branches.roots)
    for tree in range(n_trees):  # the one after the other, so that its upper branches stay in cache
        for d in range(first, last):
            _spread(X, d, x)
            leaf, end = shape.start[tree], shape.start[tree + 1]
            branch, root = branches.first[tree], branches.roots.start[tree]
            below_root = False
            while end - leaf > 1:
                if min_split and shape.borders[end] - shape.borders[leaf] < min_split:
                    break
                best, best_leaf, at = branch, leaf, leaf
                highest = np.float32(-np.inf)
                while at < end:
                    if below_root:
                        likeness = _measure(branches.centres, branch, x)
                    else:
                        likeness = at_roots[d - first, root]
                        root += 1
                    if likeness > highest:
                        best, best_leaf, highest = branch, at, likeness
                    at += branches.below[branch]
                    branch += branches.spans[branch]
                leaf, end, branch = best_leaf, best_leaf + branches.below[best], best + 1
                below_root = True
            spans[d - first, tree, 0], spans[d - first, tree, 1] = leaf, end
            _clear(X, d, x)
    return spans


@njit(nogil=True, cache=True)
def _find_labels(
    spans: Spans, borders: Starts, documents: Ids, Y: Carried
) -> tuple[Starts, Ids, Floats]:
    n, n_trees = spans.shape[:2]
    sums, own = np.zeros(Y.n_labels), np.empty(Y.n_labels, np.int32)
    lengths = np.zeros(n, np.int64)
    labels, scores = np.empty(1024, np.int32), np.empty(1024, np.float32)
    at = 0
    for d in range(n):
        n_own = 0
        for tree in range(n_trees):
            begin, stop = borders[spans[d, tree, 0]], borders[spans[d, tree, 1]]
            vote = 1 / (stop - begin)
            for place in range(begin, stop):
                other = documents[place]
                for cell in range(Y.start[other], Y.start[other + 1]):
                    label = Y.labels[cell]
                    if sums[label] == 0:
                        own[n_own] = label
                        n_own += 1
                    sums[label] += vote
        while at + n_own > len(labels):
            labels = np.concatenate((labels, np.empty_like(labels)))
            scores = np.concatenate((scores, np.empty_like(scores)))
        for label in own[:n_own]:
            labels[at], scores[at] = label, np.float32(min(1.0, sums[label] / n_trees))
            sums[label] = 0
            at += 1
        lengths[d] = n_own
    return lengths, labels[:at].copy(), scores[:at].copy()


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
