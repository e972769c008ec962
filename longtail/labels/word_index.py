"""Word index: which names hold which words, so that a search reads few of a million names.

Names have far fewer different words than there are words in them. A search first looks through the
different words for those that a typed word may mean, by its beginning or but for a letter or two;
only names with such words are compared. What is found is what a pass over all names finds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.labels.finding import (
    EXACT,
    LONGEST,
    NOT,
    PREFIX,
    TYPO,
    WORD,
    Bytes,
    Names,
    allow,
    begins,
    compare,
    count_bits,
    differ,
    find_words,
    is_letter,
    judge,
)
from longtail.runtime.compiled import njit

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Masks = NDArray[np.uint64]


class Words(NamedTuple):
    """The different words of names.

    Attributes:
        first: (m,) where one of its occurrences begins in the names' text.
        length: (m,) how many bytes it has.
        mask: (m,) one bit for each value of a byte modulo 64 that occurs in it.
        start: (m + 1,) where the names that have it begin in `names`.
        names: names with each word, one word after the other.
    """

    first: Int64s
    length: Int32s
    mask: Masks
    start: Int64s
    names: Int32s


def index_words(names: Names) -> Words:
    """Find the words of all names."""
    first, length, owner, mark, mask = _find_all(names.text, names.start)
    order = np.argsort(mark, kind="stable")  # equal words, by their hash, side by side
    sorted_marks = mark[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = sorted_marks[1:] != sorted_marks[:-1]
    starts = np.flatnonzero(is_new)
    one = order[starts]
    return Words(first[one], length[one], mask[one], np.append(starts, len(order)), owner[order])


def look_up(names: Names, words: Words, query: Bytes) -> Bytes:
    """Return (n,) how each name is found, as `compare` does."""
    spans, wanted, n_wrong = find_words(query)
    if len(query) == 1 or not len(spans):  # only whole names begin so
        return compare(*names[:3], query)
    matches = [_match_words(names.text, words, query, a, b) for a, b in spans.tolist()]
    if len(matches) == 1:
        return _mark_names(names.text, names.start, words, query, matches[0])
    sizes = np.diff(words.start)
    rarest = min(matches, key=lambda match: int(sizes[match < NOT].sum()))
    return _compare_some(names.text, names.start, words, query, rarest, spans, wanted, n_wrong)


@njit(nogil=True, cache=True)
def _find_all(text: Bytes, start: Int64s) -> tuple[Int64s, Int32s, Int32s, Masks, Masks]:
    """Return where each word begins, its length, its name, a hash and a mask of its letters."""
    n = 0
    for at in range(len(text)):
        n += is_letter(text[at]) and (at == 0 or not is_letter(text[at - 1]))
    first, length, owner = np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n, np.int32)
    mark, mask = np.empty(n, np.uint64), np.zeros(n, np.uint64)
    word = -1
    for i in range(len(start) - 1):
        for at in range(start[i], start[i + 1]):
            if not is_letter(text[at]):
                continue
            if at == start[i] or not is_letter(text[at - 1]):
                word += 1
                first[word], length[word], owner[word] = at, 0, i
                mark[word] = np.uint64(14695981039346656037)  # FNV-1a
            length[word] += 1
            mark[word] = (mark[word] ^ np.uint64(text[at])) * np.uint64(1099511628211)
            mask[word] |= np.uint64(1) << np.uint64(text[at] & 63)
    return first, length, owner, mark, mask


@njit(nogil=True, cache=True)
def _match_words(text: Bytes, words: Words, query: Bytes, a: int, b: int) -> Bytes:
    """Return (m,) how each word is meant by query[a:b]: WORD, TYPO or NOT."""
    how = np.full(len(words.first), NOT, np.uint8)
    wanted = np.uint64(0)
    for at in range(a, b):
        wanted |= np.uint64(1) << np.uint64(query[at] & 63)
    allowed = allow(b - a)
    rows = np.empty((3, LONGEST + 1), np.int64)
    for i in range(len(how)):
        lacks = wanted & ~words.mask[i]
        first, length = words.first[i], words.length[i]
        if lacks == 0 and begins(text, first, first + length, query, a, b):
            how[i] = WORD
            continue
        if not allowed or abs(length - (b - a)) > allowed or length > LONGEST:
            continue
        # A letter that is wrong takes away one and brings in one at most.
        if count_bits(lacks) > allowed or count_bits(words.mask[i] & ~wanted) > allowed:
            continue
        if differ(text, first, length, query, a, b, rows) <= allowed:
            how[i] = TYPO
    return how


@njit(nogil=True, cache=True)
def _mark_names(text: Bytes, start: Int64s, words: Words, query: Bytes, match: Bytes) -> Bytes:
    """Return (n,) how each name is found by a single word."""
    how = np.full(len(start) - 1, NOT, np.uint8)
    for word in range(len(match)):
        if match[word] == NOT:
            continue
        for place in range(words.start[word], words.start[word + 1]):
            name = words.names[place]
            way = match[word]
            if way == WORD:
                first, end = start[name], start[name + 1] - 1
                if begins(text, first, end, query, 0, len(query)):
                    way = EXACT if end - first == len(query) else PREFIX
            how[name] = min(how[name], way)
    return how


@njit(nogil=True, cache=True)
def _compare_some(
    text: Bytes,
    start: Int64s,
    words: Words,
    query: Bytes,
    match: Bytes,
    spans: Int64s,
    wanted: np.uint64,
    n_wrong: int,
) -> Bytes:
    """Return (n,) how names are found that have one of the words that match."""
    how = np.full(len(start) - 1, NOT, np.uint8)
    seen = np.zeros(len(start) - 1, np.bool_)
    rows = np.empty((3, LONGEST + 1), np.int64)
    for word in range(len(match)):
        if match[word] == NOT:
            continue
        for place in range(words.start[word], words.start[word + 1]):
            name = words.names[place]
            if not seen[name]:
                seen[name] = True
                first, end = start[name], start[name + 1] - 1
                how[name] = judge(text, first, end, 0, query, spans, n_wrong, rows)
    return how
