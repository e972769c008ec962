"""Beginnings of words: the first 4 and 6 letters of those that are longer.

`farmers` and `farming` are two words, but both begin with `farm`; so does `farmland`, even if no
training text holds it. Where a language bends its words, their beginnings are what stays.

The beginnings of a word form a chain: the longest one that is known, then the shorter one. So a
word of a text is one number all the same (`Lexicon.look_up`): its own if it is known, else −2 less
its longest beginning, or UNKNOWN.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.text.lexicon import Learned, Lexicon
from longtail.text.word_table import UNKNOWN, Starts, WordIds

BEGINS = "…"  # behind the name of a beginning; no word holds it
LEAST_HELD = 2  # documents that hold a beginning; one that is seen once teaches what its word does


class Beginnings(NamedTuple):
    """The beginnings that are known.

    Attributes:
        lexicon: the beginnings; the number of each is its place.
        of_word: (n_words,) the longest one of each known word, or UNKNOWN.
        shorter: (n,) the shorter one of each, or UNKNOWN.
    """

    lexicon: Lexicon
    of_word: WordIds
    shorter: WordIds

    @classmethod
    def of(cls, known: Lexicon, words: Lexicon) -> "Beginnings":
        """Return these beginnings for words that are known."""
        return cls(known, known.find_beginnings(words), known.find_beginnings(known))

    @classmethod
    def learn(cls, read: Learned, words: Lexicon) -> "Beginnings":
        """Return the beginnings of known words that enough of the texts hold."""
        found = words.list_beginnings()
        all_of = cls.of(found, read.lexicon)
        held = _count_held(read.starts, read.ids, all_of.of_word, all_of.shorter)
        return cls.of(found.take(np.flatnonzero(held >= LEAST_HELD)), words)

    def chain(self, word: int) -> list[int]:
        """Return the beginnings of a word, the longest first, by its number in a text."""
        found = []
        beginning = int(self.of_word[word]) if word >= 0 else -2 - word
        while beginning != UNKNOWN:
            found.append(beginning)
            beginning = int(self.shorter[beginning])
        return found

    def code(self, words: Lexicon) -> WordIds:
        """Return the numbers of words as if none of them was known."""
        return -2 - self.lexicon.find_beginnings(words)


@njit(nogil=True, cache=True)
def _count_held(
    starts: Starts, ids: WordIds, of_word: WordIds, shorter: WordIds
) -> NDArray[np.int64]:
    """Return how many documents hold each beginning."""
    held = np.zeros(len(shorter), np.int64)
    last = np.full(len(shorter), -1, np.int64)
    for i in range(len(starts) - 1):
        for place in range(starts[i], starts[i + 1]):
            beginning = of_word[ids[place]]
            while beginning != UNKNOWN:
                if last[beginning] != i:
                    last[beginning] = i
                    held[beginning] += 1
                beginning = shorter[beginning]
    return held
