"""Tfidf: raw texts → rows of weighted words, word pairs and beginnings of words.

The weights are those of scikit-learn's TfidfVectorizer with sublinear_tf, but for pairs and
beginnings, which count half unless settings say otherwise; a test holds the two side by side. The
counting is done here all the same: pairs counted as pairs of word ids cost a fraction of pairs
counted as strings, one document costs microseconds, and the state is plain lists and arrays.

What a word is, `words` says. Accents are kept by default: they tell words apart in most languages.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import NotFittedError
from longtail.runtime.compiled import njit
from longtail.runtime.mapped import (
    BLOCK,
    ArrayWriter,
    MatrixWriter,
    Texts,
    build_csr,
    count_values,
    cut_sizes,
    is_mapped,
)
from longtail.runtime.parallel import in_threads, n_threads
from longtail.runtime.schema import (
    Schema,
    Sizes,
    Value,
    floats,
    indices,
    parameters_of,
    starts,
)
from longtail.runtime.schema import Texts as TextsOf
from longtail.runtime.settings import (
    Range,
    above,
    at_least,
    between,
    check_settings,
    configurable,
    learned,
    setting,
    settings_of,
)
from longtail.runtime.store import Files
from longtail.text.beginnings import BEGINS, Beginnings
from longtail.text.lexicon import (
    READ_TOGETHER,
    Lexicon,
    learn_words,
    learn_words_of_many,
    replace_ids,
    starts_of,
)
from longtail.text.word_pairs import Pairs, are_rising, find_pair, select_pairs, sort
from longtail.text.word_table import UNKNOWN, Starts, WordIds
from longtail.text.words import WordReader, check_texts, no_words_error, word_pattern

LEAST_IDF = 1e-6  # what training gives is at least 1; a row of zeros has no direction

# Words a text may have on average if pairs are to be counted too. On validation splits, pairs raise
# the linear model's P@1 by 1.1 on library titles (10 words) and by 1.4 on package descriptions
# (69 words); on questions (119 words) they lower it by 0.4 and cost four times as much.
SHORT_TEXT = 100

# What learning takes at most: while words alone or words and pairs are counted; and, estimated from
# the arrays, what a word takes afterwards.
BYTES_A_WORD, BYTES_A_PAIR, BYTES_A_WORD_KEPT = 28, 70, 30
PIECE = 1 << 18  # words or cells that a thread takes at a time
LEAST_PIECE = 1 << 12  # for which a further thread is worth its start
SAMPLED, SAMPLED_LENGTH = 200, 2000  # texts and characters of them by which words are estimated


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
    pair_weight: float = setting(
        0.5,
        "what a pair counts beside a word as rare as it is; with 1, pairs drown what words say",
        above(0, at_most=1),
    )
    beginnings: float = setting(
        0.5,
        "what the first 4 and 6 letters of a longer word count beside a word as rare as they are; "
        "0 leaves them out",
        between(0, 1),
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
        """The terms by id: the words in alphabetical order, then pairs, then beginnings."""
        self._check_fitted()
        words = self._lexicon.words
        first, second = self._pairs.first.tolist(), self._pairs.second.tolist()
        pairs = [f"{words[a]} {words[b]}" for a, b in zip(first, second, strict=True)]
        return words + pairs + [start + BEGINS for start in self._beginnings.lexicon.words]

    def copy(self) -> "Tfidf":
        """Return a new Tfidf with the same settings that has learned nothing yet."""
        return Tfidf(**self._settings())

    def fit(self, texts: Iterable[str]) -> "Tfidf":
        """Learn the terms and their weights from `texts`."""
        self._learn(_check(texts))
        return self

    def fit_transform(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Learn from `texts` and return their rows, the same that `transform` gives afterwards."""
        return self._weigh(self._learn(_check(texts)))

    def estimate_bytes(self, texts: Sequence[str]) -> int:
        """Return about how much memory learning from `texts` takes, from some of their words."""
        if isinstance(texts, Texts):
            return BYTES_A_PAIR * READ_TOGETHER // 4 + 32 * len(texts)
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
        n_words = self._lexicon.n_words + self._beginnings.lexicon.n_words
        return BYTES_A_WORD_KEPT * n_words + 8 * len(self._pairs.second)

    def transform(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Return one row for each text; a text without any known term has an empty row."""
        self._check_fitted()
        return self._weigh(self._count(*self._look_up(texts)))

    def read_words(self, texts: Iterable[str]) -> tuple[Starts, WordIds]:
        """Return where the words of each text begin (n + 1,), and the ids of those that are known.

        They stand in the order of the text, a word as often as it occurs; other terms are left out.
        """
        self._check_fitted()
        starts, ids = self._look_up(texts)
        known = ids >= 0
        return starts_of(known)[starts], ids[known]

    def locate(self, text: str) -> dict[int, list[tuple[int, int]]]:
        """Return where each known term stands in `text`: {term: [(start, end), …]}."""
        self._check_fitted()
        places: dict[int, list[tuple[int, int]]] = {}
        n_words, n_pairs = self._lexicon.n_words, len(self._pairs.second)
        previous = (UNKNOWN, 0)
        for match in word_pattern().finditer(text):
            words = self._reader.find(match.group())
            for word in self._lexicon.find(words, UNKNOWN, self._beginnings.lexicon).tolist():
                terms = [word] if word >= 0 else []
                terms += [n_words + n_pairs + each for each in self._beginnings.chain(word)]
                for term in terms:
                    places.setdefault(term, []).append(match.span())
                pair = find_pair(*self._pairs, previous[0], word)
                if pair != UNKNOWN:
                    span = (previous[1], match.end())
                    places.setdefault(n_words + pair, []).append(span)
                previous = (word, match.start())
        return places

    def to_files(self, files: Files) -> None:
        """Add the settings, the terms and their weights to a model's files."""
        self._check_fitted()
        files.config["features"] = {"type": "tfidf", **self._settings()}
        files.arrays["features.idf"] = self.idf_
        files.arrays["features.pairs.start"] = self._pairs.start
        files.arrays["features.pairs.second"] = self._pairs.second
        files.texts["vocabulary"] = self._lexicon.words
        if self._beginnings.lexicon.n_words:
            files.texts["beginnings"] = self._beginnings.lexicon.words

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of what `to_files` adds."""
        return Schema(
            config={"features": {"type": Value(Literal["tfidf"]), **parameters_of(cls)}},
            arrays={
                "features.idf": floats("n_features", least=LEAST_IDF),
                "features.pairs.start": starts("features.n_words", of="features.n_pairs"),
                "features.pairs.second": indices("features.n_pairs", into="features.n_words"),
            },
            texts={
                "vocabulary": TextsOf("features.n_words", unique=True),
                "beginnings": TextsOf("features.n_beginnings", unique=True, optional=True),
            },
            rules=[_check_terms],
        )

    @classmethod
    def from_files(cls, files: Files) -> "Tfidf":
        """Return the Tfidf that `to_files` stored; its rows are the same to the last bit."""
        settings = {key: value for key, value in files.config["features"].items() if key != "type"}
        loaded = cls(**settings)
        loaded._lexicon = Lexicon.of(files.texts["vocabulary"])
        loaded._pairs = Pairs(
            files.arrays["features.pairs.start"], files.arrays["features.pairs.second"]
        )
        known = Lexicon.of(files.texts.get("beginnings", []))
        loaded._beginnings = Beginnings.of(known, loaded._lexicon)
        loaded.idf_ = files.arrays["features.idf"]
        return loaded

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in settings_of(type(self))}

    def _check_fitted(self) -> None:
        if not hasattr(self, "idf_"):
            raise NotFittedError("this Tfidf has not learned any terms yet; call fit first")

    def _learn(self, texts: list[str] | Texts) -> sp.csr_matrix:
        """Learn the terms and their weights; return how often each document holds each term."""
        check_settings(self)
        if isinstance(texts, Texts):
            read = learn_words_of_many(texts, self._reader)
        else:
            read = learn_words(texts, self._reader)
        kept = _sort_words(read.lexicon, np.flatnonzero(read.held >= self.min_df))
        if not len(kept):
            raise no_words_error(len(texts), read.lexicon.n_words, "min_df", self.min_df)
        self._lexicon, ids = read.lexicon.take(kept), read.ids
        if self.beginnings:
            self._beginnings = Beginnings.learn(read, self._lexicon)
        else:
            self._beginnings = Beginnings.of(Lexicon.empty(), self._lexicon)
        new_id = self._beginnings.code(read.lexicon)
        new_id[kept] = np.arange(len(kept), dtype=np.int32)
        replace_ids(ids, new_id)
        least = None
        if self.ngrams == 2 or (self.ngrams is None and len(ids) <= SHORT_TEXT * len(texts)):
            least = self.min_pair_df
        self._pairs = select_pairs(read.starts, ids, len(kept), least)
        counts = self._count(read.starts, ids)
        if self.max_features is not None and counts.shape[1] > self.max_features:
            counts = self._keep_commonest(counts, self.max_features)
        self.idf_ = _idf(counts)
        _, pairs, beginnings = np.split(self.idf_, np.cumsum(self._count_kinds())[:-1])
        pairs *= np.float32(self.pair_weight)
        beginnings *= np.float32(self.beginnings)
        return counts

    def _count_kinds(self) -> tuple[int, int, int]:
        """Return how many words, pairs and beginnings there are, in the order of the terms."""
        n_beginnings = self._beginnings.lexicon.n_words
        return self._lexicon.n_words, len(self._pairs.second), n_beginnings

    def _look_up(self, texts: Iterable[str]) -> tuple[Starts, WordIds]:
        beginnings = self._beginnings.lexicon
        return self._lexicon.look_up(check_texts(texts), self._reader, UNKNOWN, beginnings)

    def _keep_commonest(self, counts: sp.csr_matrix, n_kept: int) -> sp.csr_matrix:
        totals = _sum_columns(counts)
        # Words come before pairs and no pair is commoner than its words, so none loses a word.
        kept = np.sort(np.argsort(-totals, kind="stable")[:n_kept])
        n_words, n_pairs, _ = self._count_kinds()
        words, pairs, beginnings = np.split(
            kept, np.searchsorted(kept, (n_words, n_words + n_pairs))
        )
        pairs, beginnings = pairs - n_words, beginnings - n_words - n_pairs
        first = np.searchsorted(words, self._pairs.first[pairs])
        second = np.searchsorted(words, self._pairs.second[pairs])
        self._lexicon = self._lexicon.take(words)
        self._pairs = Pairs.of(len(words), first, second)
        known = self._beginnings.lexicon.take(beginnings)
        self._beginnings = Beginnings.of(known, self._lexicon)
        if not is_mapped(counts):
            return counts[:, kept]
        fewer = MatrixWriter()
        for begin, end in cut_sizes(np.diff(counts.indptr), BLOCK):
            fewer.add(counts[begin:end][:, kept])
        return fewer.map()

    @property
    def _reader(self) -> WordReader:
        return WordReader(lowercase=self.lowercase, strip_accents=self.accents == "strip")

    def _count(self, starts: Starts, ids: WordIds) -> sp.csr_matrix:
        """Return how often each document holds each term."""
        known = (*self._pairs, self._beginnings.of_word, self._beginnings.shorter)
        tasks = [(starts[a : b + 1], ids, *known) for a, b in _cut(starts)]
        shape = (len(starts) - 1, sum(self._count_kinds()))
        if is_mapped(ids):
            return _count_into_files(tasks, shape)
        parts = in_threads(_count_terms, tasks)
        if len(parts) == 1:
            lengths, columns, values = parts[0]
        else:
            lengths, columns, values = map(np.concatenate, zip(*parts, strict=True))
        return sp.csr_matrix((values, columns, starts_of(lengths)), shape=shape)

    def _weigh(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Turn counts into weights, in place: (1 + log count) · idf, each row of length 1."""
        borders = _cut(counts.indptr)
        if len(borders) == 1:
            _weigh_rows(counts.data, counts.indices, counts.indptr, self.idf_)
            return counts
        tasks = [
            (counts.data[a:b], counts.indices[a:b], counts.indptr[first : last + 1], self.idf_)
            for first, last in borders
            for a, b in [(counts.indptr[first], counts.indptr[last])]
        ]
        in_threads(_weigh_rows, tasks)
        return counts


def _check(texts: Iterable[str]) -> list[str] | Texts:
    return texts if isinstance(texts, Texts) else check_texts(texts)


def _count_into_files(tasks: Sequence[tuple[Any, ...]], shape: tuple[int, int]) -> sp.csr_matrix:
    """Return what `_count_terms` finds, in files, for texts that are larger than memory."""
    counted = (ArrayWriter(np.int64), ArrayWriter(np.int32), ArrayWriter(np.float32))
    at_once = 8 * n_threads()
    for first in range(0, len(tasks), at_once):
        for lengths, columns, values in in_threads(_count_terms, tasks[first : first + at_once]):
            counted[0].add(lengths)
            counted[1].add(columns)
            counted[2].add(values)
    start, found, weights = starts_of(counted[0].map()), counted[1].map(), counted[2].map()
    return build_csr(weights, found, start, shape)


def _sum_columns(counts: sp.csr_matrix) -> NDArray[np.float64]:
    totals = np.zeros(counts.shape[1])
    for first in range(0, counts.nnz, BLOCK):
        cells = slice(first, first + BLOCK)
        totals += np.bincount(counts.indices[cells], counts.data[cells], counts.shape[1])
    return totals


def _cut(starts: NDArray[Any]) -> list[tuple[int, int]]:
    """Cut documents into pieces of about the same size; return where each begins and ends."""
    n, total = len(starts) - 1, int(starts[-1])
    n_pieces = min(n, max(1, total // PIECE, min(n_threads(), total // LEAST_PIECE)))
    if n_pieces <= 1:
        return [(0, n)]
    borders = np.searchsorted(starts, np.linspace(0, total, n_pieces + 1)[1:-1])
    return list(pairwise(sorted({0, *borders.tolist(), n})))


def _weigh_rows(
    values: NDArray[np.float32],
    columns: NDArray[np.int32],
    starts: NDArray[Any],
    idf: NDArray[np.float32],
) -> None:
    """Turn the counts of some rows into weights, in place."""
    np.log(values, out=values)
    values += 1
    values *= idf[columns]
    if not len(values):
        return
    squares = np.square(values, dtype=np.float64)
    if len(starts) == 2:  # one document, the case where every microsecond is felt
        norms = np.sqrt(np.add.reduce(squares))
    else:
        lengths = np.diff(starts)
        filled = lengths > 0
        norms = np.sqrt(np.add.reduceat(squares, starts[:-1][filled] - starts[0]))
        norms = np.repeat(norms, lengths[filled])
    np.divide(values, norms, out=values, casting="same_kind")


def _sort_words(lexicon: Lexicon, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the chosen words in alphabetical order."""
    words = lexicon.take(chosen).words
    return chosen[sorted(range(len(words)), key=words.__getitem__)]


def _idf(counts: sp.csr_matrix) -> NDArray[np.float32]:
    """Return log((1 + n) / (1 + df)) + 1 for each term, n documents of which df hold it."""
    df = count_values(counts.indices, counts.shape[1])
    return (np.log((1 + counts.shape[0]) / (1 + df)) + 1).astype(np.float32)


def _check_terms(files: Files, sizes: Sizes) -> None:
    """Raise ValueError unless the pairs are in order, and each term has a weight."""
    pairs = Pairs(files.arrays["features.pairs.start"], files.arrays["features.pairs.second"])
    terms = ("features.n_words", "features.n_pairs", "features.n_beginnings")
    if sum(sizes[name] for name in terms) != sizes["n_features"]:
        raise ValueError("features.idf must hold a number for each word, pair and beginning")
    if not are_rising(*pairs):
        raise ValueError("features.pairs must be in order, each once")


# ------------------------------------------------------------------------------- compiled code


@njit(nogil=True, cache=True)
def _count_terms(
    starts: Starts,
    ids: WordIds,
    pair_start: Starts,
    second: WordIds,
    of_word: WordIds,
    shorter: WordIds,
) -> tuple[NDArray[np.int64], WordIds, NDArray[np.float32]]:
    """Return how many different terms each document has; these, rising; how often it has each."""
    n_words = len(pair_start) - 1
    n = len(starts) - 1
    has_pairs = len(second) > 0
    most = (starts[n] - starts[0]) * (1 + has_pairs + 2 * (len(shorter) > 0))
    terms = np.empty(most, np.int32)
    values = np.empty(most, np.float32)
    lengths = np.empty(n, np.int64)
    n_kept = 0
    for i in range(n):
        n_terms = n_kept  # a document's terms stand where the different ones of them will be
        previous = UNKNOWN
        for place in range(starts[i], starts[i + 1]):
            word = ids[place]
            beginning = of_word[word] if word >= 0 else -2 - word
            while beginning != UNKNOWN:
                terms[n_terms] = n_words + len(second) + beginning
                n_terms += 1
                beginning = shorter[beginning]
            if word >= 0:
                terms[n_terms] = word
                n_terms += 1
                if has_pairs:
                    pair = find_pair(pair_start, second, previous, word)
                    if pair != UNKNOWN:
                        terms[n_terms] = n_words + pair
                        n_terms += 1
            previous = word
        sort(terms[n_kept:n_terms])
        before = n_kept
        for place in range(before, n_terms):
            if n_kept > before and terms[n_kept - 1] == terms[place]:
                values[n_kept - 1] += 1
            else:
                terms[n_kept] = terms[place]
                values[n_kept] = 1
                n_kept += 1
        lengths[i] = n_kept - before
    return lengths, terms[:n_kept].copy(), values[:n_kept].copy()
