"""Spherical k-means of sparse rows, for the splits of a label tree.

A small cluster is one compiled call, and many of them are split side by side. A large one is cut
into pieces, whose number no number of threads changes, and all threads work on it: rows find
their nearest centre piece by piece, and a centre is summed up column by column, for which each
piece is transposed once. So a seed gives the same clusters on any number of cores.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads
from longtail.runtime.rows import Rows, gather_rows

MAX_ROUNDS = 20  # it has settled long before on all data we know
LEAST_GAIN = 1e-3  # of the mean similarity, for which a further round is made
LARGEST_SHARE = 0.9  # of the rows that may stay together in an unbalanced split
LARGE = 1 << 22  # values of a cluster on which all threads work
PIECES = 32  # of a large cluster


def is_large(rows: Rows, chosen: NDArray[np.int32]) -> bool:
    """Return whether the chosen rows are so many that all threads are to work on them."""
    return (
        len(chosen) >= PIECES and int((rows.start[chosen + 1] - rows.start[chosen]).sum()) > LARGE
    )


def cluster_rows(
    rows: Rows,
    n_features: int,
    chosen: NDArray[np.int32],
    first: NDArray[np.int64],
    balanced: bool,
) -> NDArray[np.int64]:
    """Return the cluster of each of the chosen rows; those at `first` are the first centres."""
    find = _plan_large if is_large(rows, chosen) else _plan_small
    run = find(rows, n_features, chosen, first.astype(np.int64))
    cluster_of = run(balanced)
    if np.bincount(cluster_of).max() > LARGEST_SHARE * len(chosen):
        # Hardly a split at all, as with labels that are all alike: the tree would never end.
        cluster_of = run(True)
    return cluster_of


def _plan_small(
    rows: Rows, n_features: int, chosen: NDArray[np.int32], first: NDArray[np.int64]
) -> Callable[[bool], NDArray[np.int64]]:
    own, columns = gather_rows(rows, chosen, np.full(n_features, -1, np.int32))
    return lambda balanced: _kmeans(own, len(columns), first, balanced, MAX_ROUNDS)


def _plan_large(
    rows: Rows, n_features: int, chosen: NDArray[np.int32], first: NDArray[np.int64]
) -> Callable[[bool], NDArray[np.int64]]:
    pieces = _Pieces.of(rows, n_features, chosen)
    return lambda balanced: _kmeans_of_pieces(pieces, first, balanced)


# ---------------------------------------------------------------------------- on all cores


class _Pieces(NamedTuple):
    """The rows of a large cluster in pieces, and each piece by columns as well.

    Attributes:
        rows: all rows, with columns that are numbered anew from 0.
        borders: (n_pieces + 1,) the first row of each piece.
        column_start: (n_pieces, n_columns + 1) where each column of a piece begins, counted from
            the beginning of the piece.
        row_of: the row of each value of the columns of a piece, of one piece after another.
        values: these values.
    """

    rows: Rows
    borders: NDArray[np.int64]
    column_start: NDArray[np.int32]
    row_of: NDArray[np.int32]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, rows: Rows, n_features: int, chosen: NDArray[np.int32]) -> "_Pieces":
        """Cut the chosen rows, each piece with about as many values."""
        start = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(rows.start[chosen + 1] - rows.start[chosen], out=start[1:])
        places = np.searchsorted(start, np.linspace(0, start[-1], PIECES + 1)[1:-1])
        borders = np.array(sorted({0, *places.tolist(), len(chosen)}), np.int64)
        spans = list(pairwise(borders.tolist()))
        used = np.zeros(n_features, np.bool_)
        in_threads(_mark_columns, [(rows, chosen[a:b], used) for a, b in spans])
        number = (np.cumsum(used) - 1).astype(np.int32)
        n_columns = int(used.sum())
        own = Rows(start, np.empty(start[-1], np.int32), np.empty(start[-1], np.float32))
        column_start = np.empty((len(spans), n_columns + 1), np.int32)
        row_of, values = np.empty(start[-1], np.int32), np.empty(start[-1], np.float32)
        tasks = [
            (rows, chosen, number, a, b, own, column_start[i], row_of, values)
            for i, (a, b) in enumerate(spans)
        ]
        in_threads(_copy_piece, tasks)
        return cls(own, borders, column_start, row_of, values)

    @property
    def n_columns(self) -> int:
        """How many columns have a value."""
        return int(self.column_start.shape[1]) - 1

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first row of each piece, and the one behind its last."""
        return list(pairwise(self.borders.tolist()))


def _kmeans_of_pieces(
    pieces: _Pieces, first: NDArray[np.int64], balanced: bool
) -> NDArray[np.int64]:
    """Do as `_kmeans` does, on all threads."""
    rows, k = pieces.rows, len(first)
    n = len(rows.start) - 1
    centres = np.zeros((pieces.n_columns, k), np.float32)
    _begin(rows, first, centres)
    similarity, regret = np.empty((n, k), np.float32), np.empty(n, np.float32)
    cluster_of = np.full(n, -1, np.int64)
    total = -1.0
    for _ in range(MAX_ROUNDS):
        new = _assign_pieces(pieces, centres, similarity, regret, balanced)
        new_total = _sum_chosen(similarity, new)
        unchanged = bool((new == cluster_of).all())
        cluster_of = new
        if unchanged or new_total - total < LEAST_GAIN * n:
            break
        total = new_total
        _centre_pieces(pieces, cluster_of, centres)
    return cluster_of


def _assign_pieces(
    pieces: _Pieces,
    centres: NDArray[np.float32],
    similarity: NDArray[np.float32],
    regret: NDArray[np.float32],
    balanced: bool,
) -> NDArray[np.int64]:
    """Write how similar rows and centres are; return the cluster of each row."""
    tasks = [(pieces.rows, centres, similarity, a, b) for a, b in pieces.spans]
    in_threads(_compare, tasks)
    if not balanced:
        return similarity.argmax(axis=1).astype(np.int64, copy=False)
    order = in_threads(_order_piece, [(similarity, regret, a, b) for a, b in pieces.spans])
    while len(order) > 1:  # two neighbours become one, so that equal rows stay in their order
        pairs = list(zip(order[::2], order[1::2], strict=False))
        merged = in_threads(_merge, [(regret, *pair) for pair in pairs])
        order = merged + order[2 * len(pairs) :]
    assigned: NDArray[np.int64] = _assign_in_order(similarity, order[0])
    return assigned


def _centre_pieces(
    pieces: _Pieces, cluster_of: NDArray[np.int64], centres: NDArray[np.float32]
) -> None:
    """Set each centre to the unit vector along the sum of its rows."""
    base = pieces.rows.start[pieces.borders]
    spans = list(pairwise(cut(pieces.n_columns, 4 * PIECES)))
    tasks = [
        (pieces.column_start, base, pieces.row_of, pieces.values, cluster_of, centres, a, b)
        for a, b in spans
    ]
    squares = np.array(in_threads(_sum_columns, tasks)).sum(axis=0)
    scale = np.where(squares > 0, 1 / np.sqrt(np.where(squares > 0, squares, 1)), 0)
    in_threads(_scale, [(centres, scale.astype(np.float32), a, b) for a, b in spans])


@njit(nogil=True, cache=True)
def _mark_columns(rows: Rows, chosen: NDArray[np.int32], used: NDArray[np.bool_]) -> None:
    for row in chosen:
        for cell in range(rows.start[row], rows.start[row + 1]):
            used[rows.columns[cell]] = True


@njit(nogil=True, cache=True)
def _copy_piece(
    rows: Rows,
    chosen: NDArray[np.int32],
    number: NDArray[np.int32],
    first: int,
    last: int,
    own: Rows,
    column_start: NDArray[np.int32],
    row_of: NDArray[np.int32],
    values: NDArray[np.float32],
) -> None:
    """Copy the rows from `first` to below `last`, by rows and by columns."""
    column_start[:] = 0
    for i in range(first, last):
        place = own.start[i]
        for cell in range(rows.start[chosen[i]], rows.start[chosen[i] + 1]):
            column = number[rows.columns[cell]]
            own.columns[place], own.values[place] = column, rows.values[cell]
            column_start[column + 1] += 1
            place += 1
    base = own.start[first]
    for column in range(1, len(column_start)):
        column_start[column] += column_start[column - 1]
    for i in range(first, last):
        for cell in range(own.start[i], own.start[i + 1]):
            column = own.columns[cell]
            place = base + column_start[column]
            row_of[place], values[place] = i, own.values[cell]
            column_start[column] += 1
    for column in range(len(column_start) - 1, 0, -1):
        column_start[column] = column_start[column - 1]
    column_start[0] = 0


@njit(nogil=True, cache=True)
def _order_piece(
    similarity: NDArray[np.float32], regret: NDArray[np.float32], first: int, last: int
) -> NDArray[np.int64]:
    """Write the regrets of some rows, and return these by falling regret."""
    _measure_regret(similarity[first:last], regret[first:last])
    return first + np.argsort(-regret[first:last], kind="mergesort")


@njit(nogil=True, cache=True)
def _merge(
    regret: NDArray[np.float32], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return rows by falling regret; of equal ones those of `left` come first."""
    merged = np.empty(len(left) + len(right), np.int64)
    a = b = 0
    for place in range(len(merged)):
        if b == len(right) or (a < len(left) and regret[left[a]] >= regret[right[b]]):
            merged[place] = left[a]
            a += 1
        else:
            merged[place] = right[b]
            b += 1
    return merged


@njit(nogil=True, cache=True)
def _sum_columns(
    column_start: NDArray[np.int32],
    base: NDArray[np.int64],
    row_of: NDArray[np.int32],
    values: NDArray[np.float32],
    cluster_of: NDArray[np.int64],
    centres: NDArray[np.float32],
    first: int,
    last: int,
) -> NDArray[np.float64]:
    """Sum up some columns of all clusters; return the squares of these sums, by cluster."""
    k = centres.shape[1]
    squares = np.zeros(k)
    for column in range(first, last):
        for c in range(k):
            centres[column, c] = 0
        for piece in range(len(column_start)):
            begin = base[piece] + column_start[piece, column]
            end = base[piece] + column_start[piece, column + 1]
            for cell in range(begin, end):
                centres[column, cluster_of[row_of[cell]]] += values[cell]
        for c in range(k):
            squares[c] += np.float64(centres[column, c]) ** 2
    return squares


@njit(nogil=True, cache=True)
def _scale(centres: NDArray[np.float32], scale: NDArray[np.float32], first: int, last: int) -> None:
    for column in range(first, last):
        for c in range(centres.shape[1]):
            centres[column, c] *= scale[c]


# ---------------------------------------------------------------------------- in one call


@njit(nogil=True, cache=True)
def _kmeans(
    rows: Rows, n_columns: int, first: NDArray[np.int64], balanced: bool, max_rounds: int
) -> NDArray[np.int64]:
    """Spherical k-means; `first` holds the rows that serve as the first centres."""
    n, k = len(rows.start) - 1, len(first)
    centres = np.zeros((n_columns, k), np.float32)
    _begin(rows, first, centres)
    cluster_of = np.full(n, -1, np.int64)
    similarity = np.empty((n, k), np.float32)
    total = -1.0
    for _ in range(max_rounds):
        _compare(rows, centres, similarity, 0, n)
        new = _assign_balanced(similarity) if balanced else _assign_nearest(similarity)
        new_total = _sum_chosen(similarity, new)
        unchanged = np.all(new == cluster_of)
        cluster_of = new
        if unchanged or new_total - total < LEAST_GAIN * n:
            break
        total = new_total
        _centre(rows, cluster_of, centres)
    return cluster_of


@njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def _compare(
    rows: Rows,
    centres: NDArray[np.float32],
    similarity: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """Write the dot products of the rows from `first` to below `last` with every centre."""
    k = centres.shape[1]
    for i in range(first, last):
        for c in range(k):
            similarity[i, c] = 0
        for cell in range(rows.start[i], rows.start[i + 1]):
            column, value = rows.columns[cell], rows.values[cell]
            for c in range(k):
                similarity[i, c] += value * centres[column, c]


@njit(nogil=True, cache=True)
def _centre(rows: Rows, cluster_of: NDArray[np.int64], centres: NDArray[np.float32]) -> None:
    """Set each centre to the unit vector along the sum of its rows."""
    centres[:] = 0
    for i in range(len(cluster_of)):
        for cell in range(rows.start[i], rows.start[i + 1]):
            centres[rows.columns[cell], cluster_of[i]] += rows.values[cell]
    k = centres.shape[1]
    length = np.zeros(k, np.float32)
    for column in range(len(centres)):
        for c in range(k):
            length[c] += centres[column, c] ** 2
    for c in range(k):
        length[c] = 1 / np.sqrt(length[c]) if length[c] > 0 else 0
    for column in range(len(centres)):
        for c in range(k):
            centres[column, c] *= length[c]


@njit(nogil=True, cache=True)
def _assign_nearest(similarity: NDArray[np.float32]) -> NDArray[np.int64]:
    cluster_of = np.empty(len(similarity), np.int64)
    for i in range(len(similarity)):
        cluster_of[i] = np.argmax(similarity[i])
    return cluster_of


@njit(nogil=True, cache=True)
def _assign_balanced(similarity: NDArray[np.float32]) -> NDArray[np.int64]:
    """Give each cluster n/k rows, give or take one.

    The rows that lose most by missing their best cluster choose first; a row whose cluster is
    full takes the best one that is not.
    """
    regret = np.empty(len(similarity), np.float32)
    _measure_regret(similarity, regret)
    return _assign_in_order(similarity, np.argsort(-regret, kind="mergesort"))


@njit(nogil=True, cache=True)
def _measure_regret(similarity: NDArray[np.float32], regret: NDArray[np.float32]) -> None:
    """Write by how much each row prefers its best cluster to the second best."""
    for i in range(len(similarity)):
        best = second = np.float32(-np.inf)
        for c in range(similarity.shape[1]):
            value = similarity[i, c]
            if value > best:
                best, second = value, best
            elif value > second:
                second = value
        regret[i] = best - second


@njit(nogil=True, cache=True)
def _assign_in_order(
    similarity: NDArray[np.float32], order: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Let rows choose in this order among clusters that are not full."""
    n, k = similarity.shape
    room = np.full(k, n // k)
    extra = n % k  # so many clusters may take one row more
    cluster_of = np.empty(n, np.int64)
    for i in order:
        chosen = -1
        for c in range(k):
            free = room[c] > 0 or (room[c] == 0 and extra > 0)
            if free and (chosen < 0 or similarity[i, c] > similarity[i, chosen]):
                chosen = c
        extra -= room[chosen] == 0
        room[chosen] -= 1
        cluster_of[i] = chosen
    return cluster_of


@njit(nogil=True, cache=True)
def _begin(rows: Rows, first: NDArray[np.int64], centres: NDArray[np.float32]) -> None:
    """Make some rows the centres."""
    for c in range(len(first)):
        for cell in range(rows.start[first[c]], rows.start[first[c] + 1]):
            centres[rows.columns[cell], c] = rows.values[cell]


@njit(nogil=True, cache=True)
def _sum_chosen(similarity: NDArray[np.float32], cluster_of: NDArray[np.int64]) -> float:
    """Return how similar all rows together are to their clusters."""
    total = 0.0
    for i in range(len(cluster_of)):
        total += similarity[i, cluster_of[i]]
    return total
