"""Lexical: labels whose names stand in the text.

No paper; the idea is that of Maui (Medelyan, 2009) and of thesaurus-based indexers since: find the
terms of the vocabulary in the text (`names.py`), describe each match, and learn which matches are
right (`matching.py`). A label that no training document carries is found like any other.

    names_      the names as stems, and which names to look at when a stem is met
    counts_     how often stems, names and labels occurred, and how often a match was right
    weights_    (2, 16) the two logistic regressions: for a part of a name, for all of it
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.evaluation.explanation import Explanation, Term
from longtail.evaluation.metrics import find_hits
from longtail.models.base import Model
from longtail.models.checks import Floats, Ids, check_one
from longtail.models.contract import Documents
from longtail.models.cost import Facts
from longtail.models.lexical.matching import (
    N_INPUTS,
    PRIORS,
    Counts,
    Known,
    Matches,
    Pair,
    count_held,
    count_matches,
    describe_matches,
    find_matches,
    fit_logistic,
    rank_matches,
    score_matches,
)
from longtail.models.lexical.names import (
    Names,
    Reader,
    Spelling,
    join_spellings,
    read_other_names,
    spell,
    spell_forms,
    stem,
    weigh_names,
)
from longtail.progress import Progress
from longtail.runtime import memory
from longtail.runtime.mapped import Texts as MappedTexts
from longtail.runtime.mapped import is_mapped
from longtail.runtime.memory import Needs, Stage
from longtail.runtime.parallel import cut, in_threads
from longtail.runtime.schema import (
    Schema,
    Sizes,
    Texts,
    counts,
    floats,
    indices,
    number,
    starts,
    whole,
)
from longtail.runtime.settings import at_least, configurable, learned, setting
from longtail.runtime.store import Files
from longtail.text.lexicon import READ_TOGETHER
from longtail.text.words import WordReader, word_pattern
from longtail.topk import TopK

FOLDS = 5
ENOUGH = 1_000_000  # matches to learn the regressions from
SAMPLED, SAMPLED_LENGTH = 1000, 2000  # texts, and characters of each, to estimate from
BYTES_A_WORD, BYTES_A_LABEL, BYTES_A_MATCH = 14, 900, 10 * N_INPUTS
WORDS_AT_ONCE = READ_TOGETHER // 4  # of texts that lie in files
BATCH = 1024  # documents that a thread takes at a time
EXPLAINED = 5  # labels whose words are shown if none is asked for
HIDDEN, MOST_HIDDEN = 0.05, 500  # labels hidden to see how well labels without documents are found
ASKED = 2_000  # documents that carry them
FIRST = 5  # labels among which they should be
COUNTED = ("held", "word_right", "found", "right")  # those of Counts that only this model has


class Unseen(NamedTuple):
    """How well labels that training was not shown were found by their names.

    Attributes:
        n_labels: how many labels were hidden.
        n_pairs: how many times the documents that were asked about carry one of them.
        share: how many of these pairs had the label among the first five.
    """

    n_labels: int
    n_pairs: int
    share: float


@configurable
class Lexical(Model):
    """Finds the names of labels in texts, and knows how often each was right to find."""

    name: ClassVar[str] = "lexical"
    summary: ClassVar[str] = "finds the labels' names in the text, and knows which to trust"
    choose_when: ClassVar[str] = (
        "labels have names that texts use, above all where many labels have few documents or none"
    )
    reads = ("texts",)
    makes_rows: ClassVar[bool] = False
    can_explain: ClassVar[bool] = True
    can_update: ClassVar[bool] = True
    trains_on: ClassVar[bool] = False
    member_order: ClassVar[int | None] = 2
    member_reason: ClassVar[str] = "finds the names of labels, also of those never seen"
    milliseconds: ClassVar[float] = 0.1

    other_names: str | None = setting(
        None, "a file with further names of labels, a line for each: label, tab, name"
    )
    max_length: int = setting(1000, "how many words of a text to read", at_least(1))

    reader_: Reader = learned()
    names_: Names = learned()
    counts_: Counts = learned()
    weights_: NDArray[np.float64] = learned()
    unseen_: Unseen = learned(default=Unseen(0, 0, 0.0))

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Texts are read once and searched twice; many labels make many matches.

        475,974 titles with 25,018 labels took 3.5 s on two cores, 33,485 questions 0.8 s.
        """
        return 0.2 + 2e-7 * facts.n_values + 8e-5 * facts.n_labels

    # -- learning -----------------------------------------------------------------------------

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Count how often names are found and right, then learn what makes them right."""
        others = list_other_names(dataset)
        if self.other_names is not None:
            others += read_other_names(self.other_names, dataset.label_names)
        texts = dataset.texts or []
        self.say_memory(lambda model: _needs_of(texts, dataset.n_labels, 0), (), progress)
        progress.stage("looking for names", 3)
        stems, spelling = spell(dataset.label_names, others)
        reader = Reader.of(stems, self.max_length)
        words = reader.read(texts)
        progress.advance(1)
        names = weigh_names(spelling, count_held(words, len(stems)), len(dataset))
        folds = _count_folds(words, names, dataset.Y)
        total = Counts.add([fold.counts for fold in folds])
        n_matches = sum(fold.n_matches for fold in folds)
        memory.plan_memory(_needs_of(texts, dataset.n_labels, n_matches))
        progress.advance(1)
        self.weights_ = _learn_weights(words, names, dataset.Y, folds, total)
        self.reader_, self.names_, self.counts_ = reader, names, total
        known = Known(names, total, len(dataset), self.weights_)
        self.unseen_ = measure_unseen(words, known, dataset.Y, self.seed)
        progress.advance(1)
        progress.say(_sum_up(names, total))

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what training takes, by the rows of the texts, in which a word stands twice."""
        in_files = is_mapped(X)
        return _needs(2 * X.nnz, X.shape[0], Y.shape[1], ENOUGH, in_files=in_files)

    # -- predicting ---------------------------------------------------------------------------

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Rank the labels whose names stand in each text; the others follow by frequency."""
        if not documents:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        return self.predict_texts(self.read_texts(cast(list[str], documents)), k)

    def score_documents(self, documents: list[str] | sp.csr_matrix, candidates: Ids) -> Floats:
        """Score candidates; those whose name is not there get 0, or their share if no name is."""
        if not candidates.size:
            return np.zeros(candidates.shape, np.float32)
        return self.score_texts(self.read_texts(cast(list[str], documents)), candidates)

    def read_texts(self, texts: list[str]) -> list[Matches]:
        """Return the labels whose names stand in the texts, some texts at a time."""
        words, n = self.reader_.read(texts), len(texts)
        n_documents = self.training_counts_.n_documents
        known = Known(self.names_, self.counts_, n_documents, self.weights_)
        cuts = pairwise(cut(n, -(-n // BATCH)))
        return in_threads(find_matches, [(words, a, b, known) for a, b in cuts])

    def predict_texts(self, read: list[Matches], k: int) -> TopK:
        """Rank the labels that were found; the others follow by frequency."""
        frequent, n_documents = (
            self.training_counts_.by_frequency,
            self.training_counts_.n_documents,
        )
        known = frequent, self.counts_.labels, n_documents, k
        found = in_threads(rank_matches, [(each, *known) for each in read])
        return TopK.concatenate([TopK(*each) for each in found])

    def score_texts(self, read: list[Matches], candidates: Ids) -> Floats:
        """Look the candidates up among the labels that were found."""
        counted = self.counts_.labels, self.training_counts_.n_documents
        tasks, first = [], 0
        for each in read:
            last = first + len(each.start) - 1
            tasks.append((each, *counted, candidates[first:last]))
            first = last
        return np.concatenate(in_threads(score_matches, tasks))

    # -- labels without documents ---------------------------------------------------------------

    @property
    def finds_names(self) -> bool:
        """Labels are found by their names, with or without documents."""
        return True

    def add_names(self, names: Sequence[tuple[int, str]]) -> None:
        """Look for further names of labels, of which nothing is known but how they are spelled."""
        self.reader_, spelling, self.counts_ = self._join_names(names, len(self.label_names_))
        self.names_ = weigh_names(spelling, self.counts_.held, self.training_counts_.n_documents)

    def _join_names(
        self, names: Sequence[tuple[int, str]], n_labels: int
    ) -> tuple[Reader, Spelling, Counts]:
        """Return what reads the stems of all names, these names, and what is known of them."""
        numbers = dict(self.reader_.numbers)
        more = spell_forms(names, numbers)
        spelling, name_places, part_places = join_spellings(self._spelling, more)
        old = self.counts_

        def widen(counted: NDArray[np.int64], n: int) -> NDArray[np.int64]:
            return np.pad(counted, (0, n))

        counted = Counts(
            held=widen(old.held, len(numbers) - len(old.held)),
            word_right=widen(old.word_right, len(more.stems))[part_places],
            found=widen(old.found, len(more.labels))[name_places],
            right=widen(old.right, len(more.labels))[name_places],
            labels=self.training_counts_.padded(n_labels),
        )
        return Reader.of(list(numbers), self.max_length), spelling, counted

    @property
    def _spelling(self) -> Spelling:
        return Spelling(*(getattr(self.names_, part) for part in Spelling._fields))

    def say_unseen(self) -> str:
        """Say how well labels without documents are found, as training measured it."""
        if not self.unseen_.n_pairs:
            return "how well that works was not measured, as training had too few such labels"
        return (
            f"of {self.unseen_.n_labels:,} labels that training did not show to lexical, "
            f"{self.unseen_.share:.0%} were among the first {FIRST} of documents that carry them"
        )

    # -- more documents -----------------------------------------------------------------------

    def finish_update(self) -> None:
        """Words are as rare as in all documents."""
        n_documents = self.training_counts_.n_documents
        self.names_ = weigh_names(self._spelling, self.counts_.held, n_documents)

    def _rows_of(self, data: Documents) -> sp.csr_matrix:
        """Return how many words each text has: any word may be one of a new label's name."""
        starts, _ = self.reader_.read(cast(list[str], self.check_documents(data)))
        return sp.csr_matrix(np.diff(starts)[:, None], dtype=np.float32)

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Look for the names of new labels too, and count what the new documents hold."""
        new = range(len(self.label_names_), dataset.n_labels)
        named = [(label, dataset.label_names[label]) for label in new]
        reader, spelling, counted = self._join_names(named, dataset.n_labels)
        words, n = reader.read(dataset.texts or []), len(dataset)
        names = weigh_names(spelling, counted.held, self.training_counts_.n_documents + n)
        more, _ = count_matches(words, np.arange(n), _as_pair(dataset.Y), names, dataset.n_labels)
        self.reader_, self.names_, self.counts_ = reader, names, Counts.add([counted, more])

    # -- explaining ---------------------------------------------------------------------------

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Show the words of a text that belong to a label's names, or to those of its best labels.

        A word weighs as much of a name as its rarity makes it, times the probability of the label
        where several are shown.
        """
        self._check_fitted()
        text = self._one_text(document)
        shown = {} if label is None else {self._find_label(label): 1.0}
        if label is None:
            top = self.predict_documents([text], min(EXPLAINED, len(self.label_names_)))
            shown = dict(zip(top.labels[0].tolist(), top.scores[0].tolist(), strict=True))
        weights = self._weigh_stems(shown)
        sums: dict[str, float] = {}
        spans: dict[str, list[tuple[int, int]]] = {}
        words = WordReader(limit=self.max_length).find(text)
        for word, match in zip(words, word_pattern().finditer(text), strict=False):
            weight = weights.get(self.reader_.numbers.get(stem(word), -1), 0.0)
            if weight:
                sums[word] = weight
                spans.setdefault(word, []).append(match.span())
        total = sum(sums.values()) or 1.0
        terms = [Term(word, sums[word] / total, tuple(spans[word])) for word in sums]
        return Explanation(text, label, sorted(terms, key=lambda term: (-term.weight, term.name)))

    def _one_text(self, document: str | sp.spmatrix | sp.sparray) -> str:
        """Return the text that is to be explained, or say that it is none."""
        given = [document] if isinstance(document, str) else document
        found = cast(list[str], self.check_documents(given))
        check_one(len(found))
        return found[0]

    def _weigh_stems(self, shown: Mapping[int, float]) -> dict[int, float]:
        """Return how much each stem counts in the names of some labels."""
        names = self.names_
        weights: dict[int, float] = {}
        for label, score in shown.items():
            first, last = np.searchsorted(names.labels, (label, label + 1))
            parts = slice(names.start[first], names.start[last])
            own: dict[int, float] = {}
            for each, weight in zip(
                names.stems[parts].tolist(), names.weights[parts].tolist(), strict=True
            ):
                own[each] = max(own.get(each, 0.0), score * weight)
            for each, weight in own.items():
                weights[each] = weights.get(each, 0.0) + weight
        return weights

    # -- saving -------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the names, what was counted and what was learned from that."""
        files.texts["stems"] = list(self.reader_.numbers)
        for part in Spelling._fields:
            files.arrays[f"names.{part}"] = getattr(self.names_, part)
        for part in COUNTED:
            files.arrays[f"counts.{part}"] = getattr(self.counts_, part)
        files.arrays["weights"] = self.weights_
        files.config["unseen"] = self.unseen_._asdict()

    def describe(self, files: Files) -> Schema:
        """Return the schema of what `add_to_files` adds."""
        sizes = {"held": "n_stems", "word_right": "n_parts", "found": "n_names", "right": "n_names"}
        of_documents = {
            f"counts.{part}": counts(sizes[part], most="n_documents")._replace(empty=True)
            for part in COUNTED
        }
        unseen = {"n_labels": whole(0), "n_pairs": whole(0), "share": number(0, 1)}
        return Schema(
            config={"unseen": unseen},
            arrays={
                "names.start": starts("n_names", of="n_parts", empty_parts=False),
                "names.stems": indices("n_parts", into="n_stems"),
                "names.labels": indices("n_names", into="n_labels"),
                "weights": floats(len(PRIORS), N_INPUTS + 1, dtypes=(np.float64,)),
                **of_documents,
            },
            texts={"stems": Texts("n_stems", unique=True)},
            rules=[_check_counts],
        )

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        self.reader_ = Reader.of(files.texts["stems"], self.max_length)
        spelling = Spelling(*(files.arrays[f"names.{part}"] for part in Spelling._fields))
        counted = {part: files.arrays[f"counts.{part}"] for part in COUNTED}
        self.counts_ = Counts(**counted, labels=self.training_counts_.label_counts)
        self.names_ = weigh_names(spelling, self.counts_.held, self.training_counts_.n_documents)
        self.weights_ = files.arrays["weights"]
        self.unseen_ = Unseen(**files.config["unseen"])


def list_other_names(dataset: Dataset) -> list[tuple[int, str]]:
    """Return the labels and further names that a vocabulary gives them."""
    known = dataset.other_names or {}
    return [
        (label, other)
        for label, name in enumerate(dataset.label_names)
        for other in known.get(name, ())
    ]


class Fold(NamedTuple):
    """Some training documents, what they say of names, and how many names they hold."""

    documents: NDArray[np.int64]
    counts: Counts
    n_matches: int


def _count_folds(words: Pair, names: Names, Y: sp.csr_matrix) -> list[Fold]:
    """Divide the documents into folds, and count in each."""
    n, n_labels = Y.shape
    folds = [np.arange(fold, n, FOLDS) for fold in range(FOLDS)]
    tasks = [(words, fold, _as_pair(Y), names, n_labels) for fold in folds]
    counted = in_threads(count_matches, tasks)
    return [Fold(fold, *each) for fold, each in zip(folds, counted, strict=True)]


def _learn_weights(
    words: Pair, names: Names, Y: sp.csr_matrix, folds: Sequence[Fold], total: Counts
) -> NDArray[np.float64]:
    """Learn both regressions from matches, each described by what the other folds say."""
    step = 1 + sum(fold.n_matches for fold in folds) // ENOUGH
    tasks = [
        (
            words,
            fold.documents[::step],
            _as_pair(Y),
            names,
            total.without(fold.counts),
            Y.shape[0] - len(fold.documents),
        )
        for fold in folds
    ]
    rows, complete, right = map(
        np.concatenate, zip(*in_threads(describe_matches, tasks), strict=True)
    )
    kinds = [complete == whole for whole in (False, True)]
    learned = [fit_logistic(rows[k], right[k], p) for k, p in zip(kinds, PRIORS, strict=True)]
    return np.stack(learned)


def measure_unseen(words: Pair, known: Known, Y: sp.csr_matrix, seed: int) -> Unseen:
    """Hide some labels, as if no document had carried them, and look for them by their names.

    The regressions have seen their matches, among all others; counts have not.
    """
    carried = np.unique(Y.indices)
    rng = np.random.default_rng(seed)
    n_hidden = min(MOST_HIDDEN, int(HIDDEN * len(carried)))
    hidden = np.zeros(Y.shape[1], np.bool_)
    hidden[rng.choice(carried, n_hidden, replace=False)] = True
    asked = np.flatnonzero(Y @ hidden.astype(np.float32))
    asked = np.sort(rng.choice(asked, min(ASKED, len(asked)), replace=False))
    if not len(asked):
        return Unseen(0, 0, 0.0)
    names, total = known.names, known.counts
    shown = ~hidden[names.labels]
    counts = total._replace(
        word_right=total.word_right * np.repeat(shown, np.diff(names.start)),
        found=total.found * shown,
        right=total.right * shown,
        labels=total.labels * ~hidden,
    )
    starts, stems = words
    lengths = np.diff(starts)[asked]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    taken = np.repeat(starts[asked] - ends[:-1], lengths) + np.arange(ends[-1])
    frequent = np.argsort(-counts.labels, kind="stable").astype(np.int32)
    k = min(FIRST, Y.shape[1])
    texts = (ends, stems[taken])
    found = find_matches(texts, 0, len(asked), known._replace(counts=counts))
    best, scores = rank_matches(found, frequent, counts.labels, known.n_documents, k)
    own = sp.csr_matrix(Y[asked] @ sp.diags_array(hidden.astype(np.float32)))
    own.eliminate_zeros()
    return Unseen(
        int(hidden.sum()), own.nnz, float(find_hits(TopK(best, scores), own).sum() / own.nnz)
    )


def _needs_of(texts: Sequence[str], n_labels: int, n_matches: int) -> Needs:
    """Return what training on texts takes, by the words of some of them."""
    some = [text[:SAMPLED_LENGTH] for text in texts[:: 1 + len(texts) // SAMPLED]]
    n_words = sum(len(WordReader().find(text)) for text in some)
    share = _count_letters(texts) / max(1, sum(map(len, some)))
    in_files = isinstance(texts, MappedTexts)
    return _needs(int(n_words * share), len(texts), n_labels, n_matches, in_files=in_files)


def _count_letters(texts: Sequence[str]) -> int:
    return int(texts.sizes.sum()) if isinstance(texts, MappedTexts) else sum(map(len, texts))


def _needs(
    n_words: int, n_documents: int, n_labels: int, n_matches: int, *, in_files: bool
) -> Needs:
    """Return what training takes: numbers for each word, and what is known of each match."""
    matches = BYTES_A_MATCH * min(ENOUGH, n_matches)
    at_once = min(n_words, WORDS_AT_ONCE) if in_files else n_words
    words = BYTES_A_WORD * at_once + 16 * n_documents
    return (Stage({"words": words, "names": BYTES_A_LABEL * n_labels, "matches": matches}),)


def _as_pair(Y: sp.csr_matrix) -> Pair:
    """Return where the labels of each document begin, and all labels in a row."""
    return Y.indptr.astype(np.int64, copy=False), Y.indices.astype(np.int32, copy=False)


def _sum_up(names: Names, counted: Counts) -> str:
    """Say how many names were found, and how often that was right."""
    n_found, n_right = int(counted.found.sum()), int(counted.right.sum())
    n_labels = len(np.unique(names.labels[counted.found > 0]))
    if not n_found:
        return (
            "Note: no label's name stands in any of the texts, so that lexical knows the most "
            "frequent labels only; check that labels have names (label_names.txt beside the data)"
        )
    return (
        f"Names of {n_labels:,} of {len(counted.labels):,} labels stand in the texts; "
        f"{n_right / n_found:.0%} of such matches are right"
    )


def _check_counts(files: Files, sizes: Sizes) -> None:
    """Raise ValueError unless names are in order and nothing is right more often than found."""
    stems, labels = files.arrays["names.stems"], files.arrays["names.labels"]
    if (labels[1:] < labels[:-1]).any():
        raise ValueError("names.labels must hold rising numbers")
    held, word_right = files.arrays["counts.held"], files.arrays["counts.word_right"]
    if (files.arrays["counts.right"] > files.arrays["counts.found"]).any():
        raise ValueError("counts.right must be at most counts.found")
    if (word_right > held[stems]).any():
        raise ValueError("counts.word_right must be at most counts.held of the same stem")
