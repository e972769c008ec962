"""All trees of a forest, one behind the other, with the documents in their leaves."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.models.forest.branches import Branches
from longtail.models.forest.clusters import ClusterTree
from longtail.models.forest.growing import Ids, Tree
from longtail.models.forest.questions import Questions
from longtail.models.forest.shape import Shape, Spans, Starts, running_sum
from longtail.runtime.parallel import cut, in_threads
from longtail.runtime.rows import add_matrix, describe_matrix, take_matrix, view_rows
from longtail.runtime.schema import Schema, indices
from longtail.runtime.store import Files

BATCH = 256  # documents that a thread takes at a time


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
            running_sum([len(tree.sizes) for tree in trees]),
            running_sum(np.concatenate([tree.sizes for tree in trees])),
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
        return self._replace(borders=running_sum(sizes), documents=documents)

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
        start = running_sum(counts)
        leaves = take_matrix(files, "leaves", int(start[-1]), n_documents)
        if (np.diff(leaves.indptr) < 1).any():
            raise ValueError("a leaf of the trees has no documents")
        borders = leaves.indptr.astype(np.int64)
        return cls(start, borders, leaves.indices.astype(np.int32), cuts)


def _cuts_in(files: Files) -> type[Questions] | type[Branches]:
    return Branches if "trees.branches" in files.arrays else Questions


def find_leaves(X: sp.csr_matrix, trees: Trees) -> Ids:
    """Return (n, n_trees) the leaves that documents fall into, counted through all trees."""
    return trees.walk(X)[:, :, 0]
