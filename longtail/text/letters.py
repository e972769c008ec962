"""Letters: what each character is to a reader of words, as tables that compiled code looks up.

`WordReader.find` turns a text to lower case, may strip accents, brings it into one form (NFC) and
then finds words. For most characters each of these steps gives one character, whatever stands
beside it; so the steps are taken once for each character, by Python itself, and kept in a table.
Where a neighbour matters (a capital sigma, an accent that joins the letter before it) or one
character becomes several, the table says that the text needs `WordReader.find`.
"""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.text.words import WordReader, is_emoji, is_flag, is_mark, is_unspaced

# What a character is.
SEPARATOR = 0  # stands between words
LETTER = 1  # part of a word
MARK = 2  # part of a word, but no letter
SINGLE = 3  # a letter that is a word of its own
EMOJI = 4  # a word of its own, but no letter
UNSURE = 5  # depends on its neighbours, or becomes several

N_ASCII = 0x80
N_CHARACTERS = 0x20000  # those of the table; the rest are rare, and unsure
SIGMA = "\u03a3"  # its lower case depends on where in a word it stands


class Letters(NamedTuple):
    """Tables by code point.

    Attributes:
        kinds: what each character is.
        folded: the code point that it becomes, such as that of its lower case.
        order: its combining class, by which NFC orders marks; 0 for others.
        singles: whether some characters are words of their own, and no mark begins a word.
    """

    kinds: NDArray[np.uint8]
    folded: NDArray[np.int32]
    order: NDArray[np.uint8]
    singles: bool


def letters_of(reader: WordReader, n: int = N_CHARACTERS) -> Letters:
    """Return the table of the first `n` characters, as this reader takes them."""
    return _make_letters(reader if reader.limit is None else reader._replace(limit=None), n)


@cache
def _make_letters(reader: WordReader, n: int) -> Letters:
    kinds, folded = np.full(n, UNSURE, np.uint8), np.zeros(n, np.int32)
    order = np.zeros(n, np.uint8)
    for code in range(n):
        character = chr(code)
        order[code] = unicodedata.combining(character)
        becomes = _fold(character, reader)
        if becomes is not None:
            kinds[code] = _kind_of(becomes, reader.single_characters)
            folded[code] = ord(becomes)
    return Letters(kinds, folded, order, reader.single_characters)


def _fold(character: str, reader: WordReader) -> str | None:
    """Return the one character that it becomes in any text; None if that is not so."""
    if reader.lowercase and character == SIGMA:
        return None
    becomes = character.lower() if reader.lowercase else character
    if len(becomes) == 1 and becomes.isascii():
        return becomes
    if reader.strip_accents:
        parts = unicodedata.normalize("NFKD", becomes)
        becomes = "".join(part for part in parts if not unicodedata.combining(part))
    # Compiled code has room for half as many bytes again as the text has.
    if len(becomes) != 1 or _width(becomes) > 1.5 * _width(character):
        return None
    if becomes in _composing() or unicodedata.normalize("NFC", becomes) != becomes:
        return None
    return becomes


def _width(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@cache
def _composing() -> frozenset[str]:
    """Return the characters that NFC may join with the one before."""
    pairs = (
        unicodedata.decomposition(chr(code)).split()
        for code in range(N_CHARACTERS)
        if not unicodedata.decomposition(chr(code)).startswith("<")
    )
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2}
    jamo = map(chr, (*range(0x1161, 0x1176), *range(0x11A7, 0x11C3)))  # parts of Korean syllables
    return frozenset(seconds.union(jamo))


def _kind_of(character: str, singles: bool) -> int:
    is_letter = character.isalnum() or character == "_"
    if is_mark(character):
        return MARK
    if singles and is_unspaced(character):
        return SINGLE if is_letter else SEPARATOR
    if is_letter:
        return LETTER
    if singles and is_flag(character):
        return UNSURE
    return EMOJI if singles and is_emoji(character) else SEPARATOR
