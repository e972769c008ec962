"""Words: what a word is, and how the words of texts are found and numbered.

A word is a run of letters, digits and underscores, with a trailing `++` or `#`, so that `c`, `c++`
and `c#` are three words. Letters may carry marks, such as Hindi's vowel signs. Punctuation and
control characters stand between words. Two readings differ in scripts that set no blanks between
words (Chinese, Japanese but for katakana, Thai, …) and in emoji: `Tfidf` takes runs of such letters
as words and skips emoji, `Tokens` takes each such character as a word of its own.

The words are found here and not by a library: on 50,000 library titles and on 33,000 questions,
Python's own regular expressions and one dictionary took a third of the processor time of the
`tokenizers` package with the same pattern, and less time even where that used two cores. They also
take any string, half a surrogate pair included.
"""

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError

_TAIL = r"(?:\+\+|#(?![\w#]))?"
_ASCII_WORD = re.compile(rf"\w+{_TAIL}", re.ASCII)
# Han, hiragana, Thai, Lao, Myanmar, Khmer
_UNSPACED = (
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u3005\u3007\u3041-\u309f"
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_EMOJI = r"[\u2600-\u27bf\U0001f300-\U0001f3fa\U0001f400-\U0001faff]|[\U0001f1e6-\U0001f1ff]{2}"


@cache
def word_pattern(*, single_characters: bool = False) -> re.Pattern[str]:
    """Return the pattern of a word in any script.

    Args:
        single_characters: whether an emoji, and each character of a script without blanks, is a
            word of its own.
    """
    every = map(chr, range(0x300, 0x10000))
    marks = "".join(mark for mark in every if unicodedata.category(mark)[0] == "M")
    if not single_characters:
        return re.compile(rf"[\w{marks}]+{_TAIL}")
    letter = rf"[^\W{_UNSPACED}]"
    word = rf"{letter}+(?:[{marks}]+{letter}*)*{_TAIL}"
    return re.compile(rf"{word}|(?=\w)[{_UNSPACED}][{marks}]*|{_EMOJI}")


def find_words(text: str, *, single_characters: bool = False) -> list[str]:
    """Return the words of a text in their order, as `word_pattern` says."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    # An accent written as a character of its own makes the same word as a built-in one.
    normal = unicodedata.normalize("NFC", text)
    return word_pattern(single_characters=single_characters).findall(normal)


def number_words(
    texts: Iterable[str],
    find: Callable[[str], list[str]],
    to_ids: Callable[[list[str]], Iterable[int]],
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return where the words of each text begin (n + 1,), and the ids of all words in a row."""
    if isinstance(texts, str | bytes):
        raise DataError(f"texts must be a list of strings. Got one {type(texts).__name__}.")
    ids, start = array("i"), array("q", [0])
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(
                f"texts must be strings. Got {type(text).__name__} for document {row}, "
                "counted from 0; write a document without text as an empty string"
            )
        ids.extend(to_ids(find(text)))
        start.append(len(ids))
    return np.asarray(start, np.int64), np.asarray(ids, np.int32)


def no_words_error(n_texts: int, n_words: int, parameter: str, least: int) -> DataError:
    """Return the error for texts of whose `n_words` words none is kept."""
    if n_words:
        return DataError(
            f"no word occurs in at least {least} of the {n_texts} texts; choose a lower {parameter}"
        )
    return DataError(
        f"there is not a single word in the {n_texts} texts; "
        "check that the right file and the right column were read"
    )
