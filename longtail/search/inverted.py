"""Inverted lists (IVF): vectors divided by k-means, of which a search probes the best lists.

How many lists have to be probed for the recall wanted is measured on queries, with a margin: the
mean over few queries may be lucky.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.progress import Progress
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.quantized import QuantizedRows
from longtail.search.gpu import find_nearest
from longtail.search.kernels import (
    Floats,
    Ids,
    InvertedLists,
    find_centres,
    rank_lists,
    sum_by_list,
    to_unit,
)

ROUNDS = 10  # of k-means
VECTORS_A_LIST = 64  # that k-means learns from
SURE = 1.645  # standard errors: the recall is reached with a probability of 95 %


class Division(NamedTuple):
    """Vectors divided into lists.

    Attributes:
        centres: (n_lists, dim) the directions of the lists, as long as their vectors are.
        start: (n_lists + 1,) where the vectors of each list begin in `order`.
        order: (n,) the vectors' ids, list by list.
    """

    centres: Floats
    start: NDArray[np.int64]
    order: Ids


def divide(
    vectors: Floats,
    n_lists: int,
    rng: np.random.Generator,
    progress: Progress,
    device: str = "cpu",
    *,
    sampled: bool = True,
) -> Division:
    """Divide the vectors into lists by spherical k-means on a sample of them, or on all.

    On a GPU the lists are the same: products with quantized centres are whole numbers.
    """
    n = len(vectors)
    sample = to_unit(some_rows(vectors, VECTORS_A_LIST * n_lists if sampled else n, rng))
    centres = some_rows(sample, n_lists, rng)
    progress.stage("lists of the index", ROUNDS * len(sample) + n)
    for _ in range(ROUNDS):
        sums, counts = sum_by_list(sample, _nearest(sample, centres, device), n_lists)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty))]
        centres = to_unit(sums)
        progress.advance(len(sample))
    list_of = _nearest(vectors, centres, device)
    counts = np.bincount(list_of, minlength=n_lists)
    squares = np.bincount(list_of, np.einsum("ij,ij->i", vectors, vectors), minlength=n_lists)
    # As long as its vectors are on the whole, so that lists of long ones are probed earlier.
    centres *= np.sqrt(squares / np.maximum(counts, 1)).astype(np.float32)[:, None]
    progress.advance(n)
    return _put_in_lists(centres[counts > 0], list_of, counts[counts > 0])


def extend_division(division: Division, new: Floats) -> Division:
    """Put new vectors, with the ids that follow, into the lists whose centres are nearest."""
    n, n_lists = len(division.order), len(division.centres)
    list_of = np.zeros(n + len(new), np.int32)
    list_of[:n] = find_list_of(division.start, division.order)
    # A view of the last entries, which the compiled code fills.
    find_centres(new, 0, len(new), QuantizedRows.of(to_unit(division.centres)), list_of[n:])
    counts = np.bincount(list_of, minlength=n_lists)
    return _put_in_lists(division.centres, list_of, counts)


def _put_in_lists(centres: Floats, list_of: Ids, counts: NDArray[np.int64]) -> Division:
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Division(centres, start, np.argsort(list_of, kind="stable").astype(np.int32))


def find_list_of(start: NDArray[np.int64], order: Ids) -> Ids:
    """Return for each vector the list that holds it."""
    list_of = np.empty(len(order), np.int32)
    list_of[order] = np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start))
    return list_of


def some_rows(rows: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Return `n` rows, or all if there are fewer, in their order."""
    return rows[np.sort(rng.choice(len(rows), min(n, len(rows)), replace=False))]


def _nearest(vectors: Floats, centres: Floats, device: str) -> Ids:
    """Return for each vector the centre with the highest product."""
    quantized = QuantizedRows.of(centres)
    if device != "cpu":
        return find_nearest(device, vectors, quantized)
    nearest = np.zeros(len(vectors), np.int32)
    cuts = cut(len(vectors), 4 * n_threads())
    in_threads(find_centres, [(vectors, a, b, quantized, nearest) for a, b in pairwise(cuts)])
    return nearest


def count_probes(lists: InvertedLists, queries: Floats, nearest: Ids, recall: float) -> int:
    """Return how many lists to probe so that other queries, too, reach `recall`.

    Args:
        lists: the lists.
        queries: (m, dim) examples of what will be searched for.
        nearest: (m, k) the vectors that are nearest to these.
        recall: share of the nearest that has to be found.
    """
    list_of = find_list_of(lists.start, lists.order)
    cuts = cut(len(queries), n_threads())
    tasks = [(lists, queries[a:b], list_of[nearest[a:b]]) for a, b in pairwise(cuts)]
    return count_enough(np.concatenate(in_threads(rank_lists, tasks)), recall)


def count_enough(ranks: Ids, recall: float) -> int:
    """Return the number of lists for which the recall surely reaches what is wanted.

    A neighbour is found if its list is probed, that is if its rank (m, k) is below this number.
    The mean over few queries may be lucky, so it has to lie above `recall` by as much as makes
    that unlikely.
    """
    low, high = 1, int(ranks.max()) + 1
    while low < high:
        middle = (low + high) // 2
        found = (ranks < middle).mean(axis=1)  # the recall of each query
        if found.mean() - SURE * found.std() / len(found) ** 0.5 >= recall:
            high = middle
        else:
            low = middle + 1
    return low
