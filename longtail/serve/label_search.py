"""Label search: what people type while they look for a label, with and without slips.

Names and queries are compared as words in small letters without accents. Each word of a query has
to be the beginning of a word of the name. A word that is the beginning of none is taken for
mistyped: words at one or two slips from it, found by the pairs of letters that both have, count
instead.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unicodedata import combining, normalize

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_WORD = re.compile(r"\w+")
_LAST = "\U0010ffff"  # behind every word that begins as another
_COMPARED = 50  # words that share the most pairs of letters with a mistyped one
_MOST_LETTERS = 100  # of a query
_LONG = 8  # letters of a word that may have two slips


class LabelSearch:
    """Finds labels by name, the most frequent first."""

    def __init__(self, names: Sequence[str], counts: NDArray[Any]) -> None:
        """Sort the labels and their words; `counts` says how frequent each label is."""
        self._n_labels = len(names)
        self._counts = np.asarray(counts)
        folded = [fold(name) for name in names]
        self._order = np.array(sorted(range(len(folded)), key=folded.__getitem__), dtype=np.int64)
        self._sorted = [folded[i] for i in self._order.tolist()]
        labels_of: dict[str, list[int]] = defaultdict(list)
        for label, name in enumerate(folded):
            for word in set(_WORD.findall(name)):
                labels_of[word].append(label)
        self._words = sorted(labels_of)
        lengths = [len(labels_of[word]) for word in self._words]
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        held = [label for word in self._words for label in labels_of[word]]
        self._labels = np.array(held, dtype=np.int64)
        self._pairs = self._index_pairs()

    def find(self, query: str, n: int) -> list[int]:
        """Return the numbers of up to n labels: the name itself, beginnings of names, words."""
        query = fold(query[:_MOST_LETTERS]).strip()
        if not query:
            return []
        first = self._begin_with(query)
        found = dict.fromkeys(first[:n])
        words = _WORD.findall(query)
        if len(found) < n and words:
            found |= dict.fromkeys(self._with_words(words, n + len(found)))
        return list(found)[:n]

    def _begin_with(self, query: str) -> list[int]:
        """Return the labels whose names begin with the query; the query itself comes first."""
        a, b = bisect_left(self._sorted, query), bisect_left(self._sorted, query + _LAST)
        exact = bisect_left(self._sorted, query + "\0") - a
        same, longer = self._order[a : a + exact], self._order[a + exact : b]
        return [*same.tolist(), *self._frequent(longer)]

    def _with_words(self, words: Sequence[str], n: int) -> list[int]:
        """Return the most frequent n labels that have all these words."""
        having = np.ones(self._n_labels, dtype=bool)
        for word in words:
            mask = np.zeros(self._n_labels, dtype=bool)
            for a, b in self._ranges(word):
                mask[self._labels[self._starts[a] : self._starts[b]]] = True
            having &= mask
        return self._frequent(np.flatnonzero(having))[:n]

    def _ranges(self, word: str) -> list[tuple[int, int]]:
        """Return where the words are that begin so; where there are none, those that are near."""
        a, b = bisect_left(self._words, word), bisect_left(self._words, word + _LAST)
        return [(a, b)] if a < b else [(i, i + 1) for i in self._near(word)]

    def _near(self, word: str) -> list[int]:
        """Return the words at one slip from this one; at two, if it is long."""
        pairs = [self._pairs[pair] for pair in set(_pairs_of(word)) if pair in self._pairs]
        if not pairs or len(word) < 3:
            return []
        shared = np.bincount(np.concatenate(pairs), minlength=len(self._words))
        best = np.argsort(-shared, kind="stable")[:_COMPARED].tolist()
        most = 2 if len(word) >= _LONG else 1
        return [i for i in best if shared[i] and count_slips(word, self._words[i]) <= most]

    def _frequent(self, labels: Ids) -> list[int]:
        found: list[int] = labels[np.argsort(-self._counts[labels], kind="stable")].tolist()
        return found

    def _index_pairs(self) -> dict[str, Ids]:
        """Return which words have each pair of letters."""
        words_of: dict[str, list[int]] = defaultdict(list)
        for i, word in enumerate(self._words):
            for pair in set(_pairs_of(word)):
                words_of[pair].append(i)
        return {pair: np.array(words, dtype=np.int64) for pair, words in words_of.items()}


def fold(text: str) -> str:
    """Return the text in small letters and without accents."""
    return "".join(char for char in normalize("NFKD", text.casefold()) if not combining(char))


def _pairs_of(word: str) -> list[str]:
    padded = f" {word} "
    return [padded[i : i + 2] for i in range(len(padded) - 1)]


def count_slips(one: str, other: str) -> int:
    """Return how many letters are missing, added, wrong or swapped with the next."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted)))
            swapped = i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted
            if swapped:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
