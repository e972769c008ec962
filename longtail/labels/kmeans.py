"""Spherical k-means of sparse rows, for the splits of a label tree.

A cluster is split by one compiled call, small ones many by one call, as Python would else be what
takes longest, and all of this goes on side by side. Where a level has fewer than there are cores,
all threads work on a large one: rows find their nearest centre piece by piece, and a centre is
summed up column by column, for which the rows are transposed once. That is twice the work, and
gives the same bits: values of a column are added in the order of the rows, and the squares of
columns, which the two number differently, as whole numbers.
"""

from collections.abc import Sequence
from itertools import pairwise
from threading import local
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.labels.drawing import draw_places
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads
from longtail.runtime.rows import Rows, gather_rows

MAX_ROUNDS = 20  # it has settled long before on all data we know
LEAST_GAIN = 1e-3  # of the mean similarity, for which a further round is made
LARGEST_SHARE = 0.9  # of the rows that may stay together in an unbalanced split
LARGE = 1 << 22  # values of a cluster on which all threads may work
PIECES = 32  # of a large cluster
SQUARE = 2.0**52  # of the longest sum that n rows of length 1 can have, as a whole number


class Scratch(local):
    """Room for a number of each column, once a thread: it would take longer than a small split."""

    def __init__(self, n_columns: int) -> None:
        """Be −1 everywhere, as `gather_rows` leaves it."""
        self.columns = np.full(n_columns, -1, np.int32)


def starts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of what has these counts begins, and the end of the last."""
    start = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    return start


class Clusters(NamedTuple):
    """Sets of rows that are to be split.

    Attributes:
        chosen: the rows of all sets, those of a set side by side.
        start: (n + 1,) where the rows of each set begin.
        ways: (n,) into how many parts to split it; 1 leaves it as it is.
        seeds: (n,) by which the first centres are drawn.
    """

    chosen: NDArray[np.int32]
    start: NDArray[np.int64]
    ways: NDArray[np.int64]
    seeds: NDArray[np.uint64]


def count_values(rows: Rows, clusters: Clusters) -> NDArray[np.int64]:
    """Return how many values the rows of each cluster have."""
    ends = starts_of(rows.start[clusters.chosen + 1] - rows.start[clusters.chosen])
    return np.diff(ends[clusters.start])


def split_by_all(
    rows: Rows,
    scratch: Scratch,
    clusters: Clusters,
    i: int,
    balanced: bool,
    ordered: NDArray[np.int32],
    sizes: NDArray[np.int64],
) -> None:
    """Split one of the clusters on all threads, and write what `split_many` writes."""
    own = clusters.chosen[clusters.start[i] : clusters.start[i + 1]]
    seen, unseen = _divide(rows, own)
    k = min(clusters.ways[i], len(seen))
    cluster_of = np.zeros(len(seen), np.int64)
    if k > 1:
        first = draw_places(len(seen), k, clusters.seeds[i])
        cluster_of = cluster_by_all(rows, len(scratch.columns), seen, first, balanced)
    place = slice(clusters.start[i], clusters.start[i + 1])
    _arrange(seen, unseen, cluster_of, ordered[place], sizes[i, : clusters.ways[i]])


# ---------------------------------------------------------------------------- on all cores


def cluster_by_all(
    rows: Rows,
    n_features: int,
    chosen: NDArray[np.int32],
    first: NDArray[np.int64],
    balanced: bool,
) -> NDArray[np.int64]:
    """Return the cluster of each of the chosen rows, as `cluster_rows` does, on all threads."""
    pieces = _Pieces.of(rows, n_features, chosen)
    cluster_of = _kmeans_of_pieces(pieces, first, balanced)
    if np.bincount(cluster_of).max() > LARGEST_SHARE * len(chosen):
        cluster_of = _kmeans_of_pieces(pieces, first, True)
    return cluster_of


class _Pieces(NamedTuple):
    """The rows of a large cluster, cut into pieces, and the same by columns.

    Attributes:
        rows: all rows, with columns that are numbered anew from 0.
        spans: the first row of each piece, and the one behind its last.
        columns: for each column, the rows that have a value there, rising, and these values.
        ranges: columns that are summed up together, about as many values in each range.
    """

    rows: Rows
    spans: Sequence[tuple[int, int]]
    columns: Rows
    ranges: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, rows: Rows, n_features: int, chosen: NDArray[np.int32]) -> "_Pieces":
        """Cut the chosen rows, each piece with about as many values."""
        start = starts_of(rows.start[chosen + 1] - rows.start[chosen])
        spans = _cut_evenly(start, PIECES)
        used = np.zeros(n_features, np.bool_)
        in_threads(_mark_columns, [(rows, chosen[a:b], used) for a, b in spans])
        number = _number_columns(rows, chosen[: spans[0][1]], used)
        own = Rows(start, np.empty(start[-1], np.int32), np.empty(start[-1], np.float32))
        counts = np.zeros((len(spans), int(used.sum())), np.int32)
        tasks = [(rows, chosen, number, *span, own, counts[i]) for i, span in enumerate(spans)]
        in_threads(_copy_rows, tasks)
        cuts = pairwise(cut(counts.shape[1], PIECES))
        totals = in_threads(_to_offsets, [(counts, a, b) for a, b in cuts])
        column_start = starts_of(np.concatenate(totals))
        columns = Rows(column_start, np.empty_like(own.columns), np.empty_like(own.values))
        in_threads(_transpose, [(own, *span, counts[i], columns) for i, span in enumerate(spans)])
        return cls(own, spans, columns, _cut_evenly(column_start, 4 * PIECES))

    @property
    def n_columns(self) -> int:
        """How many columns have a value."""
        return len(self.columns.start) - 1


def _cut_evenly(start: NDArray[np.int64], n_parts: int) -> list[tuple[int, int]]:
    """Cut what begins at `start` into parts with about as many values."""
    places = np.searchsorted(start, np.linspace(0, start[-1], n_parts + 1)[1:-1])
    return list(pairwise(sorted({0, *places.tolist(), len(start) - 1})))


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
        nearest: NDArray[np.int64] = similarity.argmax(axis=1)
        return nearest
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
    tasks = [(pieces.columns, cluster_of, centres, *span) for span in pieces.ranges]
    squares = np.array(in_threads(_sum_columns, tasks)).sum(axis=0)
    scale = _find_scales(squares, len(cluster_of))
    in_threads(_scale, [(centres, scale, *span) for span in pieces.ranges])


@njit(nogil=True, cache=True)
def _mark_columns(rows: Rows, chosen: NDArray[np.int32], used: NDArray[np.bool_]) -> None:
    for row in chosen:
        for cell in range(rows.start[row], rows.start[row + 1]):
            used[rows.columns[cell]] = True


@njit(nogil=True, cache=True)
def _number_columns(
    rows: Rows, chosen: NDArray[np.int32], used: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Number the columns that are used, first those of some rows, as they first appear.

    That puts the frequent ones side by side: see `gather_rows`.
    """
    number = np.full(len(used), -1, np.int32)
    n = 0
    for row in chosen:
        for cell in range(rows.start[row], rows.start[row + 1]):
            if number[rows.columns[cell]] < 0:
                number[rows.columns[cell]] = n
                n += 1
    for column in range(len(used)):
        if used[column] and number[column] < 0:
            number[column] = n
            n += 1
    return number


@njit(nogil=True, cache=True)
def _copy_rows(
    rows: Rows,
    chosen: NDArray[np.int32],
    number: NDArray[np.int32],
    first: int,
    last: int,
    own: Rows,
    counts: NDArray[np.int32],
) -> None:
    """Copy the rows from `first` to below `last`, and count the values of each column."""
    for i in range(first, last):
        place = own.start[i]
        for cell in range(rows.start[chosen[i]], rows.start[chosen[i] + 1]):
            column = number[rows.columns[cell]]
            own.columns[place], own.values[place] = column, rows.values[cell]
            counts[column] += 1
            place += 1


@njit(nogil=True, cache=True)
def _to_offsets(counts: NDArray[np.int32], first: int, last: int) -> NDArray[np.int64]:
    """Turn the counts of some columns, (pieces, columns), into those of all pieces before.

    Returns:
        How many values each of these columns has in all pieces.
    """
    totals = np.zeros(last - first, np.int64)
    for piece in range(len(counts)):
        for column in range(first, last):
            count = counts[piece, column]
            counts[piece, column] = totals[column - first]
            totals[column - first] += count
    return totals


@njit(nogil=True, cache=True)
def _transpose(own: Rows, first: int, last: int, offsets: NDArray[np.int32], columns: Rows) -> None:
    """Write these rows where they belong in each column, behind those of earlier pieces."""
    for i in range(first, last):
        for cell in range(own.start[i], own.start[i + 1]):
            column = own.columns[cell]
            place = columns.start[column] + offsets[column]
            columns.columns[place], columns.values[place] = i, own.values[cell]
            offsets[column] += 1


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
    columns: Rows,
    cluster_of: NDArray[np.int64],
    centres: NDArray[np.float32],
    first: int,
    last: int,
) -> NDArray[np.int64]:
    """Sum up some columns of all clusters; return the squares of these sums, by cluster."""
    k = centres.shape[1]
    squares = np.zeros(k, np.int64)
    n = len(cluster_of)
    for column in range(first, last):
        for c in range(k):
            centres[column, c] = 0
        for cell in range(columns.start[column], columns.start[column + 1]):
            centres[column, cluster_of[columns.columns[cell]]] += columns.values[cell]
        for c in range(k):
            squares[c] += _square(centres[column, c], n)
    return squares


@njit(nogil=True, cache=True)
def _scale(centres: NDArray[np.float32], scale: NDArray[np.float32], first: int, last: int) -> None:
    for column in range(first, last):
        for c in range(centres.shape[1]):
            centres[column, c] *= scale[c]


# ---------------------------------------------------------------------------- in one call


@njit(nogil=True, cache=True)
def split_many(
    rows: Rows,
    new_column: NDArray[np.int32],
    clusters: Clusters,
    which: NDArray[np.int64],
    balanced: bool,
    ordered: NDArray[np.int32],
    sizes: NDArray[np.int64],
) -> None:
    """Split some of the clusters, one after another.

    Args:
        rows: all rows.
        new_column: the columns of a `Scratch`.
        clusters: the sets of rows that may be split.
        which: those that are.
        balanced: whether parts are to be of equal size.
        ordered: where the chosen rows are written, those of a part side by side in their order.
        sizes: (n, most ways), where the number of rows of each part is written; those that have
            none are the last.
    """
    for i in which:
        begin, end, k = clusters.start[i], clusters.start[i + 1], clusters.ways[i]
        seen, unseen = _divide(rows, clusters.chosen[begin:end])
        cluster_of = np.zeros(len(seen), np.int64)
        if min(k, len(seen)) > 1:
            first = draw_places(len(seen), min(k, len(seen)), clusters.seeds[i])
            cluster_of = cluster_rows(rows, new_column, seen, first, balanced)
        _arrange(seen, unseen, cluster_of, ordered[begin:end], sizes[i, :k])


@njit(nogil=True, cache=True)
def cluster_rows(
    rows: Rows,
    new_column: NDArray[np.int32],
    chosen: NDArray[np.int32],
    first: NDArray[np.int64],
    balanced: bool,
) -> NDArray[np.int64]:
    """Return the cluster of each of the chosen rows; those at `first` are the first centres."""
    own, columns = gather_rows(rows, chosen, new_column)
    cluster_of = _kmeans(own, len(columns), first, balanced, MAX_ROUNDS)
    if np.bincount(cluster_of).max() > LARGEST_SHARE * len(cluster_of):
        # Hardly a split at all, as with labels that are all alike: the tree would never end.
        cluster_of = _kmeans(own, len(columns), first, True, MAX_ROUNDS)
    return cluster_of


@njit(nogil=True, cache=True)
def _divide(rows: Rows, chosen: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the rows that have a value, and those that have none."""
    has_values = rows.start[chosen + 1] > rows.start[chosen]
    return chosen[has_values], chosen[~has_values]


@njit(nogil=True, cache=True)
def _arrange(
    seen: NDArray[np.int32],
    unseen: NDArray[np.int32],
    cluster_of: NDArray[np.int64],
    ordered: NDArray[np.int32],
    sizes: NDArray[np.int64],
) -> None:
    """Write rows part by part; those without a value are dealt out, most to the smallest parts."""
    counts = np.bincount(cluster_of, minlength=len(sizes))
    part_of = np.cumsum(counts > 0) - 1  # so that empty parts are the last
    for cluster in np.flatnonzero(counts):
        sizes[part_of[cluster]] = counts[cluster]
    smallest_first = np.argsort(sizes, kind="mergesort")
    share, n_larger = divmod(len(unseen), len(sizes))
    sizes += share
    sizes[smallest_first[:n_larger]] += 1
    place = np.cumsum(sizes) - sizes
    for i in range(len(seen)):
        part = part_of[cluster_of[i]]
        ordered[place[part]] = seen[i]
        place[part] += 1
    ends = np.cumsum(sizes)
    dealt = 0
    for part in smallest_first:
        n = ends[part] - place[part]
        ordered[place[part] : ends[part]] = unseen[dealt : dealt + n]
        dealt += n


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
    squares = np.zeros(centres.shape[1], np.int64)
    for column in range(len(centres)):
        for c in range(len(squares)):
            squares[c] += _square(centres[column, c], len(cluster_of))
    _scale(centres, _find_scales(squares, len(cluster_of)), 0, len(centres))


@njit(nogil=True, cache=True)
def _square(value: np.float32, n: int) -> np.int64:
    """Return a square as a whole number: sums of these are the same in any order."""
    return np.int64(np.rint(np.float64(value) ** 2 * (SQUARE / n / n)))


@njit(nogil=True, cache=True)
def _find_scales(squares: NDArray[np.int64], n: int) -> NDArray[np.float32]:
    """Return what gives each centre the length 1, by its sum of squares."""
    scale = np.zeros(len(squares), np.float32)
    for c in range(len(squares)):
        if squares[c] > 0:
            scale[c] = 1 / np.sqrt(squares[c] * (n * n / SQUARE))
    return scale


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
