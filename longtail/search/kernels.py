"""Compiled search for the vectors with the highest inner products; `index` is its front.

Vectors are quantized to int8 with a scale each. The query is rounded to 16 bits, so the product of
both is a sum of whole numbers. To that is added as much as the query's rounding can change it
(`slack_of`): only vectors whose bound reaches the worst of the k best so far are multiplied with
the query as it came. What is found is therefore exactly the k best of all vectors looked at.
An approximate index divides the vectors into inverted lists (IVF) and looks at the vectors of some
lists only.

Results depend on nothing but the query and the vectors: sums of whole numbers have no order, the
final products are summed in float64 in one fixed order, and of equal scores the lower id wins.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.quantized import MOST_CODE, QuantizedRows, multiply_row

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

BLOCK = 256  # vectors multiplied at a stretch; of 512 dimensions, they take 128 KB of L2 cache
GROUP = 64  # queries that should be searched for together, to share a block in the cache
TOGETHER = 2048  # queries that should share lists; the more, the more probe the same list
AT_ONCE = 2  # lists of a query that are searched before it shares others with other queries

NOTHING = np.int32(np.iinfo(np.int32).max)  # an id worse than all others


class InvertedLists(NamedTuple):
    """Vectors divided by their direction into lists (IVF); an exact index has one list for all.

    Attributes:
        centres: the quantized directions of the lists, as long as their vectors are.
        start: (n_lists + 1,) where the vectors of each list begin in `order`.
        order: (n,) the vectors' ids, list by list.
    """

    centres: QuantizedRows
    start: NDArray[np.int64]
    order: Ids


class Searched(NamedTuple):
    """All that a search looks at; the vectors are in the order of the lists."""

    vectors: QuantizedRows
    lists: InvertedLists


class Query(NamedTuple):
    """A query as it came, rounded to 16 bits, the scale of that, and its length."""

    values: Floats
    rounded: NDArray[np.int16]
    scale: float
    length: float


class Asked(NamedTuple):
    """Many queries, each as in `Query`."""

    values: Floats
    rounded: NDArray[np.int16]
    scale: NDArray[np.float64]
    length: NDArray[np.float64]


class Probes(NamedTuple):
    """Which queries probe which list: those of list i from start[i] to start[i + 1]."""

    start: NDArray[np.int64]
    queries: Ids


class Best(NamedTuple):
    """The best found so far, as a heap with the worst of them on top."""

    ids: Ids
    scores: Floats


# -------------------------------------------------------------------------------------- rounding


@njit(nogil=True, cache=True)
def largest_query_value(dim: int) -> int:
    """Return the largest value of a rounded query for which no product exceeds 32 bits."""
    return min(32767, (2**31 - 1) // (MOST_CODE * dim))


@njit(nogil=True, cache=True)
def slack_of(dim: int) -> float:
    """Return how far rounding a query can move a product: by the query's length and row's scale.

    By Cauchy and Schwarz it is what rounding moved the query by times the length of the row, which
    is no longer than one of `dim` codes of 127. Some float32 roundings are on top.
    """
    moved = np.sqrt(dim) / (2 * largest_query_value(dim)) + 4e-6
    return float(moved * MOST_CODE * np.sqrt(dim) * (1 + 1e-6))


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
def multiply_quantized(
    values: NDArray[np.int8], rounded: NDArray[np.int16], products: NDArray[np.int32]
) -> None:
    """Multiply quantized rows with a rounded query; compiles to 16-bit multiply-and-add."""
    for i in range(len(values)):
        row = values[i]
        total = np.int32(0)
        for j in range(len(rounded)):
            total = np.int32(total + np.int32(np.int32(row[j]) * np.int32(rounded[j])))
        products[i] = total


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
    searched: Searched, queries: Floats, k: int, n_probes: int, piece: int, n_pieces: int
) -> tuple[Ids, Floats]:
    """Return ids and scores (n, k) of the best for each query, best first.

    Args:
        searched: the vectors, at least `k`.
        queries: (n, dim).
        k: how many are wanted.
        n_probes: how many lists to search, or more where these hold fewer than `k` vectors.
        piece: which part of the vectors looked at is searched here.
        n_pieces: into how many parts they are divided, so that threads can share a query. A part
            may hold fewer than `k`; `NOTHING` stands for the rest.
    """
    n, n_lists = len(queries), len(searched.lists.start) - 1
    ids, scores = np.full((n, k), NOTHING), np.full((n, k), np.float32(-np.inf))
    asked = _round_all(queries, searched.vectors.codes.shape[1])
    products = np.empty(BLOCK, np.int32)
    if n_probes >= n_lists:
        _search_all(searched, asked, piece, n_pieces, ids, scores, products)
    elif n_pieces == 1:
        _search_together(searched, asked, n_probes, ids, scores, products)
    else:
        for which in np.flatnonzero(asked.length):
            query, best = _query_of(asked, which), Best(ids[which], scores[which])
            _search_lists(searched, query, n_probes, piece, n_pieces, best, products)
    for q in range(n):
        best = Best(ids[q], scores[q])
        if asked.length[q] == 0 and piece == 0:  # all products are 0, so the lowest ids win
            for place in range(k):
                offer(best, np.int32(place), np.float32(0))
        sort_best(best)
    return ids, scores


@njit(nogil=True, cache=True)
def _round_all(queries: Floats, width: int) -> Asked:
    """Round all queries to 16 bits, padded to `width` places."""
    n = len(queries)
    rounded = np.zeros((n, width), np.int16)
    scale, length = np.empty(n, np.float64), np.empty(n, np.float64)
    for q in range(n):
        query = round_query(queries[q], rounded[q])
        scale[q], length[q] = query.scale, query.length
    return Asked(queries, rounded, scale, length)


@njit(nogil=True, cache=True)
def _query_of(asked: Asked, q: int | np.integer[Any]) -> Query:
    return Query(asked.values[q], asked.rounded[q], asked.scale[q], asked.length[q])


@njit(nogil=True, cache=True)
def _search_all(
    searched: Searched,
    asked: Asked,
    piece: int,
    n_pieces: int,
    ids: Ids,
    scores: Floats,
    products: NDArray[np.int32],
) -> None:
    """Offer one piece of all vectors: a block at a time, for all queries while it is cached."""
    n_vectors = len(searched.lists.order)
    begin, end = n_vectors * piece // n_pieces, n_vectors * (piece + 1) // n_pieces
    directed = np.flatnonzero(asked.length)
    for first in range(begin, end, BLOCK):
        for q in directed:
            best = Best(ids[q], scores[q])
            _scan(searched, first, min(first + BLOCK, end), _query_of(asked, q), best, products)


@njit(nogil=True, cache=True)
def _search_together(
    searched: Searched,
    asked: Asked,
    n_probes: int,
    ids: Ids,
    scores: Floats,
    products: NDArray[np.int32],
) -> None:
    """Offer each query the vectors in its best lists.

    Its very best lists come first, so that little of what follows is multiplied once more. The
    others are taken list by list, each for all queries that probe it while it is cached.
    """
    start = searched.lists.start
    later = _later_probes(searched, asked, n_probes, ids, scores, products)
    for each in range(len(start) - 1):
        for first in range(start[each], start[each + 1], BLOCK):
            last = min(first + BLOCK, start[each + 1])
            for q in later.queries[later.start[each] : later.start[each + 1]]:
                best = Best(ids[q], scores[q])
                _scan(searched, first, last, _query_of(asked, q), best, products)


@njit(nogil=True, cache=True)
def _later_probes(
    searched: Searched,
    asked: Asked,
    n_probes: int,
    ids: Ids,
    scores: Floats,
    products: NDArray[np.int32],
) -> Probes:
    """Offer each query the vectors in its very best lists; return which others it probes."""
    lists, k = searched.lists, ids.shape[1]
    n, size = len(asked.length), 0
    query_of = np.empty(n * n_probes, np.int32)  # of each probe
    list_of = np.empty(n * n_probes, np.int32)
    for q in np.flatnonzero(asked.length):
        query, best = _query_of(asked, q), Best(ids[q], scores[q])
        probed = _find_enough(lists, query.rounded, n_probes, k, products)
        for each in probed[:AT_ONCE]:
            for first in range(lists.start[each], lists.start[each + 1], BLOCK):
                last = min(first + BLOCK, lists.start[each + 1])
                _scan(searched, first, last, query, best, products)
        others = probed[AT_ONCE:]
        if size + len(others) > len(list_of):  # some lists hold few vectors
            more = np.empty(len(list_of) + len(others), np.int32)
            query_of = np.concatenate((query_of[:size], more))
            list_of = np.concatenate((list_of[:size], more))
        query_of[size : size + len(others)] = q
        list_of[size : size + len(others)] = others
        size += len(others)
    counts = np.bincount(list_of[:size], minlength=len(lists.start) - 1)
    order = np.argsort(list_of[:size], kind="mergesort")
    begins = np.zeros(len(counts) + 1, np.int64)
    begins[1:] = np.cumsum(counts)
    return Probes(begins, query_of[:size][order])


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
    vectors, lists = searched
    slack = query.length * slack_of(len(query.values))
    multiply_quantized(vectors.codes[first:last], query.rounded, products)
    for i in range(first, last):
        near = products[i - first] * query.scale * vectors.scale[i]
        if near + (slack * vectors.scale[i] + 2e-45) >= best.scores[0]:
            offer(best, lists.order[i], multiply_row(vectors, i, query.values))


@njit(nogil=True, cache=True)
def _search_lists(
    searched: Searched,
    query: Query,
    n_probes: int,
    piece: int,
    n_pieces: int,
    best: Best,
    products: NDArray[np.int32],
) -> None:
    """Offer one piece of the vectors in the best lists."""
    start = searched.lists.start
    probed = _find_enough(searched.lists, query.rounded, n_probes, len(best.ids), products)
    total = 0
    for each in probed:
        total += start[each + 1] - start[each]
    begin, end = total * piece // n_pieces, total * (piece + 1) // n_pieces
    before = 0
    for each in probed:
        size, offset = start[each + 1] - start[each], start[each] - before
        stop = min(before + size, end) + offset
        for first in range(max(before, begin) + offset, stop, BLOCK):
            _scan(searched, first, min(first + BLOCK, stop), query, best, products)
        before += size


@njit(nogil=True, cache=True)
def _find_enough(
    lists: InvertedLists,
    rounded: NDArray[np.int16],
    n_probes: int,
    k: int,
    products: NDArray[np.int32],
) -> Ids:
    """Return the best `n_probes` lists, or as many more as it takes to hold `k` vectors."""
    start = lists.start
    found = find_lists(lists, rounded, n_probes, products)
    total = 0
    for each in found:
        total += start[each + 1] - start[each]
    if total < k:
        found = find_lists(lists, rounded, len(start) - 1, products)
        n_found = n_probes
        while total < k:
            total += start[found[n_found] + 1] - start[found[n_found]]
            n_found += 1
        found = found[:n_found]
    return found


@njit(nogil=True, cache=True)
def find_lists(
    lists: InvertedLists, rounded: NDArray[np.int16], n_probes: int, products: NDArray[np.int32]
) -> Ids:
    """Return the `n_probes` lists whose centres have the highest products, best first."""
    n_lists = len(lists.start) - 1
    best = new_best(n_probes)
    for first in range(0, n_lists, BLOCK):
        last = min(first + BLOCK, n_lists)
        multiply_quantized(lists.centres.codes[first:last], rounded, products)
        for each in range(first, last):
            score = np.float32(products[each - first] * np.float64(lists.centres.scale[each]))
            offer(best, np.int32(each), score)
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
def decide(
    vectors: QuantizedRows, place: Ids, queries: Floats, candidates: Ids, k: int
) -> tuple[Ids, Floats]:
    """Return the k best of each query's candidates, which lie at their `place`; -1 is none."""
    best_ids = np.full((len(queries), k), NOTHING, np.int32)
    best_scores = np.full((len(queries), k), np.float32(-np.inf))
    for q in range(len(queries)):
        best = Best(best_ids[q], best_scores[q])
        for new in candidates[q]:
            if new >= 0:
                offer(best, new, multiply_row(vectors, place[new], queries[q]))
        sort_best(best)
    return best_ids, best_scores


@njit(nogil=True, cache=True)
def multiply_candidates(
    vectors: QuantizedRows, place: Ids, queries: Floats, candidates: Ids
) -> Floats:
    """Return the products (n, c) of each query with its candidates, 0 where there is none (-1)."""
    products = np.zeros(candidates.shape, np.float32)
    for q in range(len(queries)):
        for c in range(candidates.shape[1]):
            if candidates[q, c] >= 0:
                products[q, c] = multiply_row(vectors, place[candidates[q, c]], queries[q])
    return products


# -------------------------------------------------------------------------------- inverted lists


@njit(nogil=True, cache=True)
def find_centres(
    vectors: Floats, first: int, last: int, centres: QuantizedRows, nearest: Ids
) -> None:
    """Write for the vectors first ≤ i < last which centre has the highest product."""
    n_lists = len(centres.codes)
    products = np.empty(BLOCK, np.int32)
    rounded = np.zeros((GROUP, centres.codes.shape[1]), np.int16)
    highest = np.empty(GROUP, np.float64)
    for begin in range(first, last, GROUP):
        n = min(GROUP, last - begin)
        highest[:] = -np.inf
        for i in range(n):
            round_query(vectors[begin + i], rounded[i])
        for centre in range(0, n_lists, BLOCK):
            block = centres.codes[centre : min(centre + BLOCK, n_lists)]
            for i in range(n):
                multiply_quantized(block, rounded[i], products)
                for place in range(len(block)):
                    score = products[place] * np.float64(centres.scale[centre + place])
                    if score > highest[i]:  # so that the first of equals is taken
                        highest[i], nearest[begin + i] = score, centre + place


@njit(nogil=True, cache=True)
def sum_by_list(vectors: Floats, list_of: Ids, n_lists: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the sum of the vectors of each list, and how many they are."""
    sums = np.zeros((n_lists, vectors.shape[1]), np.float32)
    counts = np.zeros(n_lists, np.int64)
    for i in range(len(vectors)):
        counts[list_of[i]] += 1
        total, row = sums[list_of[i]], vectors[i]
        for j in range(len(row)):
            total[j] += row[j]
    return sums, counts


@njit(nogil=True, cache=True)
def rank_lists(lists: InvertedLists, queries: Floats, wanted: Ids) -> Ids:
    """Return the rank, from 0, that each of a query's `wanted` lists has for that query."""
    n_lists = len(lists.start) - 1
    ranks = np.empty(wanted.shape, np.int32)
    rank = np.empty(n_lists, np.int32)
    products = np.empty(BLOCK, np.int32)
    rounded = np.zeros(lists.centres.codes.shape[1], np.int16)
    for q in range(len(queries)):
        round_query(queries[q], rounded)
        found = find_lists(lists, rounded, n_lists, products)
        for place in range(n_lists):
            rank[found[place]] = place
        for place in range(wanted.shape[1]):
            ranks[q, place] = rank[wanted[q, place]]
    return ranks
