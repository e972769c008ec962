"""Words in a hash table, by compiled code: filled, searched, joined, and searched by beginnings.

`lexicon.py` is what others use. A word is some bytes of UTF-8 among the `letters` of many words;
its hash begins with a seed that differs from process to process.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.text.scanning import Bytes, copy_word, read_word

Starts = NDArray[np.int64]
WordIds = NDArray[np.int32]

UNKNOWN = -1  # the number of what is not known
LONGEST, SHORTEST = 6, 4  # letters of a word's beginnings
_PRIME = np.uint64(1099511628211)  # FNV-1a


class Table(NamedTuple):
    """The fields of a `Lexicon`."""

    letters: Bytes
    start: Starts
    slots: NDArray[np.int32]


@njit(nogil=True, cache=True)
def hash_word(letters: Bytes, first: int, last: int, seed: np.uint64) -> np.uint64:
    """Return the hash of a word."""
    code = seed
    for i in range(first, last):
        code = (code ^ np.uint64(letters[i])) * _PRIME
    return code ^ (code >> np.uint64(29))


@njit(nogil=True, cache=True)
def hash_words(letters: Bytes, start: Starts, seed: np.uint64) -> NDArray[np.uint64]:
    """Return the hashes of words that stand one behind the other."""
    hashes = np.empty(len(start) - 1, np.uint64)
    for word in range(len(hashes)):
        hashes[word] = hash_word(letters, start[word], start[word + 1], seed)
    return hashes


@njit(nogil=True, cache=True)
def _is_same(a: Bytes, first: int, b: Bytes, other: int, length: int) -> bool:
    same = 0
    while same < length and a[first + same] == b[other + same]:
        same += 1
    return same == length


@njit(nogil=True, cache=True)
def _search(known: Table, letters: Bytes, first: int, last: int, code: np.uint64) -> int:
    """Return the number of a word; −1 if it is not known."""
    slots, start = known.slots, known.start
    mask = np.uint64(len(slots) - 1)
    slot = code & mask
    while slots[slot] >= 0:
        begin = start[slots[slot]]
        if start[slots[slot] + 1] - begin == last - first and _is_same(
            known.letters, begin, letters, first, last - first
        ):
            break
        slot = (slot + np.uint64(1)) & mask
    return int(slots[slot])


@njit(nogil=True, cache=True)
def place_again(hashes: NDArray[np.uint64], n: int, n_slots: int) -> NDArray[np.int32]:
    """Return a larger table of the same `n` words."""
    slots = np.full(n_slots, -1, np.int32)
    mask = np.uint64(n_slots - 1)
    for word in range(n):
        slot = hashes[word] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = word
    return slots


@njit(nogil=True, cache=True)
def _count_slots(n_words: int) -> int:
    n_slots = 2
    while n_slots < 2 * n_words + 1:
        n_slots *= 2
    return n_slots


@njit(nogil=True, cache=True)
def fill_slots(letters: Bytes, start: Starts, seed: np.uint64) -> NDArray[np.int32]:
    """Return the slots of words, each of which stands there once."""
    hashes = hash_words(letters, start, seed)
    return place_again(hashes, len(hashes), _count_slots(len(hashes)))


@njit(nogil=True, cache=True)
def find_words(
    known: Table,
    letters: Bytes,
    start: Starts,
    hashes: NDArray[np.uint64],
    unknown: int,
    beginnings: Table,
    seed: np.uint64,
) -> WordIds:
    """Return the number of each word."""
    found = np.empty(len(hashes), np.int32)
    for word in range(len(hashes)):
        first, last = start[word], start[word + 1]
        found[word] = _search(known, letters, first, last, hashes[word])
        if found[word] < 0:
            beginning = _find_beginning(beginnings, letters, first, last, seed)
            found[word] = unknown if beginning < 0 else -2 - beginning
    return found


@njit(nogil=True, cache=True)
def look_up_text(
    letters: Bytes,
    start: Starts,
    slots: NDArray[np.int32],
    text: Bytes,
    is_split: bool,
    kinds: NDArray[np.uint8],
    folded: NDArray[np.int32],
    singles: bool,
    limit: int,
    unknown: int,
    other_letters: Bytes,
    other_start: Starts,
    other_slots: NDArray[np.int32],
    seed: np.uint64,
) -> WordIds:
    """Return the number of each word of one text.

    Lexicon and beginnings are given by their fields: to hand over a tuple takes 3 µs.
    """
    known = Table(letters, start, slots)
    beginnings = Table(other_letters, other_start, other_slots)
    found = np.empty(len(text) // 2 + 1, np.int32)
    word = np.empty(len(text) * 3 // 2 + 4, np.uint8)
    n_found = at = 0
    while at < len(text) and n_found < limit:
        at, n = (
            copy_word(text, at, len(text), word, 0)
            if is_split
            else read_word(text, at, len(text), kinds, folded, singles, word, 0)
        )
        if n == 0:
            break
        found[n_found] = _search(known, word, 0, n, hash_word(word, 0, n, seed))
        if found[n_found] < 0:
            beginning = _find_beginning(beginnings, word, 0, n, seed)
            found[n_found] = unknown if beginning < 0 else -2 - beginning
        n_found += 1
    return found[:n_found].copy()


@njit(nogil=True, cache=True)
def unite(
    letters: Bytes, start: Starts, hashes: NDArray[np.uint64], held: NDArray[np.int64]
) -> tuple[WordIds, NDArray[np.int64], NDArray[np.int64]]:
    """Return the new number of each word, where the new words stand, how many texts hold them."""
    slots = np.full(1024, -1, np.int32)  # places of words among all of them
    numbers = np.empty(len(hashes), np.int32)
    firsts = np.empty(len(hashes), np.int64)
    kept = np.empty(len(hashes), np.uint64)
    total = np.zeros(len(hashes), np.int64)
    n_words = 0
    for word in range(len(hashes)):
        mask = np.uint64(len(slots) - 1)
        slot = hashes[word] & mask
        begin, length = start[word], start[word + 1] - start[word]
        while slots[slot] >= 0:
            number = slots[slot]
            if kept[number] == hashes[word]:
                other = start[firsts[number]]
                same = start[firsts[number] + 1] - other == length
                if same and _is_same(letters, other, letters, begin, length):
                    break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = n_words
            firsts[n_words], kept[n_words] = word, hashes[word]
            n_words += 1
        number = slots[slot]
        numbers[word] = number
        total[number] += held[word]
        if 2 * n_words > len(slots):
            slots = place_again(kept, n_words, 4 * len(slots))
    return numbers, firsts[:n_words].copy(), total[:n_words].copy()


@njit(nogil=True, cache=True)
def gather(letters: Bytes, start: Starts, chosen: NDArray[np.int64]) -> tuple[Bytes, Starts]:
    """Return the chosen words, one behind the other, and where each begins."""
    new_start = np.zeros(len(chosen) + 1, np.int64)
    for i in range(len(chosen)):
        new_start[i + 1] = new_start[i] + start[chosen[i] + 1] - start[chosen[i]]
    gathered = np.empty(new_start[-1], np.uint8)
    for i in range(len(chosen)):
        for j in range(new_start[i + 1] - new_start[i]):
            gathered[new_start[i] + j] = letters[start[chosen[i]] + j]
    return gathered, new_start


@njit(nogil=True, cache=True)
def _skip_letters(letters: Bytes, first: int, last: int, n: int) -> int:
    """Return where the letters of a word go on after `n` of them, or `last`."""
    at = first
    while n and at < last:
        at += 1
        while at < last and letters[at] & 0xC0 == 0x80:  # the character goes on
            at += 1
        n -= 1
    return at


@njit(nogil=True, cache=True)
def _find_beginning(
    known: Table,
    letters: Bytes,
    first: int,
    last: int,
    seed: np.uint64,
) -> int:
    """Return the longest known beginning of a word that goes on after it; −1 if there is none."""
    if len(known.start) == 1:
        return UNKNOWN
    for n in range(LONGEST, SHORTEST - 1, SHORTEST - LONGEST):
        end = _skip_letters(letters, first, last, n)
        if end < last:
            code = hash_word(letters, first, end, seed)
            number = _search(known, letters, first, end, code)
            if number >= 0:
                return number
    return UNKNOWN


@njit(nogil=True, cache=True)
def find_beginnings(
    known: Table,
    letters: Bytes,
    start: Starts,
    seed: np.uint64,
) -> WordIds:
    """Return the longest known beginning of each word; −1 if there is none."""
    found = np.empty(len(start) - 1, np.int32)
    for word in range(len(found)):
        found[word] = _find_beginning(known, letters, start[word], start[word + 1], seed)
    return found


@njit(nogil=True, cache=True)
def list_beginnings(letters: Bytes, start: Starts) -> tuple[Bytes, Starts]:
    """Return the beginnings of all words, one behind the other, the shorter ones first."""
    copied = np.empty(2 * len(letters), np.uint8)
    starts = np.zeros(2 * len(start), np.int64)
    n = 0
    for word in range(len(start) - 1):
        first, last = start[word], start[word + 1]
        for length in range(SHORTEST, LONGEST + 1, LONGEST - SHORTEST):
            end = _skip_letters(letters, first, last, length)
            if end < last:
                n += 1
                starts[n] = starts[n - 1] + end - first
                for i in range(end - first):
                    copied[starts[n - 1] + i] = letters[first + i]
    return copied[: starts[n]].copy(), starts[: n + 1].copy()
