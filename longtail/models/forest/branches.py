"""Trees of clusters: a document goes to the branch whose mean is the most similar to it.

They are grown by `clusters.py`; here documents walk through them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.models.forest.clusters import ClusterTree
from longtail.models.forest.growing import Floats, Ids
from longtail.models.forest.shape import Shape, Spans, Starts, clear, coded, running_sum, spread
from longtail.runtime.compiled import njit
from longtail.runtime.rows import (
    Rows,
    add_matrix,
    describe_matrix,
    round_values,
    take_matrix,
    view_rows,
)
from longtail.runtime.schema import Schema, indices
from longtail.runtime.store import Files
from longtail.runtime.varint import decode, encode


class Roots(NamedTuple):
    """The branches at the roots of all trees, by feature.

    Every document comes by them, and they know most features: it is quicker to look up what a
    document has than to go through all that they know.

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
        first = running_sum([len(tree.below) for tree in trees])
        start = running_sum(np.concatenate([np.diff(tree.start) for tree in trees]))
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
        trees = Schema(arrays={"trees.branches": counts, **coded("below", "spans")})
        return trees | describe_matrix("centres", "n_branches", rounded=True)

    @classmethod
    def from_files(cls, files: Files, counts: Ids, n_features: int) -> "Branches":
        """Take back what `add_to_files` wrote, for trees of so many leaves."""
        first = running_sum(files.arrays["trees.branches"])
        n = int(first[-1])
        below = decode(files.arrays["trees.below"], n, "trees.below")
        spans = decode(files.arrays["trees.spans"], n, "trees.spans")
        centres = take_matrix(files, "centres", n, n_features)
        if not _are_sound_branches(first, below, spans, counts):
            raise ValueError("trees.below and trees.spans do not fit the leaves of the trees")
        return cls.to(first, below, spans, centres)


# -- compiled -------------------------------------------------------------------------------------


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
def _measure(centres: Rows, branch: int, x: Floats) -> np.float32:
    total = np.float32(0)
    for cell in range(centres.start[branch], centres.start[branch + 1]):
        total += centres.values[cell] * x[centres.columns[cell]]
    return total


@njit(nogil=True, cache=True)
def _walk_branches(
    X: Rows, first: int, last: int, shape: Shape, branches: Branches, min_split: int
) -> Spans:
    x, n_trees = np.zeros(shape.n_features, np.float32), len(shape.start) - 1
    spans = np.empty((last - first, n_trees, 2), np.int32)
    at_roots = _measure_roots(X, first, last, branches.roots)
    for tree in range(n_trees):  # the one after the other, so that its upper branches stay in cache
        for d in range(first, last):
            spread(X, d, x)
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
            clear(X, d, x)
    return spans
