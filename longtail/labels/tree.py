"""LabelTree: labels grouped by what their documents say, so that a search need not try all.

A label's vector is the normalized sum of its documents' feature rows. Spherical k-means splits
the labels into clusters, and these again, top down. `compress` turns a deep binary tree into
the shallow and wide one of AttentionXML (You et al., NeurIPS 2019, section 2.2).

Labels that no training document carries have no vector; they are dealt out evenly, so every
label has a leaf and the tree of a given label set has always the same size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import ParameterError
from longtail.labels.kmeans import LARGE, Scratch, cluster_many, cluster_rows, count_values
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

_Task = tuple[Rows, Scratch, NDArray[np.int32], int, bool, int]  # what `_split` takes


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
        """Leave out inner levels, from the bottom up, while no node gets more than `branching`.

        The parents of the labels stay. With `max_depth`, at most so many inner levels stay, and
        nodes may have more than `branching` children.
        """
        kept = [self.depth - 1]
        for level in range(self.depth - 2, 0, -1):
            above = np.diff(self.keep([level - 1, *kept]).children[1 if level > 1 else 0])
            full = max_depth is not None and len(kept) >= max_depth
            if above.max() > branching and not full:
                kept.append(level)
        return self.keep(kept if self.depth > 1 else [])

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


def build_label_vectors(X: sp.csr_matrix, Y: sp.csr_matrix) -> sp.csr_matrix:
    """Return (n_labels, n_features) unit rows: the normalized sums of the labels' documents.

    Of documents that are larger than memory, a label's vector has its largest values only, so many
    that all vectors fit.
    """
    by_label = Y.T.tocsr()
    if not is_mapped(X):
        return _multiply(by_label, X)
    most = max(LEAST_VALUES, MOST_VALUES // max(1, Y.shape[1]))
    return scale_to_unit(multiply_in_blocks(by_label, X, AT_ONCE, most))


def _multiply(A: sp.csr_matrix, B: sp.csr_matrix) -> sp.csr_matrix:
    """Return A·B with rows of length 1, made of pieces on all cores."""
    n_cells = A @ np.diff(B.indptr).astype(np.float64)

    def multiply(first: int, last: int) -> sp.csr_matrix:
        part = A[first:last] @ B
        part.sort_indices()
        return scale_to_unit(part)

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
        kept = keep_largest(view_rows(part), most)
        product.add(sp.csr_matrix((kept.values, kept.columns, kept.start), part.shape))
    return product.map()


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
    rows = view_rows(vectors)
    n_labels, scratch = vectors.shape[0], Scratch(vectors.shape[1])
    clusters = [np.arange(n_labels, dtype=np.int32)]
    children: list[NDArray[np.int32]] = []
    while max_depth != 0 and any(len(cluster) > max_leaf for cluster in clusters):
        most = min(branching, MAX_WAYS)
        share = _equal_share(max(map(len, clusters)), most, max_leaf) if balanced else most
        ways = [1 if len(cluster) <= max_leaf else min(share, len(cluster)) for cluster in clusters]
        tasks = [
            (rows, scratch, cluster, k, balanced, seed + 7919 * i + 104729 * len(children))
            for i, (cluster, k) in enumerate(zip(clusters, ways, strict=True))
        ]
        progress.stage(f"label tree, level {len(children) + 1}", n_labels)
        splits = _split_all(tasks, progress)
        children.append(_starts(len(parts) for parts in splits))
        clusters = [part for parts in splits for part in parts]
    children.append(_starts(len(cluster) for cluster in clusters))
    return LabelTree(children, np.concatenate(clusters)).widen(branching, max_depth)


def _split_all(tasks: Sequence[_Task], progress: Progress) -> list[list[NDArray[np.int32]]]:
    """Split clusters: side by side, but those that would take too long by themselves by all."""
    sizes = [count_values(rows, labels) for rows, _, labels, *_ in tasks]
    # Twice: all threads together do twice the work.
    share = max(LARGE, 2 * sum(sizes) / n_threads())
    splits: dict[int, list[NDArray[np.int32]]] = {}
    for i, size in enumerate(sizes):
        if size > share:
            splits[i] = _split(*tasks[i], by_all=True)
            progress.advance(len(tasks[i][2]))
    groups = _group([i for i in range(len(tasks)) if i not in splits], sizes)
    costs = [float(sum(len(tasks[i][2]) for i in group)) for group in groups]
    found = run_tasks(
        _split_group, [([tasks[i] for i in group],) for group in groups], costs, progress
    )
    for group, parts in zip(groups, found, strict=True):
        splits |= dict(zip(group, parts, strict=True))
    return [splits[i] for i in range(len(tasks))]


def _group(which: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Put neighbours together that have few values."""
    pieces = cut_sizes(np.array([sizes[i] for i in which], np.int64), TOGETHER)
    return [list(which[first:last]) for first, last in pieces]


def _split_group(tasks: Sequence[_Task]) -> list[list[NDArray[np.int32]]]:
    """Split some clusters, all by one call if they are alike and their labels have vectors."""
    rows, scratch, _, k, balanced, _ = tasks[0]
    labels = np.concatenate([task[2] for task in tasks])
    are_alike = all(task[3] == k <= len(task[2]) for task in tasks)
    if len(tasks) == 1 or k < 2 or not are_alike or not _have_vectors(rows, labels):
        return [_split(*task) for task in tasks]
    first = np.stack([_draw_first(len(own), k, seed) for _, _, own, _, _, seed in tasks])
    ends = np.cumsum([len(task[2]) for task in tasks])
    ordered, sizes = cluster_many(rows, scratch.columns, labels, ends, first, balanced)
    parts = np.split(ordered, np.cumsum(sizes)[:-1])
    return [[part for part in parts[k * i : k * (i + 1)] if len(part)] for i in range(len(tasks))]


def _have_vectors(rows: Rows, labels: NDArray[np.int32]) -> bool:
    return bool((rows.start[labels + 1] > rows.start[labels]).all())


def _draw_first(n: int, k: int, seed: int) -> NDArray[np.int64]:
    """Draw the labels that are the first centres, as places."""
    return np.random.default_rng(seed).choice(n, size=k, replace=False).astype(np.int64)


def _check_shape(branching: int, max_leaf: int, max_depth: int | None) -> None:
    for name, value, least in (
        ("branching", branching, 2),
        ("max_leaf", max_leaf, 1),
        ("max_depth", 0 if max_depth is None else max_depth, 0),
    ):
        if value < least:
            raise ParameterError(f"The '{name}' of a tree must be at least {least}. Got {value}.")


def _starts(counts: Iterable[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *counts], dtype=np.int32)


def _equal_share(size: int, branching: int, max_leaf: int) -> int:
    """Return into how many parts to split now, if all levels to come split into as many."""
    levels, capacity = 0, max_leaf
    while capacity < size:
        levels, capacity = levels + 1, capacity * branching
    share = 1
    while max_leaf * share**levels < size:
        share += 1
    return share


def _split(
    rows: Rows,
    scratch: Scratch,
    labels: NDArray[np.int32],
    k: int,
    balanced: bool,
    seed: int,
    *,
    by_all: bool = False,
) -> list[NDArray[np.int32]]:
    """Split `labels` into `k` clusters, none of them empty."""
    if k == 1:
        return [labels]
    has_vector = rows.start[labels + 1] > rows.start[labels]
    if has_vector.all():  # the usual case, and there are very many small clusters
        return _cluster(rows, scratch, labels, min(k, len(labels)), balanced, seed, by_all)
    seen, unseen = labels[has_vector], labels[~has_vector]
    parts = _cluster(rows, scratch, seen, min(k, len(seen)), balanced, seed, by_all)
    parts += [np.empty(0, np.int32)] * (k - len(parts))
    order = np.argsort([len(part) for part in parts], kind="stable")
    for place, share in zip(order, np.array_split(unseen, k), strict=True):
        parts[place] = np.concatenate((parts[place], share))
    return [part for part in parts if len(part)]


def _cluster(
    rows: Rows,
    scratch: Scratch,
    labels: NDArray[np.int32],
    k: int,
    balanced: bool,
    seed: int,
    by_all: bool,
) -> list[NDArray[np.int32]]:
    if k < 2:
        return [labels] if len(labels) else []
    first = _draw_first(len(labels), k, seed)
    cluster_of = cluster_rows(rows, scratch, labels, first, balanced, by_all=by_all)
    ordered = labels[np.argsort(cluster_of, kind="stable")]
    ends = np.cumsum(np.bincount(cluster_of, minlength=k)).tolist()
    return [ordered[a:b] for a, b in pairwise([0, *ends]) if b > a]
