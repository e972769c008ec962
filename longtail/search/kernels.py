"""Compiled search for the vectors with the highest inner products; `index` is its front.

Every vector is kept twice: as float32, and as one byte a dimension with a scale, which is a quarter
of the memory to read. The query is rounded to 16 bits, so the product of both is a sum of whole
numbers. To that, `slack` × the query's length is added: by Cauchy and Schwarz the true product
cannot lie above this bound. Only vectors whose bound reaches the worst of the k best so far are
multiplied for good. What is found is therefore exactly the k best of all vectors looked at,
whatever the rounding.

Results depend on nothing but the query and the vectors: sums of whole numbers have no order, the
final products are summed in float64 in one fixed order, and of equal scores the lower id wins.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

BLOCK = 256  # vectors multiplied at a stretch; of 512 dimensions, they take 128 KB of L2 cache
GROUP = 64  # queries that should be searched for together, to share a block in the cache

NOTHING = np.int32(np.iinfo(np.int32).max)  # an id worse than all others


class Codes(NamedTuple):
    """Vectors rounded to one byte a dimension.

    Attributes:
        values: (n, width) whole numbers from -127 to 127; zeros beyond the last dimension.
        scale: (n,) what a row of `values` is multiplied by to come near the vector.
        slack: (n,) how far a product can lie above that of the rounded vectors, at most, for
            a query of length 1.
    """

    values: NDArray[np.int8]
    scale: Floats
    slack: Floats


class Cells(NamedTuple):
    """Vectors divided by where they point; an exact index has one cell for all.

    Attributes:
        centres: the codes of the cells' directions, as long as their vectors are.
        start: (n_cells + 1,) where the vectors of each cell begin in `order`.
        order: (n,) the vectors' ids, cell by cell.
    """

    centres: Codes
    start: NDArray[np.int64]
    order: Ids


class Searched(NamedTuple):
    """All that a search looks at; the codes are in the order of the cells."""

    vectors: Floats
    codes: Codes
    cells: Cells


class Query(NamedTuple):
    """A query as it came, rounded to 16 bits, the scale of that, and its length."""

    values: Floats
    rounded: NDArray[np.int16]
    scale: float
    length: float


class Best(NamedTuple):
    """The best found so far, as a heap with the worst of them on top."""

    ids: Ids
    scores: Floats


# ---------------------------------------------------------------------------------------- codes


@njit(nogil=True, cache=True)
def largest_query_value(dim: int) -> int:
    """Return the largest value of a rounded query for which no product exceeds 32 bits."""
    return min(32767, (2**31 - 1) // (127 * dim))


@njit(nogil=True, cache=True)
def encode_rows(vectors: Floats, order: Ids, first: int, last: int, codes: Codes) -> None:
    """Write the codes of the vectors order[first] … order[last - 1] to the rows of these places."""
    dim = vectors.shape[1]
    # How far a query's own rounding can move a product, and some float32 roundings on top.
    rounding = np.sqrt(dim) / (2 * largest_query_value(dim)) + 4e-6
    for i in range(first, last):
        row, own = vectors[order[i]], codes.values[i]
        largest = np.float32(0)
        for j in range(dim):
            largest = max(largest, abs(row[j]))
        scale = np.float32(largest / 127)
        length, error = 0.0, 0.0
        for j in range(dim):
            value, code = np.float64(row[j]), 0.0
            if scale > 0:
                code = min(max(np.rint(value / scale), -127.0), 127.0)
            own[j] = np.int8(code)
            length += value * value
            error += (value - code * scale) ** 2
        error = np.sqrt(error)
        codes.scale[i] = scale
        # never rounded down, not even where float32 is at its smallest
        codes.slack[i] = (error + rounding * (np.sqrt(length) + error)) * (1 + 1e-6) + 2e-45


@njit(nogil=True, cache=True)
def round_query(query: Floats, rounded: NDArray[np.int16]) -> Query:
    """Round a query to 16 bits, into `rounded`."""
    largest, length = 0.0, 0.0
    for j in range(len(query)):
        largest = max(largest, abs(np.float64(query[j])))
        length += np.float64(query[j]) ** 2
    scale = largest / largest_query_value(len(query))
    for j in range(len(query)):
        rounded[j] = np.int16(np.rint(query[j] / scale)) if scale > 0 else 0
    return Query(query, rounded, scale, np.sqrt(length))


@njit(nogil=True, cache=True)
def to_unit(matrix: Floats) -> Floats:
    """Return the rows with length 1; rows of zeros stay so."""
    unit = np.zeros_like(matrix)
    for i in range(matrix.shape[0]):
        squares = 0.0
        for j in range(matrix.shape[1]):
            squares += np.float64(matrix[i, j]) ** 2
        if squares > 0:
            scale = 1 / np.sqrt(squares)
            for j in range(matrix.shape[1]):
                unit[i, j] = np.float32(matrix[i, j] * scale)
    return unit


@njit(nogil=True, cache=True)
def multiply_codes(
    values: NDArray[np.int8], rounded: NDArray[np.int16], products: NDArray[np.int32]
) -> None:
    """Multiply rows of codes with a rounded query; compiles to 16-bit multiply-and-add."""
    for i in range(len(values)):
        row = values[i]
        total = np.int32(0)
        for j in range(len(rounded)):
            total = np.int32(total + np.int32(np.int32(row[j]) * np.int32(rounded[j])))
        products[i] = total


@njit(nogil=True, cache=True)
def multiply_exactly(a: Floats, b: Floats) -> np.float32:
    """Return the inner product, summed in float64 in an order that depends on the length only."""
    n = len(a)
    s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(0, n - 7, 8):  # eight sums, as each would have to wait for its last addition
        s0 += np.float64(a[j]) * np.float64(b[j])
        s1 += np.float64(a[j + 1]) * np.float64(b[j + 1])
        s2 += np.float64(a[j + 2]) * np.float64(b[j + 2])
        s3 += np.float64(a[j + 3]) * np.float64(b[j + 3])
        s4 += np.float64(a[j + 4]) * np.float64(b[j + 4])
        s5 += np.float64(a[j + 5]) * np.float64(b[j + 5])
        s6 += np.float64(a[j + 6]) * np.float64(b[j + 6])
        s7 += np.float64(a[j + 7]) * np.float64(b[j + 7])
    for j in range(n - n % 8, n):
        s0 += np.float64(a[j]) * np.float64(b[j])
    return np.float32(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))


# ----------------------------------------------------------------------------------------- heaps


@njit(nogil=True, cache=True)
def new_best(k: int) -> Best:
    """Return a heap of `k` places that anything is better than."""
    return Best(np.full(k, NOTHING, np.int32), np.full(k, np.float32(-np.inf)))


@njit(nogil=True, cache=True)
def _replace_worst(best: Best, new: np.int32, score: np.float32, size: int) -> None:
    ids, scores = best
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            scores[other] < scores[child]
            or (scores[other] == scores[child] and ids[other] > ids[child])
        ):
            child = other
        if score < scores[child] or (score == scores[child] and new > ids[child]):
            break
        ids[place], scores[place] = ids[child], scores[child]
        place = child
    ids[place], scores[place] = new, score


@njit(nogil=True, cache=True)
def offer(best: Best, new: np.int32, score: np.float32) -> None:
    """Put `new` among the best if it is better than the worst of them."""
    if score > best.scores[0] or (score == best.scores[0] and new < best.ids[0]):
        _replace_worst(best, new, score, len(best.ids))


@njit(nogil=True, cache=True)
def sort_best(best: Best) -> None:
    """Empty the heap from its end, which leaves the best in front."""
    for size in range(len(best.ids) - 1, 0, -1):
        worst, score = best.ids[0], best.scores[0]
        _replace_worst(best, best.ids[size], best.scores[size], size)
        best.ids[size], best.scores[size] = worst, score


# ---------------------------------------------------------------------------------------- search


@njit(nogil=True, cache=True)
def search(
    searched: Searched, queries: Floats, k: int, n_probed: int, piece: int, n_pieces: int
) -> tuple[Ids, Floats]:
    """Return ids and scores (n, k) of the best for each query, best first.

    Args:
        searched: the vectors, at least `k`.
        queries: (n, dim).
        k: how many are wanted.
        n_probed: how many cells to open, or more where these hold fewer than `k` vectors.
        piece: which part of the vectors looked at is searched here.
        n_pieces: into how many parts they are divided, so that threads can share a query. A part
            may hold fewer than `k`; `NOTHING` stands for the rest.
    """
    vectors, codes, cells = searched
    n, n_vectors = len(queries), len(vectors)
    ids, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    rounded = np.zeros((n, codes.values.shape[1]), np.int16)
    scale, length = np.empty(n, np.float64), np.empty(n, np.float64)
    products = np.empty(BLOCK, np.int32)
    for q in range(n):
        query = round_query(queries[q], rounded[q])
        scale[q], length[q] = query.scale, query.length
        ids[q], scores[q] = NOTHING, -np.inf
        if query.length == 0 and piece == 0:  # all products are 0, so the lowest ids win
            for place in range(k):
                offer(Best(ids[q], scores[q]), np.int32(place), np.float32(0))
        elif query.length > 0 and n_probed < len(cells.start) - 1:
            best = Best(ids[q], scores[q])
            _search_cells(searched, query, n_probed, piece, n_pieces, best, products)
    if n_probed >= len(cells.start) - 1:  # a block at a time, for all queries while it is cached
        begin, end = n_vectors * piece // n_pieces, n_vectors * (piece + 1) // n_pieces
        for first in range(begin, end, BLOCK):
            for q in range(n):
                if length[q] > 0:
                    query = Query(queries[q], rounded[q], scale[q], length[q])
                    best = Best(ids[q], scores[q])
                    _scan(searched, first, min(first + BLOCK, end), query, best, products)
    for q in range(n):
        sort_best(Best(ids[q], scores[q]))
    return ids, scores


@njit(nogil=True, cache=True)
def _scan(
    searched: Searched,
    first: int,
    last: int,
    query: Query,
    best: Best,
    products: NDArray[np.int32],
) -> None:
    """Offer the vectors at the places first ≤ i < last, one block at most."""
    vectors, codes, cells = searched
    multiply_codes(codes.values[first:last], query.rounded, products)
    for i in range(first, last):
        near = products[i - first] * (codes.scale[i] * query.scale)
        if near + (query.length * codes.slack[i] + 2e-45) >= best.scores[0]:
            new = cells.order[i]
            offer(best, new, multiply_exactly(vectors[new], query.values))


@njit(nogil=True, cache=True)
def _search_cells(
    searched: Searched,
    query: Query,
    n_probed: int,
    piece: int,
    n_pieces: int,
    best: Best,
    products: NDArray[np.int32],
) -> None:
    """Offer one piece of the vectors in the best cells."""
    start = searched.cells.start
    opened = _open_enough(searched.cells, query.rounded, n_probed, len(best.ids), products)
    total = 0
    for cell in opened:
        total += start[cell + 1] - start[cell]
    begin, end = total * piece // n_pieces, total * (piece + 1) // n_pieces
    before = 0
    for cell in opened:
        size, offset = start[cell + 1] - start[cell], start[cell] - before
        stop = min(before + size, end) + offset
        for first in range(max(before, begin) + offset, stop, BLOCK):
            _scan(searched, first, min(first + BLOCK, stop), query, best, products)
        before += size


@njit(nogil=True, cache=True)
def _open_enough(
    cells: Cells, rounded: NDArray[np.int16], n_probed: int, k: int, products: NDArray[np.int32]
) -> Ids:
    """Return the best `n_probed` cells, or as many more as it takes to hold `k` vectors."""
    opened = open_cells(cells, rounded, n_probed, products)
    total = 0
    for cell in opened:
        total += cells.start[cell + 1] - cells.start[cell]
    if total < k:
        opened = open_cells(cells, rounded, len(cells.start) - 1, products)
        n_opened = n_probed
        while total < k:
            total += cells.start[opened[n_opened] + 1] - cells.start[opened[n_opened]]
            n_opened += 1
        opened = opened[:n_opened]
    return opened


@njit(nogil=True, cache=True)
def open_cells(
    cells: Cells, rounded: NDArray[np.int16], n_probed: int, products: NDArray[np.int32]
) -> Ids:
    """Return the `n_probed` cells whose centres have the highest products, best first."""
    n_cells = len(cells.start) - 1
    best = new_best(n_probed)
    for first in range(0, n_cells, BLOCK):
        last = min(first + BLOCK, n_cells)
        multiply_codes(cells.centres.values[first:last], rounded, products)
        for cell in range(first, last):
            score = np.float32(products[cell - first] * np.float64(cells.centres.scale[cell]))
            offer(best, np.int32(cell), score)
    sort_best(best)
    return best.ids


@njit(nogil=True, cache=True)
def merge(ids: Ids, scores: Floats, k: int) -> tuple[Ids, Floats]:
    """Return the k best of each row."""
    best_ids = np.full((len(ids), k), NOTHING, np.int32)
    best_scores = np.full((len(ids), k), np.float32(-np.inf))
    for q in range(len(ids)):
        best = Best(best_ids[q], best_scores[q])
        for place in range(ids.shape[1]):
            offer(best, ids[q, place], scores[q, place])
        sort_best(best)
    return best_ids, best_scores


@njit(nogil=True, cache=True)
def decide(vectors: Floats, queries: Floats, candidates: Ids, k: int) -> tuple[Ids, Floats]:
    """Return the k best of each query's candidates; -1 is none."""
    best_ids = np.full((len(queries), k), NOTHING, np.int32)
    best_scores = np.full((len(queries), k), np.float32(-np.inf))
    for q in range(len(queries)):
        best = Best(best_ids[q], best_scores[q])
        for new in candidates[q]:
            if new >= 0:
                offer(best, new, multiply_exactly(vectors[new], queries[q]))
        sort_best(best)
    return best_ids, best_scores


# ----------------------------------------------------------------------------------------- cells


@njit(nogil=True, cache=True)
def find_centres(vectors: Floats, first: int, last: int, centres: Codes, nearest: Ids) -> None:
    """Write for the vectors first ≤ i < last which centre has the highest product."""
    n_cells = len(centres.values)
    products = np.empty(BLOCK, np.int32)
    rounded = np.zeros((GROUP, centres.values.shape[1]), np.int16)
    highest = np.empty(GROUP, np.float64)
    for begin in range(first, last, GROUP):
        n = min(GROUP, last - begin)
        highest[:] = -np.inf
        for i in range(n):
            round_query(vectors[begin + i], rounded[i])
        for cell in range(0, n_cells, BLOCK):
            block = centres.values[cell : min(cell + BLOCK, n_cells)]
            for i in range(n):
                multiply_codes(block, rounded[i], products)
                for place in range(len(block)):
                    score = products[place] * np.float64(centres.scale[cell + place])
                    if score > highest[i]:  # so that the first of equals is taken
                        highest[i], nearest[begin + i] = score, cell + place


@njit(nogil=True, cache=True)
def sum_by_cell(vectors: Floats, cell: Ids, n_cells: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the sum of the vectors of each cell, and how many they are."""
    sums = np.zeros((n_cells, vectors.shape[1]), np.float32)
    counts = np.zeros(n_cells, np.int64)
    for i in range(len(vectors)):
        counts[cell[i]] += 1
        total, row = sums[cell[i]], vectors[i]
        for j in range(len(row)):
            total[j] += row[j]
    return sums, counts


@njit(nogil=True, cache=True)
def rank_cells(cells: Cells, queries: Floats, wanted: Ids) -> Ids:
    """Return as the how many-th, from 0, each of a query's `wanted` cells would be opened."""
    n_cells = len(cells.start) - 1
    ranks = np.empty(wanted.shape, np.int32)
    rank = np.empty(n_cells, np.int32)
    products = np.empty(BLOCK, np.int32)
    rounded = np.zeros(cells.centres.values.shape[1], np.int16)
    for q in range(len(queries)):
        round_query(queries[q], rounded)
        opened = open_cells(cells, rounded, n_cells, products)
        for place in range(n_cells):
            rank[opened[place]] = place
        for place in range(wanted.shape[1]):
            ranks[q, place] = rank[wanted[q, place]]
    return ranks
