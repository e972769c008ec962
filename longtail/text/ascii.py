"""The words of plain ASCII texts, found and looked up by compiled code on all cores.

Most English texts are ASCII, and their words are found without Python's strings: sixteen million
characters a second become a hundred and more. The words are exactly those of `WordReader.find`.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.text.words import word_pattern

Bytes = NDArray[np.uint8]

TASK_BYTES = 1 << 20  # of text, for a task


def simplify(text: object) -> str | None:
    """Return an ASCII text with the same words; None if that is not known to exist."""
    if not isinstance(text, str):
        return None
    if text.isascii():
        return text
    without = find_separators().sub(" ", text)
    return without if without.isascii() else None


@cache
def find_separators() -> re.Pattern[str]:
    """Return a pattern of the commonest characters that only stand between words."""
    word = word_pattern(single_characters=True)
    found = "".join(
        chr(code)
        for code in range(0x80, 0x2100)
        if word.findall(f"a{chr(code)}b") == ["a", "b"]
        if unicodedata.category(chr(code))[0] in "PSZ" and chr(code).lower() == chr(code)
    )
    return re.compile(f"[{re.escape(found)}]")


class AsciiWords(NamedTuple):
    """A hash table of ASCII words.

    Attributes:
        letters: the words, one behind the other.
        start: (n + 1,) where each begins in `letters`.
        ids: (n,) the number of each.
        slots: the words' places in `start`, by their hash; −1 where a slot is free.
    """

    letters: Bytes
    start: NDArray[np.int64]
    ids: NDArray[np.int32]
    slots: NDArray[np.int32]

    @classmethod
    def of(cls, words: Sequence[str]) -> "AsciiWords":
        """Return the table of those words that are ASCII; a word's number is its place."""
        places = [i for i, word in enumerate(words) if word.isascii()]
        chosen = [words[i] for i in places]
        start = np.concatenate(([0], np.cumsum([len(word) for word in chosen], dtype=np.int64)))
        letters = np.frombuffer("".join(chosen).encode("ascii"), np.uint8)
        slots = np.full(1 << (2 * len(chosen) + 1).bit_length(), -1, np.int32)
        _fill(letters, start, slots)
        return cls(letters, start, np.asarray(places, np.int32), slots)

    def look_up(
        self, texts: Sequence[str], limit: int, unknown: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return how many words each text has, `limit` at most, and the ids of all in a row.

        The texts must be ASCII; a word that the table lacks is `unknown`.
        """
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        if not len(ends):
            return np.empty(0, np.int64), np.empty(0, np.int32)
        letters = np.frombuffer("".join(texts).encode("ascii"), np.uint8)
        size = min(TASK_BYTES, int(ends[-1]) // n_threads() + 1)
        cuts = np.searchsorted(ends, np.arange(0, ends[-1] + size, size)).tolist()
        cuts = sorted({0, *cuts, len(ends)})
        tasks = [(*self, letters, ends, a, b, limit, unknown) for a, b in pairwise(cuts)]
        found = run_tasks(_look_up, tasks, [1.0] * len(tasks))
        counts, ids = zip(*found, strict=True)
        return np.concatenate(counts), np.concatenate(ids)


@njit(nogil=True, cache=True)
def _fill(letters: Bytes, start: NDArray[np.int64], slots: NDArray[np.int32]) -> None:
    mask = np.uint64(len(slots) - 1)
    for word in range(len(start) - 1):
        code = np.uint64(14695981039346656037)
        for i in range(start[word], start[word + 1]):
            code = (code ^ np.uint64(letters[i])) * np.uint64(1099511628211)
        slot = (code ^ (code >> np.uint64(29))) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = word


@njit(nogil=True, cache=True)
def _lower(letter: int) -> int:
    return letter + 32 if 65 <= letter <= 90 else letter


@njit(nogil=True, cache=True)
def _is_inside(letter: int) -> bool:
    """Whether it is a letter, a digit or an underscore."""
    return 97 <= letter <= 122 or 65 <= letter <= 90 or 48 <= letter <= 57 or letter == 95


@njit(nogil=True, cache=True)
def _look_up(
    known: Bytes,
    start: NDArray[np.int64],
    ids: NDArray[np.int32],
    slots: NDArray[np.int32],
    letters: Bytes,
    ends: NDArray[np.int64],
    first: int,
    last: int,
    limit: int,
    unknown: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    begin = ends[first - 1] if first else 0
    counts = np.zeros(last - first, np.int64)
    found = np.empty((ends[last - 1] - begin + 1) // 2 + last - first, np.int32)
    n_found, mask = 0, np.uint64(len(slots) - 1)
    plus, sharp = 43, 35
    for text in range(first, last):
        at = ends[text - 1] if text else 0
        end = ends[text]
        while at < end and counts[text - first] < limit:
            if not _is_inside(letters[at]):
                at += 1
                continue
            word = at
            code = np.uint64(14695981039346656037)
            while at < end and _is_inside(letters[at]):
                code = (code ^ np.uint64(_lower(letters[at]))) * np.uint64(1099511628211)
                at += 1
            tail = 0
            if at + 1 < end and letters[at] == plus and letters[at + 1] == plus:
                tail = 2
            elif at < end and letters[at] == sharp:
                follows = at + 1 < end and (_is_inside(letters[at + 1]) or letters[at + 1] == sharp)
                tail = 0 if follows else 1
            for _ in range(tail):
                code = (code ^ np.uint64(letters[at])) * np.uint64(1099511628211)
                at += 1
            found[n_found] = unknown
            slot = (code ^ (code >> np.uint64(29))) & mask
            while slots[slot] >= 0:
                other = slots[slot]
                if start[other + 1] - start[other] == at - word:
                    same = True
                    for i in range(at - word):
                        if known[start[other] + i] != _lower(letters[word + i]):
                            same = False
                            break
                    if same:
                        found[n_found] = ids[other]
                        break
                slot = (slot + np.uint64(1)) & mask
            n_found += 1
            counts[text - first] += 1
    return counts, found[:n_found].copy()
