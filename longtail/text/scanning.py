"""Words in texts of UTF-8, found by compiled code; `letters` says what each character is."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.text.letters import EMOJI, LETTER, MARK, SEPARATOR, SINGLE, UNSURE

Bytes = NDArray[np.uint8]


@njit(nogil=True, cache=True)
def _decode(text: Bytes, at: int) -> tuple[int, int]:
    """Return the code point of the character that begins at `at`, and how many bytes it takes."""
    first: Any = np.int64(text[at])  # the one type of all that is made of it
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | (text[at + 1] & 0x3F), 2
    if first < 0xF0:
        return (first & 0x0F) << 12 | (text[at + 1] & 0x3F) << 6 | (text[at + 2] & 0x3F), 3
    high = (first & 0x07) << 18 | (text[at + 1] & 0x3F) << 12
    return high | (text[at + 2] & 0x3F) << 6 | (text[at + 3] & 0x3F), 4


@njit(nogil=True, cache=True)
def _encode(code: int, out: Bytes, n: int) -> int:
    """Write a character behind `n` bytes; return how many there are then."""
    if code < 0x80:
        out[n] = code
        return n + 1
    if code < 0x800:
        out[n] = 0xC0 | code >> 6
        out[n + 1] = 0x80 | code & 0x3F
        return n + 2
    if code < 0x10000:
        out[n] = 0xE0 | code >> 12
        out[n + 1] = 0x80 | code >> 6 & 0x3F
        out[n + 2] = 0x80 | code & 0x3F
        return n + 3
    out[n] = 0xF0 | code >> 18
    out[n + 1] = 0x80 | code >> 12 & 0x3F
    out[n + 2] = 0x80 | code >> 6 & 0x3F
    out[n + 3] = 0x80 | code & 0x3F
    return n + 4


@njit(nogil=True, cache=True)
def find_unsure(
    text: Bytes, ends: NDArray[np.int64], kinds: NDArray[np.uint8], order: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Return which texts hold a character that is unsure, or marks that NFC would order anew."""
    unsure = np.zeros(len(ends), np.bool_)
    at = 0
    for i in range(len(ends)):
        before = 0
        while at < ends[i]:
            code, width = _decode(text, at)
            at += width
            if code >= len(kinds) or kinds[code] == UNSURE or 0 < order[code] < before:
                unsure[i] = True
                at = ends[i]
            else:
                before = order[code]
    return unsure


@njit(nogil=True, cache=True)
def read_word(
    text: Bytes,
    at: int,
    end: int,
    kinds: NDArray[np.uint8],
    folded: NDArray[np.int32],
    singles: bool,
    out: Bytes,
    n: int,
) -> tuple[int, int]:
    """Write the next word behind `n` bytes of `out`; return where to go on, and how many then.

    As many as before mean that there is no further word.
    """
    kind, code, width = SEPARATOR, 0, 0
    while at < end:
        code, width = _decode(text, at)
        kind = kinds[code]
        if kind != SEPARATOR and not (singles and kind == MARK):
            break
        at += width
    if at >= end:
        return at, n
    n = _encode(folded[code], out, n)
    at += width
    if kind == EMOJI:
        return at, n
    is_single = kind == SINGLE
    while at < end:
        code, width = _decode(text, at)
        kind = kinds[code]
        if not (kind == MARK or (kind == LETTER and not is_single)):
            break
        n = _encode(folded[code], out, n)
        at += width
    if at < end and not is_single:
        n_tail = _measure_tail(text, at, end, kinds, folded)
        for _ in range(n_tail):
            code, width = _decode(text, at)
            n = _encode(folded[code], out, n)
            at += width
    return at, n


@njit(nogil=True, cache=True)
def copy_word(text: Bytes, at: int, end: int, out: Bytes, n: int) -> tuple[int, int]:
    """Do as `read_word` does, in a text of nothing but words, each on a line of its own."""
    while at < end and text[at] != 10:
        out[n] = text[at]
        n += 1
        at += 1
    return at + 1, n


@njit(nogil=True, cache=True)
def _measure_tail(
    text: Bytes, at: int, end: int, kinds: NDArray[np.uint8], folded: NDArray[np.int32]
) -> int:
    """Return how many characters of a `++` or `#` belong to the word that ends at `at`."""
    plus, sharp = 43, 35
    code, width = _decode(text, at)
    if folded[code] != plus and folded[code] != sharp:
        return 0
    if at + width >= end:
        return 1 if folded[code] == sharp else 0
    following, _ = _decode(text, at + width)
    if folded[code] == plus:
        return 2 if folded[following] == plus else 0
    is_letter = kinds[following] == LETTER or kinds[following] == SINGLE
    return 0 if is_letter or folded[following] == sharp else 1
