"""Finding labels by what people type: by any of their names, its beginning, or with a typo.

Names are folded (case and accents do not count) into one row of bytes, which compiled code passes
once for each search. A name is found, the best first, where it

    0  is what was typed    1  begins with it
    2  has a word that begins with each word that was typed (not of a letter alone)
    3  has words that do so but for a letter, or two in all; two that are swapped are one

A mask of the letters that occur in a name rules out nearly all names before letters are compared.
Labels that are found in the same way are ranked by their documents.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

EXACT, PREFIX, WORD, TYPO, NOT = range(5)
SEVERAL = 8  # names to look at for each label that is asked for, at first
LONGEST = 64  # bytes of a word that are compared where a letter may be wrong
MOST_WRONG = 2
PIECE = 1 << 16  # names that are folded together: one after the other takes long, all much memory

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
    joined = bytearray()
    starts = [np.zeros(1, np.int64)]
    for at in range(0, len(names), PIECE):
        piece = _fold_piece(names[at : at + PIECE])
        ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n"))
        starts.append(ends + 1 + len(joined))
        joined += piece
    text, start = np.frombuffer(joined, np.uint8), np.concatenate(starts)
    return Names(text, start, _mask_all(text, start), labels)


def _fold_piece(names: Sequence[str]) -> bytes:
    """Return names as UTF-8, each closed by a line feed."""
    lines = (name.replace("\n", " ") if "\n" in name else name for name in names)
    return (fold("\n".join(lines)) + "\n").encode("utf-8", "surrogatepass")


def search(
    names: Names,
    typed: str,
    counts: NDArray[np.int64],
    limit: int,
    find: Callable[[Bytes], Bytes] | None = None,
) -> list[int]:
    """Return the labels that are found by `typed`, the best first, `limit` at most.

    Args:
        names: to look through.
        typed: what a person typed.
        counts: the documents of each label.
        limit: how many labels.
        find: returns how each name is found, such as a word index does; None passes all names.
    """
    query = np.frombuffer(fold(typed.strip()).encode("utf-8", "surrogatepass"), np.uint8)
    if not len(query):
        return []
    how = compare(names.text, names.start, names.mask, query) if find is None else find(query)
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
def compare(text: Bytes, start: NDArray[np.int64], mask: NDArray[np.uint64], query: Bytes) -> Bytes:
    """Return (n,) how each name is found."""
    how = np.full(len(mask), NOT, np.uint8)
    words, wanted, n_wrong = find_words(query)
    rows = np.empty((3, LONGEST + 1), np.int64)
    for i in range(len(mask)):
        lacks = count_bits(wanted & ~mask[i])
        if lacks > n_wrong:
            continue
        how[i] = judge(text, start[i], start[i + 1] - 1, lacks, query, words, n_wrong, rows)
    return how


@njit(nogil=True, cache=True)
def judge(
    text: Bytes,
    first: int,
    end: int,
    lacks: int,
    query: Bytes,
    words: NDArray[np.int64],
    n_wrong: int,
    rows: NDArray[np.int64],
) -> int:
    """Return how the name text[first:end] is found; `lacks` letters of the query are not in it."""
    if lacks == 0 and begins(text, first, end, query, 0, len(query)):
        return EXACT if end - first == len(query) else PREFIX
    if len(query) == 1 or not len(words):
        return NOT
    total = 0
    for word in words:
        total += _find_word(text, first, end, query, word[0], word[1], rows)
        if total > n_wrong:
            return NOT
    return TYPO if total else WORD


@njit(nogil=True, cache=True)
def find_words(query: Bytes) -> tuple[NDArray[np.int64], np.uint64, int]:
    """Return where words begin and end, a mask of their letters, and how many may be wrong."""
    words = np.empty((len(query), 2), np.int64)
    n, wanted, n_wrong = 0, np.uint64(0), 0
    for at in range(len(query)):
        if not is_letter(query[at]):
            continue
        wanted |= np.uint64(1) << np.uint64(query[at] & 63)
        if at == 0 or not is_letter(query[at - 1]):
            words[n, 0] = at
            n += 1
        words[n - 1, 1] = at + 1
    for word in words[:n]:
        n_wrong += allow(word[1] - word[0])
    return words[:n], wanted, min(n_wrong, MOST_WRONG)


@njit(nogil=True, cache=True)
def allow(length: int) -> int:
    """Return how many letters of a word may be wrong."""
    return 0 if length < 4 or length > LONGEST else 1 if length < 8 else 2


@njit(nogil=True, cache=True)
def count_bits(mask: np.uint64) -> int:
    """Return how many bits are set."""
    n = 0
    while mask:
        mask &= mask - np.uint64(1)
        n += 1
    return n


@njit(nogil=True, cache=True)
def _find_word(
    text: Bytes, first: int, end: int, query: Bytes, a: int, b: int, rows: NDArray[np.int64]
) -> int:
    """Return how many letters of query[a:b] are wrong in the word of a name that is nearest."""
    allowed = allow(b - a)
    least, at = MOST_WRONG + 1, first
    while at < end:
        if not is_letter(text[at]):
            at += 1
            continue
        if begins(text, at, end, query, a, b):
            return 0
        word = at
        while at < end and is_letter(text[at]):
            at += 1
        if allowed and abs(at - word - (b - a)) <= allowed and at - word <= LONGEST:
            n_wrong = differ(text, word, at - word, query, a, b, rows)
            if n_wrong <= allowed:
                least = min(least, n_wrong)
    return least


@njit(nogil=True, cache=True)
def begins(text: Bytes, at: int, end: int, query: Bytes, a: int, b: int) -> bool:
    """Whether text[at:end] begins with query[a:b]."""
    if end - at < b - a:
        return False
    for j in range(b - a):  # noqa: SIM110 - compiled, without a generator
        if text[at + j] != query[a + j]:
            return False
    return True


@njit(nogil=True, cache=True)
def is_letter(byte: int) -> bool:
    """Whether a byte belongs to a word: a letter, a digit, or part of a character beyond ASCII."""
    return byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57


@njit(nogil=True, cache=True)
def differ(
    text: Bytes,
    first: int,
    length: int,
    query: Bytes,
    a: int,
    b: int,
    rows: NDArray[np.int64],
) -> int:
    """Return how many bytes to put in, take out, change or swap to make one of the other."""
    earlier, last, row = rows[0], rows[1], rows[2]
    for j in range(length + 1):
        last[j] = j
    for i in range(a, b):
        row[0] = i - a + 1
        for j in range(length):
            byte = text[first + j]
            least = min(last[j] + (byte != query[i]), last[j + 1] + 1, row[j] + 1)
            if i > a and j and byte == query[i - 1] and text[first + j - 1] == query[i]:
                least = min(least, earlier[j - 1] + 1)
            row[j + 1] = least
        earlier, last, row = last, row, earlier
    return int(last[length])
