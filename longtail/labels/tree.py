"""LabelTree: labels grouped by what their documents say, so that a search need not try all.

A label's vector is the normalized sum of its documents' feature rows. Spherical k-means splits
the labels into clusters, and these again, top down. `compress` turns a deep binary tree into
the shallow and wide one of AttentionXML (You et al., NeurIPS 2019, section 2.2).

Labels that no training document carries have no vector; they are dealt out evenly, so every
label has a leaf and the tree of a given label set has always the same size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import ParameterError
from longtail.labels.kmeans import (
    LARGE,
    Clusters,
    Scratch,
    count_values,
    split_by_all,
    split_many,
    starts_of,
)
from longtail.progress import SILENT, Progress
from longtail.runtime.compiled import njit
from longtail.runtime.mapped import MatrixWriter, cut_sizes, is_mapped
from longtail.runtime.parallel import in_threads, n_threads, run_tasks
from longtail.runtime.rows import Rows, join_rows, scale_to_unit, view_rows

MAX_WAYS = 16  # of one split; wider nodes are made from several, which costs far less
MOST_VALUES, LEAST_VALUES = 1 << 27, 16  # of the vectors of all labels, and of one
AT_ONCE = 1 << 25  # products that make vectors together
PIECE = 1 << 21  # products that a thread makes at a time
TOGETHER = 1 << 16  # values of small clusters that are split by one call


@dataclass(frozen=True, eq=False)
class LabelTree:
    """A tree whose leaves are the labels, every leaf at the same depth.

    Level 0 is the root, the last level holds the labels in the order `leaves`.

    Attributes:
        children: for each level but the last an array of (number of nodes + 1); the children of
            node n are the nodes children[n] … children[n + 1] − 1 of the level below.
        leaves: (n_labels,) the label at each place of the last level.
    """

    children: Sequence[NDArray[np.int32]]
    leaves: NDArray[np.int32]

    @classmethod
    def flat(cls, n_labels: int) -> "LabelTree":
        """Return the tree whose root is the parent of all labels."""
        return cls([np.array([0, n_labels], np.int32)], np.arange(n_labels, dtype=np.int32))

    @property
    def n_labels(self) -> int:
        """The number of labels."""
        return len(self.leaves)

    @property
    def depth(self) -> int:
        """The number of steps from the root to a label."""
        return len(self.children)

    @property
    def sizes(self) -> list[int]:
        """The number of nodes of each level, the root's 1 first, the labels last."""
        return [len(starts) - 1 for starts in self.children] + [self.n_labels]

    def parents(self, level: int) -> NDArray[np.int32]:
        """Return for each node of `level` (1 or more) its parent in the level above."""
        counts = np.diff(self.children[level - 1])
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    def keep(self, levels: Sequence[int]) -> "LabelTree":
        """Return the tree without the inner levels that `levels` does not name."""
        kept = sorted({0, *levels} - {self.depth})
        if not 0 <= kept[0] <= kept[-1] < self.depth:
            raise ParameterError(f"The levels of this tree are 0 to {self.depth}. Got {levels}.")
        children: list[NDArray[np.int32]] = []
        for upper, lower in zip(kept, [*kept[1:], self.depth], strict=True):
            starts = self.children[upper]
            for level in range(upper + 1, lower):
                starts = self.children[level][starts]
            children.append(starts)
        return LabelTree(children, self.leaves)

    def widen(self, branching: int, max_depth: int | None = None) -> "LabelTree":
        """Leave out inner levels, from the top down, while no node gets more than `branching`.

        So the root is wide: each further level of a path is one more chance to go wrong. The
        parents of the labels stay. With `max_depth`, only the lowest so many inner levels stay, and
        nodes may have more than `branching` children.
        """
        kept = [0]
        while kept[-1] < self.depth - 1:
            fitting = [level for level, n in self._widths(kept[-1]) if n <= branching]
            kept.append(max(fitting, default=kept[-1] + 1))
        return self.keep(kept[1:] if max_depth is None else kept[1:][-max_depth:])

    def _widths(self, upper: int) -> list[tuple[int, int]]:
        """Return the inner levels below `upper`, and how many nodes there a node has at most."""
        starts, widths = self.children[upper], []
        for level in range(upper + 1, self.depth):
            widths.append((level, int(np.diff(starts).max())))
            starts = self.children[level][starts]
        return widths

    def compress(self, c: int, height: int) -> "LabelTree":
        """Make the tree shallow and wide: 2^c children a node, `height` inner levels.

        Starting from the parents of the leaves, every c-th level upwards is kept, `height` of
        them in all, and then the root.
        """
        parents_of_leaves = self.depth - 1
        if height and parents_of_leaves - c * (height - 1) < 1:
            raise ParameterError(
                f"A tree of {self.depth - 1} inner levels cannot be compressed to {height} levels "
                f"{c} apart; use a lower height or smaller leaves."
            )
        return self.keep([parents_of_leaves - c * h for h in range(height)])


def build_label_vectors(
    X: sp.csr_matrix, Y: sp.csr_matrix, most: int | None = None
) -> sp.csr_matrix:
    """Return (n_labels, n_features) unit rows: the normalized sums of the labels' documents.

    With `most`, of a label's vector its so many largest values only. Of documents that are larger
    than memory it has so many at most that all vectors fit.
    """
    by_label = Y.T.tocsr()
    if not is_mapped(X):
        return _multiply(by_label, X, most)
    fitting = max(LEAST_VALUES, MOST_VALUES // max(1, Y.shape[1]))
    most = fitting if most is None else min(most, fitting)
    return scale_to_unit(multiply_in_blocks(by_label, X, AT_ONCE, most))


def _multiply(A: sp.csr_matrix, B: sp.csr_matrix, most: int | None) -> sp.csr_matrix:
    """Return A·B with rows of length 1 and of `most` values, made of pieces on all cores."""
    n_cells = A @ np.diff(B.indptr).astype(np.float64)

    def multiply(first: int, last: int) -> sp.csr_matrix:
        part = A[first:last] @ B
        part.sort_indices()
        return scale_to_unit(part if most is None else _thin(part, most))

    pieces = cut_sizes(n_cells.astype(np.int64), PIECE)
    return join_rows(in_threads(multiply, pieces), (A.shape[0], B.shape[1]))


def multiply_in_blocks(
    A: sp.csr_matrix, B: sp.csr_matrix, at_once: int, most: int
) -> sp.csr_matrix:
    """Return A·B in a file, about `at_once` cells at a time; of each row the `most` largest."""
    n_cells = A @ np.diff(B.indptr).astype(np.float64)
    product = MatrixWriter()
    for first, last in cut_sizes(n_cells.astype(np.int64), at_once):
        part = A[first:last] @ B
        part.sort_indices()
        product.add(_thin(part, most))
    return product.map()


def _thin(matrix: sp.csr_matrix, most: int) -> sp.csr_matrix:
    """Return a matrix with the `most` largest values of each row."""
    kept = keep_largest(view_rows(matrix), most)
    return sp.csr_matrix((kept.values, kept.columns, kept.start), matrix.shape)


def vector_bytes(X: sp.csr_matrix, n_cells: int) -> int:
    """Return what it takes to build label vectors of `n_cells` values in all."""
    if not is_mapped(X):
        return 20 * n_cells
    return 8 * min(n_cells, MOST_VALUES) + 20 * min(n_cells, AT_ONCE)


@njit(nogil=True, cache=True)
def keep_largest(rows: Rows, most: int) -> Rows:
    """Return the rows with at most so many of their values, the largest, in the order they had."""
    n = len(rows.start) - 1
    start = np.zeros(n + 1, np.int64)
    for i in range(n):
        start[i + 1] = start[i] + min(most, rows.start[i + 1] - rows.start[i])
    columns, values = np.empty(start[n], np.int32), np.empty(start[n], np.float32)
    for i in range(n):
        own = rows.values[rows.start[i] : rows.start[i + 1]]
        least, n_equal = np.float32(-np.inf), len(own)
        if len(own) > most:
            rising = np.sort(own)
            least = rising[len(own) - most]
            n_equal = most - np.sum(own > least)
        place = start[i]
        for cell in range(rows.start[i], rows.start[i + 1]):
            value = rows.values[cell]
            if value > least or (value == least and n_equal > 0):
                n_equal -= value == least
                columns[place], values[place] = rows.columns[cell], value
                place += 1
    return Rows(start, columns, values)


def build_tree(
    vectors: sp.csr_matrix,
    *,
    branching: int = 16,
    max_leaf: int = 100,
    max_depth: int | None = None,
    balanced: bool = True,
    seed: int = 0,
    progress: Progress = SILENT,
) -> LabelTree:
    """Cluster labels top down until a cluster holds at most `max_leaf` of them.

    Args:
        vectors: (n_labels, n_features) unit rows; a label without documents has an empty one.
        branching: into how many clusters a cluster is split at most.
        max_leaf: the most labels that may share a parent.
        max_depth: the most levels of clusters between the root and the labels; the upper ones
            are left out, even if nodes then have more than `branching` children.
        balanced: make the clusters of a split equal in size, give or take one label.
        seed: fixes the starting points of k-means.
        progress: shows how many labels of a level have found their cluster.
    """
    _check_shape(branching, max_leaf, max_depth)
    rows, scratch = view_rows(vectors), Scratch(vectors.shape[1])
    n_labels = vectors.shape[0]
    labels, sizes = np.arange(n_labels, dtype=np.int32), np.array([n_labels])
    children: list[NDArray[np.int32]] = []
    while max_depth != 0 and sizes.max() > max_leaf:
        most = min(branching, MAX_WAYS)
        share = _equal_share(int(sizes.max()), most, max_leaf) if balanced else most
        ways = np.where(sizes <= max_leaf, 1, np.minimum(share, sizes))
        seeds = np.uint64(seed + 104729 * len(children)) + 7919 * np.arange(
            len(sizes), dtype=np.uint64
        )
        clusters = Clusters(labels, starts_of(sizes), ways, seeds)
        progress.stage(f"label tree, level {len(children) + 1}", n_labels)
        labels, parts = _split_all(rows, scratch, clusters, balanced, progress)
        children.append(_as_children((parts > 0).sum(axis=1)))
        sizes = parts[parts > 0]
    children.append(_as_children(sizes))
    return LabelTree(children, labels).widen(branching, max_depth)


def _split_all(
    rows: Rows, scratch: Scratch, clusters: Clusters, balanced: bool, progress: Progress
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Split clusters: side by side, but those that would take too long by themselves by all.

    Returns:
        The labels, those of a part side by side, and how many each part of each cluster has.
    """
    found = np.empty_like(clusters.chosen), np.zeros((len(clusters.ways), MAX_WAYS), np.int64)
    n_labels = np.diff(clusters.start)
    n_values = count_values(rows, clusters)
    # Twice: all threads together do twice the work.
    is_large = n_values > max(LARGE, 2 * n_values.sum() / n_threads())
    for i in np.flatnonzero(is_large).tolist():
        split_by_all(rows, scratch, clusters, i, balanced, *found)
        progress.advance(int(n_labels[i]))
    small = np.flatnonzero(~is_large)
    groups = [small[first:last] for first, last in cut_sizes(n_values[small], TOGETHER)]
    run_tasks(
        lambda group: split_many(rows, scratch.columns, clusters, group, balanced, *found),
        [(group,) for group in groups],
        [float(n_labels[group].sum()) for group in groups],
        progress,
    )
    return found


def _check_shape(branching: int, max_leaf: int, max_depth: int | None) -> None:
    for name, value, least in (
        ("branching", branching, 2),
        ("max_leaf", max_leaf, 1),
        ("max_depth", 0 if max_depth is None else max_depth, 0),
    ):
        if value < least:
            raise ParameterError(f"The '{name}' of a tree must be at least {least}. Got {value}.")


def _as_children(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    return starts_of(counts).astype(np.int32)


def _equal_share(size: int, branching: int, max_leaf: int) -> int:
    """Return into how many parts to split now, if all levels to come split into as many."""
    levels, capacity = 0, max_leaf
    while capacity < size:
        levels, capacity = levels + 1, capacity * branching
    share = 1
    while max_leaf * share**levels < size:
        share += 1
    return share
