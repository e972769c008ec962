"""Tfidf: raw texts → rows of weighted words and word pairs.

The weights are those of scikit-learn's TfidfVectorizer with sublinear_tf; a test holds the two side
by side. The counting is done here all the same: pairs counted as pairs of word ids cost a fraction
of pairs counted as strings, one document costs microseconds, and the state is a plain list of terms
and one array.

What a word is, `words` says. Accents are kept by default: they tell words apart in most languages.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import NotFittedError
from longtail.runtime.schema import Schema, Texts, Value, floats, parameters_of
from longtail.runtime.settings import (
    Range,
    at_least,
    check_settings,
    configurable,
    learned,
    setting,
    settings_of,
)
from longtail.runtime.store import Files
from longtail.text.words import WordReader, no_words_error, word_pattern

UNKNOWN = -1
LEAST_IDF = 1e-6  # what training gives is at least 1; a row of zeros has no direction

# Words a text may have on average if pairs are to be counted too. On validation splits, pairs raise
# the linear model's P@1 by 1.1 on library titles (10 words) and by 1.4 on package descriptions
# (69 words); on questions (119 words) they lower it by 0.4 and cost four times as much.
SHORT_TEXT = 100

# What learning takes, measured: while words alone or words and pairs are counted, and afterwards.
BYTES_A_WORD, BYTES_A_PAIR, BYTES_A_TERM = 28, 70, 200
SAMPLED, SAMPLED_LENGTH = 200, 2000  # texts and characters of them by which words are estimated


class _Terms(NamedTuple):
    """The terms of documents one after the other, and where each document's begin and end."""

    ids: NDArray[Any]
    starts: NDArray[np.int64]

    def where(self, keep: NDArray[np.bool_]) -> "_Terms":
        """Return only those terms where `keep` is set."""
        if keep.all():
            return self
        n_before = np.concatenate(([0], np.cumsum(keep)))
        return _Terms(self.ids[keep], n_before[self.starts])


@configurable
class Tfidf:
    """Turn texts into tf-idf rows: CSR, float32, of length 1."""

    ngrams: int | None = setting(
        None,
        "1 for words alone, 2 for words and pairs of neighbouring words; none takes pairs where "
        "texts are short",
        Range("1 or 2", lambda ngrams: ngrams in (1, 2)),
    )
    min_df: int = setting(1, "keep a word if at least this many documents hold it", at_least(1))
    min_pair_df: int = setting(
        2, "the same for a pair; those seen only once are many and teach little", at_least(1)
    )
    max_features: int | None = setting(
        None, "keep at most so many terms, the commonest; none keeps all", at_least(1)
    )
    lowercase: bool = setting(True, "take `Beer` and `beer` for the same word")
    accents: Literal["keep", "strip"] = setting(
        "keep", "strip takes `Käse` and `Kase` for the same word"
    )

    idf_: NDArray[np.float32] = learned()  # (n_features,) weight of each term

    @property
    def n_features_(self) -> int:
        """The number of terms."""
        self._check_fitted()
        return len(self.idf_)

    @property
    def feature_names_(self) -> list[str]:
        """The terms by id: the words in alphabetical order, then the pairs."""
        self._check_fitted()
        first, second = np.divmod(self._pairs, len(self._words))
        return self._words + [
            f"{self._words[a]} {self._words[b]}"
            for a, b in zip(first.tolist(), second.tolist(), strict=True)
        ]

    def copy(self) -> "Tfidf":
        """Return a new Tfidf with the same settings that has learned nothing yet."""
        return Tfidf(**self._settings())

    def fit(self, texts: Iterable[str]) -> "Tfidf":
        """Learn the terms and their weights from `texts`."""
        self._learn(texts)
        return self

    def fit_transform(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Learn from `texts` and return their rows, the same that `transform` gives afterwards."""
        return self._weigh(self._learn(texts))

    def estimate_bytes(self, texts: Sequence[str]) -> int:
        """Return about how much memory learning from `texts` takes, from some of their words."""
        some = texts[:: max(1, len(texts) // SAMPLED)]
        parts = [text[:SAMPLED_LENGTH] for text in some]
        n_words = sum(len(self._reader.find(part)) for part in parts)
        words = n_words / max(1, sum(map(len, parts))) * sum(map(len, texts))
        is_short = words <= SHORT_TEXT * len(texts)
        takes_pairs = self.ngrams == 2 or (self.ngrams is None and is_short)
        return int(words * (BYTES_A_PAIR if takes_pairs else BYTES_A_WORD)) + 32 * len(texts)

    @property
    def n_bytes(self) -> int:
        """About how much memory the terms take."""
        return BYTES_A_TERM * len(self._words) + 12 * len(self._pairs)

    def transform(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Return one row for each text; a text without any known term has an empty row."""
        self._check_fitted()
        starts, ids = self._reader.look_up(texts, self._ids, UNKNOWN)
        return self._weigh(self._count(_Terms(ids, starts)))

    def read_words(self, texts: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return where the words of each text begin (n + 1,), and the ids of those that are known.

        They stand in the order of the text, a word as often as it occurs; pairs are left out.
        """
        self._check_fitted()
        starts, ids = self._reader.look_up(texts, self._ids, UNKNOWN)
        known = _Terms(ids, starts).where(ids != UNKNOWN)
        return known.starts, known.ids

    def locate(self, text: str) -> dict[int, list[tuple[int, int]]]:
        """Return where each known term stands in `text`: {term: [(start, end), …]}."""
        self._check_fitted()
        places: dict[int, list[tuple[int, int]]] = {}
        previous = (UNKNOWN, 0)
        n_words = len(self._words)
        for match in word_pattern().finditer(text):
            for word in self._reader.find(match.group()):
                term = self._ids.get(word, UNKNOWN)
                if term != UNKNOWN:
                    places.setdefault(term, []).append(match.span())
                if term != UNKNOWN and previous[0] != UNKNOWN:
                    key = previous[0] * n_words + term
                    at = int(np.searchsorted(self._pairs, key))
                    if at < len(self._pairs) and self._pairs[at] == key:
                        places.setdefault(n_words + at, []).append((previous[1], match.end()))
                previous = (term, match.start())
        return places

    def to_files(self, files: Files) -> None:
        """Add the settings, the terms and their weights to a model's files."""
        self._check_fitted()
        files.config["features"] = {"type": "tfidf", **self._settings()}
        files.arrays["features.idf"] = self.idf_
        files.texts["vocabulary"] = self.feature_names_

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of what `to_files` adds."""
        return Schema(
            config={"features": {"type": Value(Literal["tfidf"]), **parameters_of(cls)}},
            arrays={"features.idf": floats("n_features", least=LEAST_IDF)},
            texts={"vocabulary": Texts("n_features", unique=True)},
        )

    @classmethod
    def from_files(cls, files: Files) -> "Tfidf":
        """Return the Tfidf that `to_files` stored; its rows are the same to the last bit.

        Raises:
            ValueError: the terms are not in order.
        """
        settings = {key: value for key, value in files.config["features"].items() if key != "type"}
        loaded = cls(**settings)
        loaded._set_terms(*_split_terms(files.texts["vocabulary"]))
        loaded.idf_ = files.arrays["features.idf"]
        return loaded

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in settings_of(type(self))}

    def _check_fitted(self) -> None:
        if not hasattr(self, "idf_"):
            raise NotFittedError("this Tfidf has not learned any terms yet; call fit first")

    def _learn(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Learn the terms and their weights; return how often each document holds each term."""
        check_settings(self)
        seen, starts, ids = self._reader.learn(texts)
        words, tokens = _select_words(seen, _Terms(ids, starts), self.min_df)
        if not words:
            raise no_words_error(len(starts) - 1, len(seen), "min_df", self.min_df)
        pairs = np.empty(0, dtype=np.int64)
        if self.ngrams == 2 or (self.ngrams is None and _are_short(tokens)):
            pairs = _select_pairs(tokens, len(words), self.min_pair_df)
        self._set_terms(words, pairs)
        counts = self._count(tokens)
        if self.max_features is not None and counts.shape[1] > self.max_features:
            counts = self._keep_commonest(counts, self.max_features)
        self.idf_ = _idf(counts)
        return counts

    def _set_terms(self, words: list[str], pairs: NDArray[np.int64]) -> None:
        """Take words in alphabetical order, and pairs as sorted `first · n_words + second`."""
        self._words = words
        self._ids = {word: i for i, word in enumerate(words)}
        self._pairs = pairs

    def _keep_commonest(self, counts: sp.csr_matrix, n_kept: int) -> sp.csr_matrix:
        totals = np.bincount(counts.indices, weights=counts.data, minlength=counts.shape[1])
        # Words come before pairs and no pair is commoner than its words, so none loses a word.
        kept = np.sort(np.argsort(-totals, kind="stable")[:n_kept])
        n_words = len(self._words)
        first, second = np.divmod(self._pairs[kept[kept >= n_words] - n_words], n_words)
        kept_words = kept[kept < n_words]
        first, second = np.searchsorted(kept_words, first), np.searchsorted(kept_words, second)
        words = [self._words[i] for i in kept_words.tolist()]
        self._set_terms(words, first * len(words) + second)
        return counts[:, kept]

    @property
    def _reader(self) -> WordReader:
        return WordReader(lowercase=self.lowercase, strip_accents=self.accents == "strip")

    def _count(self, words: _Terms) -> sp.csr_matrix:
        """Return how often each document holds each term."""
        terms = words.where(words.ids != UNKNOWN)
        if len(self._pairs):
            keys = _pair_keys(words, len(self._words))
            places = np.searchsorted(self._pairs, keys.ids)
            found = self._pairs[np.minimum(places, len(self._pairs) - 1)] == keys.ids
            pairs = _Terms(places + len(self._words), keys.starts).where(found)
            terms = _merge(terms, pairs)
        return _count(terms, len(self._words) + len(self._pairs))

    def _weigh(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Turn counts into weights, in place: (1 + log count) · idf, each row of length 1."""
        values = counts.data
        np.log(values, out=values)
        values += 1
        values *= self.idf_[counts.indices]
        lengths = np.diff(counts.indptr)
        filled = lengths > 0
        if len(values):
            squares = np.square(values, dtype=np.float64)
            norms = np.sqrt(np.add.reduceat(squares, counts.indptr[:-1][filled]))
            np.divide(values, np.repeat(norms, lengths[filled]), out=values, casting="same_kind")
        return counts


def _are_short(tokens: _Terms) -> bool:
    return len(tokens.ids) <= SHORT_TEXT * (len(tokens.starts) - 1)


def _select_words(names: list[str], tokens: _Terms, min_df: int) -> tuple[list[str], _Terms]:
    """Return the words of at least `min_df` documents, sorted, and the tokens by their new ids."""
    df = np.bincount(_count(tokens, len(names)).indices, minlength=len(names))
    kept = sorted(np.flatnonzero(df >= min_df).tolist(), key=names.__getitem__)
    new_id = np.full(len(names), UNKNOWN, dtype=np.int32)
    new_id[kept] = np.arange(len(kept), dtype=np.int32)
    return [names[i] for i in kept], _Terms(new_id[tokens.ids], tokens.starts)


def _select_pairs(tokens: _Terms, n_words: int, min_df: int) -> NDArray[np.int64]:
    """Return the sorted keys of the pairs that at least `min_df` documents hold."""
    keys = _pair_keys(tokens, n_words)
    pairs, ids = np.unique(keys.ids, return_inverse=True)
    df = np.bincount(_count(_Terms(ids, keys.starts), len(pairs)).indices, minlength=len(pairs))
    return pairs[df >= min_df]


def _pair_keys(tokens: _Terms, n_words: int) -> _Terms:
    """Return `first · n_words + second` for each two known words that stand side by side."""
    if len(tokens.ids) == 0:
        return _Terms(np.empty(0, dtype=np.int64), tokens.starts)
    first, second = tokens.ids, np.append(tokens.ids[1:], UNKNOWN)
    valid = (first != UNKNOWN) & (second != UNKNOWN)
    ends = tokens.starts[1:]
    valid[ends[ends > 0] - 1] = False  # the last word of one document and the first of the next
    return _Terms(first.astype(np.int64) * n_words + second, tokens.starts).where(valid)


def _merge(words: _Terms, pairs: _Terms) -> _Terms:
    """Put each document's pairs behind its words."""
    if len(words.starts) == 2:  # one document, the case where every microsecond is felt
        return _Terms(np.concatenate((words.ids, pairs.ids)), words.starts + pairs.starts)
    ids = np.empty(len(words.ids) + len(pairs.ids), dtype=np.int32)
    pairs_before = np.repeat(pairs.starts[:-1], np.diff(words.starts))
    words_before = np.repeat(words.starts[1:], np.diff(pairs.starts))
    ids[np.arange(len(words.ids)) + pairs_before] = words.ids
    ids[np.arange(len(pairs.ids)) + words_before] = pairs.ids
    return _Terms(ids, words.starts + pairs.starts)


def _count(terms: _Terms, n_terms: int) -> sp.csr_matrix:
    """Return the (n_documents, n_terms) matrix of how often each document holds each term."""
    ones = np.ones(len(terms.ids), dtype=np.float32)
    # Copies, because sum_duplicates sorts in place and the caller still needs the words' order.
    ids, starts = terms.ids.astype(np.int32), terms.starts.copy()
    counts = sp.csr_matrix((ones, ids, starts), shape=(len(starts) - 1, n_terms))
    counts.sum_duplicates()
    return counts


def _idf(counts: sp.csr_matrix) -> NDArray[np.float32]:
    """Return log((1 + n) / (1 + df)) + 1 for each term, n documents of which df hold it."""
    df = np.bincount(counts.indices, minlength=counts.shape[1])
    return (np.log((1 + counts.shape[0]) / (1 + df)) + 1).astype(np.float32)


def _split_terms(terms: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the words and the keys of the pairs of a stored list of terms."""
    words = [term for term in terms if " " not in term]
    ids = {word: i for i, word in enumerate(words)}
    parts = [term.split(" ") for term in terms[len(words) :]]
    if any(len(pair) != 2 or pair[0] not in ids or pair[1] not in ids for pair in parts):
        raise ValueError("the vocabulary must hold words, then pairs of these")
    keys = np.fromiter((ids[a] * len(words) + ids[b] for a, b in parts), np.int64, len(parts))
    if len(ids) != len(words) or (keys[1:] <= keys[:-1]).any():
        raise ValueError("the pairs of the vocabulary must be in order, each once")
    return words, keys
