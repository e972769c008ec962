"""Pairs of neighbouring words, kept in order, so that one is found by bisection."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.parallel import in_threads, n_threads
from longtail.text.lexicon import starts_of
from longtail.text.word_table import UNKNOWN, Starts, WordIds

MOST_PAIRS = 1 << 24  # that are sorted together


class Pairs(NamedTuple):
    """Pairs of words in order.

    Attributes:
        start: (n_words + 1,) where the pairs with each first word begin.
        second: the second word of each pair; rising for each first word.
    """

    start: NDArray[np.int64]
    second: NDArray[np.int32]

    @property
    def first(self) -> NDArray[np.int64]:
        """The first word of each pair."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @classmethod
    def of(
        cls, n_words: int, first: NDArray[np.int64], second: NDArray[np.integer[Any]]
    ) -> "Pairs":
        """Return pairs that are in order already."""
        counts = np.bincount(first, minlength=n_words)
        return cls(starts_of(counts), second.astype(np.int32))


def select_pairs(starts: Starts, ids: WordIds, n_words: int, least: int | None) -> Pairs:
    """Return the pairs that at least `least` documents hold; none if that is None."""
    if least is None:
        return Pairs(np.zeros(n_words + 1, np.int64), np.empty(0, np.int32))
    counts = _count_firsts(starts, ids, n_words)
    total = int(counts.sum())
    n_parts = max(n_threads(), total // MOST_PAIRS + 1)
    borders = np.searchsorted(np.cumsum(counts), np.linspace(0, total, n_parts + 1)[1:-1])
    tasks = [
        (starts, ids, counts, a, b, least) for a, b in pairwise(sorted({0, *borders, n_words}))
    ]
    parts = in_threads(_select_seconds, tasks)
    kept, seconds = map(np.concatenate, zip(*parts, strict=True))
    return Pairs(starts_of(kept), seconds)


@njit(nogil=True, cache=True)
def find_pair(start: Starts, second: WordIds, a: int, b: int) -> int:
    """Return the place of the pair of words a and b."""
    if a < 0 or b < 0:
        return UNKNOWN
    low, high = start[a], start[a + 1]
    while low < high:
        middle = (low + high) // 2
        if second[middle] < b:
            low = middle + 1
        else:
            high = middle
    return low if low < start[a + 1] and second[low] == b else UNKNOWN


@njit(nogil=True, cache=True)
def _count_firsts(starts: Starts, ids: WordIds, n_words: int) -> NDArray[np.int64]:
    """Return how often each word stands before another known one."""
    counts = np.zeros(n_words, np.int64)
    for i in range(len(starts) - 1):
        for place in range(starts[i], starts[i + 1] - 1):
            if ids[place] >= 0 and ids[place + 1] >= 0:
                counts[ids[place]] += 1
    return counts


@njit(nogil=True, cache=True)
def _select_seconds(
    starts: Starts, ids: WordIds, counts: NDArray[np.int64], low: int, high: int, least: int
) -> tuple[NDArray[np.int64], WordIds]:
    """Return, for the first words from `low` to below `high`, how many pairs are kept, and which.

    The pairs are collected by their first word, each with its document, and then sorted.
    """
    ends = np.zeros(high - low + 1, np.int64)  # of what is collected so far
    for word in range(low, high):
        ends[word - low + 1] = ends[word - low] + counts[word]
    found = np.empty(ends[high - low], np.int64)
    for i in range(len(starts) - 1):
        for place in range(starts[i], starts[i + 1] - 1):
            word = ids[place]
            if low <= word < high and ids[place + 1] >= 0:
                found[ends[word - low]] = np.int64(ids[place + 1]) << 32 | i
                ends[word - low] += 1
    kept = np.zeros(high - low, np.int64)
    seconds = np.empty(len(found) // least, np.int32)
    n_kept = begin = 0
    for word in range(high - low):
        entries = found[begin : ends[word]]
        begin = ends[word]
        sort(entries)
        held = 0
        for j in range(len(entries)):
            if j == 0 or entries[j] != entries[j - 1]:
                held += 1
            if j + 1 == len(entries) or entries[j + 1] >> 32 != entries[j] >> 32:
                if held >= least:
                    seconds[n_kept] = entries[j] >> 32
                    n_kept += 1
                    kept[word] += 1
                held = 0
    return kept, seconds[:n_kept].copy()


@njit(nogil=True, cache=True)
def are_rising(start: Starts, second: WordIds) -> bool:
    """Whether the second words of each first word rise."""
    for word in range(len(start) - 1):
        for place in range(start[word] + 1, start[word + 1]):
            if second[place] <= second[place - 1]:
                return False
    return True


@njit(nogil=True, cache=True)
def sort(numbers: NDArray[Any]) -> None:
    """Sort in place: Shell's sort, which is quick to compile, and quick for the few of a text."""
    gap = 1
    while gap < len(numbers) // 5:
        gap = gap * 9 // 4 + 1
    while gap:
        for i in range(gap, len(numbers)):
            number = numbers[i]
            place = i
            while place >= gap and numbers[place - gap] > number:
                numbers[place] = numbers[place - gap]
                place -= gap
            numbers[place] = number
        gap = gap * 4 // 9
