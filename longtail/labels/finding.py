"""Finding labels by what people type: by any of their names, its beginning, or with a typo.

Names are folded (case and accents do not count) into one row of bytes, which compiled code passes
once for each search. A name is found, the best first, where it

    0  is what was typed            1  begins with it
    2  has a word that begins so (from 2 letters on)
    3  differs by one letter (from 4 letters on) or two (from 8 on)

A mask of the letters that occur in a name rules out nearly all names before letters are compared.
Labels that are found in the same way are ranked by their documents.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

EXACT, PREFIX, WORD, TYPO, NOT = range(5)
SEVERAL = 8  # names to look at for each label that is asked for, at first
LONGEST = 64  # bytes of a name that are compared where a letter may be wrong

Bytes = NDArray[np.uint8]


class Names(NamedTuple):
    """Folded names.

    Attributes:
        text: all names as UTF-8, one after the other.
        start: (n + 1,) where each begins.
        mask: (n,) one bit for each value of a byte modulo 64 that occurs in it.
        labels: (n,) whose name it is.
    """

    text: Bytes
    start: NDArray[np.int64]
    mask: NDArray[np.uint64]
    labels: NDArray[np.int32]


def fold(text: str) -> str:
    """Return a text without case and accents."""
    if text.isascii():
        return text.lower()
    split = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in split if not unicodedata.combining(letter))


def fold_names(names: Sequence[str], labels: NDArray[np.int32]) -> Names:
    """Make names findable; `labels` says whose each is."""
    joined = fold("\n".join(name.replace("\n", " ") if "\n" in name else name for name in names))
    text = np.frombuffer((joined + "\n").encode("utf-8", "surrogatepass"), np.uint8)
    start = np.concatenate([[0], np.flatnonzero(text == ord("\n")) + 1]).astype(np.int64)
    return Names(text, start, _mask_all(text, start), labels)


def search(names: Names, typed: str, counts: NDArray[np.int64], limit: int) -> list[int]:
    """Return the labels that are found by `typed`, the best first, `limit` at most."""
    query = np.frombuffer(fold(typed.strip()).encode("utf-8", "surrogatepass"), np.uint8)
    if not len(query):
        return []
    n_wrong = 0 if len(query) < 4 else 1 if len(query) < 8 else 2
    how = _compare(names.text, names.start, names.mask, query, n_wrong)
    found = np.flatnonzero(how < NOT)
    labels = names.labels[found]
    # the way that a label is found comes first, then its documents
    rank = how[found] * (counts.max() + 1.0) - counts[labels]
    enough = SEVERAL * limit
    while True:  # a label may be found by several of its names
        some = np.argpartition(rank, enough)[:enough] if enough < len(rank) else slice(None)
        order = np.lexsort((labels[some], rank[some]))
        best = list(dict.fromkeys(labels[some][order].tolist()))[:limit]
        if len(best) == limit or enough >= len(rank):
            return best
        enough *= SEVERAL


@njit(nogil=True, cache=True)
def _mask_all(text: Bytes, start: NDArray[np.int64]) -> NDArray[np.uint64]:
    masks = np.zeros(len(start) - 1, np.uint64)
    for i in range(len(masks)):
        for at in range(start[i], start[i + 1] - 1):
            masks[i] |= np.uint64(1) << np.uint64(text[at] & 63)
    return masks


@njit(nogil=True, cache=True)
def _compare(
    text: Bytes, start: NDArray[np.int64], mask: NDArray[np.uint64], query: Bytes, n_wrong: int
) -> Bytes:
    """Return (n,) how each name is found."""
    how = np.full(len(mask), NOT, np.uint8)
    wanted = np.uint64(0)
    for byte in query:
        wanted |= np.uint64(1) << np.uint64(byte & 63)
    rows = np.empty((2, LONGEST + 1), np.int64)
    for i in range(len(mask)):
        lacks = _count_bits(wanted & ~mask[i])
        if lacks > n_wrong:
            continue
        first, end = start[i], start[i + 1] - 1
        if lacks == 0:
            place = _find_word(text, first, end, query)
            if place == first:
                how[i] = EXACT if end - first == len(query) else PREFIX
                continue
            if place > first:
                how[i] = WORD
                continue
        length = end - first
        if (
            n_wrong
            and abs(length - len(query)) <= n_wrong
            and length <= LONGEST
            and _count_bits(mask[i] & ~wanted) <= n_wrong
            and _differ(text, first, length, query, rows) <= n_wrong
        ):
            how[i] = TYPO
    return how


@njit(nogil=True, cache=True)
def _count_bits(mask: np.uint64) -> int:
    n = 0
    while mask:
        mask &= mask - np.uint64(1)
        n += 1
    return n


@njit(nogil=True, cache=True)
def _find_word(text: Bytes, first: int, end: int, query: Bytes) -> int:
    """Return where a word begins with the query, or -1; of one letter, only the name itself."""
    last = end - len(query) if len(query) > 1 else min(first, end - 1)
    for at in range(first, last + 1):
        if at > first and _is_letter(text[at - 1]):
            continue
        same = True
        for j in range(len(query)):
            if text[at + j] != query[j]:
                same = False
                break
        if same:
            return at
    return -1


@njit(nogil=True, cache=True)
def _is_letter(byte: int) -> bool:
    return byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57


@njit(nogil=True, cache=True)
def _differ(text: Bytes, first: int, length: int, query: Bytes, rows: NDArray[np.int64]) -> int:
    """Return how many bytes must be put in, taken out or changed to make one of the other."""
    last, row = rows[0], rows[1]
    for j in range(length + 1):
        last[j] = j
    for i in range(len(query)):
        row[0] = i + 1
        for j in range(length):
            change = last[j] + (text[first + j] != query[i])
            row[j + 1] = min(change, last[j + 1] + 1, row[j] + 1)
        last, row = row, last
    return int(last[length])
