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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError

Starts = NDArray[np.int64]
WordIds = NDArray[np.int32]

WIDE = 16  # characters a word takes, with room to spare, to begin with in a long text

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


class WordReader(NamedTuple):
    """How the words of texts are found, and how they become numbers.

    Attributes:
        lowercase: take `Beer` and `beer` for the same word.
        strip_accents: take `Käse` and `Kase` for the same word.
        single_characters: see `word_pattern`.
        limit: read so many words of a text, the first; None reads all.
    """

    lowercase: bool = True
    strip_accents: bool = False
    single_characters: bool = False
    limit: int | None = None

    def find(self, text: str) -> list[str]:
        """Return the words of a text in their order, of a long one without looking at the rest."""
        if self.limit is None:
            return self._find_all(text)
        width = self.limit * WIDE
        while True:
            words = self._find_all(text[:width])
            # The last word of a part may be cut: it has to be one that is not wanted.
            if len(words) > self.limit or width >= len(text):
                return words[: self.limit]
            width *= 4

    def _find_all(self, text: str) -> list[str]:
        if self.lowercase:
            text = text.lower()
        if text.isascii():
            return _ASCII_WORD.findall(text)
        if self.strip_accents:
            parts = unicodedata.normalize("NFKD", text)
            text = "".join(part for part in parts if not unicodedata.combining(part))
        # An accent written as a character of its own makes the same word as a built-in one.
        normal = unicodedata.normalize("NFC", text)
        return word_pattern(single_characters=self.single_characters).findall(normal)

    def learn(self, texts: Iterable[str]) -> tuple[list[str], Starts, WordIds]:
        """Return all words, numbered as they first appear, and the texts as `look_up` does."""
        seen: defaultdict[str, int] = defaultdict()
        seen.default_factory = seen.__len__  # a new word gets the next id
        start, ids = self._number(texts, lambda words: map(seen.__getitem__, words))
        return list(seen), start, ids

    def look_up(
        self, texts: Iterable[str], known: Mapping[str, int], unknown: int
    ) -> tuple[Starts, WordIds]:
        """Return where the words of each text begin (n + 1,), and the ids of all words in a row."""
        return self._number(texts, lambda words: map(known.get, words, repeat(unknown)))

    def _number(
        self, texts: Iterable[str], to_ids: Callable[[list[str]], Iterable[int]]
    ) -> tuple[Starts, WordIds]:
        if isinstance(texts, str | bytes):
            raise DataError(f"texts must be a list of strings. Got one {type(texts).__name__}.")
        ids, start = array("i"), array("q", [0])
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(
                    f"texts must be strings. Got {type(text).__name__} for document {row}, "
                    "counted from 0; write a document without text as an empty string"
                )
            ids.extend(to_ids(self.find(text)))
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
