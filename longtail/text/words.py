"""Words: what a word is, and how the words of texts are found and numbered.

A word is a run of letters, digits and underscores, with a trailing `++` or `#`, so that `c`, `c++`
and `c#` are three words. Letters may carry marks, such as Hindi's vowel signs. Punctuation and
control characters stand between words. Two readings differ in scripts that set no blanks between
words (Chinese, Japanese but for katakana, Thai, …) and in emoji: `Tfidf` takes runs of such letters
as words and skips emoji, `Tokens` takes each such character as a word of its own.

What `WordReader.find` gives is what a word is. Compiled code finds the same words in nearly all
texts, many times as fast (`lexicon`). Both take any string, half a surrogate pair included.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from longtail.errors import DataError
from longtail.runtime.mapped import Texts

WIDE = 16  # characters a word takes, with room to spare, to begin with in a long text

_TAIL = r"(?:\+\+|#(?![\w#]))?"
_ASCII_WORD = re.compile(rf"\w+{_TAIL}", re.ASCII)
# Han, hiragana, Thai, Lao, Myanmar, Khmer
_UNSPACED = (
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u3005\u3007\u3041-\u309f"
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_EMOJI = r"[\u2600-\u27bf\U0001f300-\U0001f3fa\U0001f400-\U0001faff]"
_FLAG_LETTER = r"[\U0001f1e6-\U0001f1ff]"  # two of them are a flag

is_unspaced = re.compile(rf"[{_UNSPACED}]").fullmatch
is_emoji = re.compile(_EMOJI).fullmatch
is_flag = re.compile(_FLAG_LETTER).fullmatch


def is_mark(character: str) -> bool:
    """Whether it is a mark that belongs to the word around it, such as Hindi's vowel signs."""
    return "\u0300" <= character <= "\uffff" and unicodedata.category(character)[0] == "M"


@cache
def word_pattern(*, single_characters: bool = False) -> re.Pattern[str]:
    """Return the pattern of a word in any script.

    Args:
        single_characters: whether an emoji, and each character of a script without blanks, is a
            word of its own.
    """
    marks = "".join(filter(is_mark, map(chr, range(0x300, 0x10000))))
    if not single_characters:
        return re.compile(rf"[\w{marks}]+{_TAIL}")
    letter = rf"[^\W{_UNSPACED}]"
    word = rf"{letter}+(?:[{marks}]+{letter}*)*{_TAIL}"
    return re.compile(rf"{word}|(?=\w)[{_UNSPACED}][{marks}]*|{_EMOJI}|{_FLAG_LETTER}{{2}}")


class WordReader(NamedTuple):
    """How the words of texts are found.

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


def check_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list; DataError if one of them is no string."""
    if isinstance(texts, Texts):
        return list(texts)
    if isinstance(texts, str | bytes):
        raise DataError(f"texts must be a list of strings. Got one {type(texts).__name__}.")
    checked = texts if isinstance(texts, list) else list(texts)
    if set(map(type, checked)) <= {str}:
        return checked
    for row, text in enumerate(checked):
        if not isinstance(text, str):
            raise DataError(
                f"texts must be strings. Got {type(text).__name__} for document {row}, "
                "counted from 0; write a document without text as an empty string"
            )
    return checked


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
