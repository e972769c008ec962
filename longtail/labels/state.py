"""What became of a model's labels: what they mean, and which were merged or dropped.

A model keeps the labels that it was trained with, by number. People rename, merge and drop them
afterwards: a table says as which label each is given now. The label that others were merged into
has their scores in all, 1 at most; a label that was dropped has none. Documents that are read for
the model go through the same table, and names that labels had before are kept, so that old names
in data still mean what they became.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.errors import ParameterError
from longtail.labels.vocabulary import NO_CONCEPT, Vocabulary
from longtail.runtime.schema import Array, Content, Schema, Sizes, Texts, indices
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

DROPPED, UNKNOWN = -1, -2
CONCEPTS, TARGETS = "label_concepts", "label_targets"
OLD_NAMES, RENAMED = "old_label_names", "renamed_labels"
SHOWN = 3  # labels that are named

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Score = Callable[[NDArray[np.int64], Ids], Floats]  # of some rows, of candidates


@dataclass(frozen=True, eq=False)
class LabelState:
    """What is known of labels beside their names.

    Attributes:
        vocabulary: the concepts that labels stand for, if anybody gave any.
        concepts: (n_labels,) the concept of each label, or NO_CONCEPT.
        targets: (n_labels,) the label that each became, mostly itself, or DROPPED; what became a
            label that was dropped still says so. None while nothing changed.
        old_names: the label of each name that a label had before; what is a name now comes first.
    """

    vocabulary: Vocabulary | None = None
    concepts: Ids | None = None
    targets: Ids | None = None
    old_names: Mapping[str, int] = field(default_factory=dict)
    _named: dict[str, list[str]] = field(default_factory=dict, init=False)  # by language

    @classmethod
    def of(cls, vocabulary: Vocabulary, dataset: Dataset) -> "LabelState":
        """Return the state of a model that was trained on this data set just now."""
        found = vocabulary.match(dataset.label_names, dataset.label_uris)
        return cls(vocabulary, np.maximum(found.concepts, NO_CONCEPT))

    @cached_property
    def given(self) -> Ids:
        """(n_labels,) as which label each is given, or DROPPED; () while nothing changed."""
        if self.targets is None:
            return np.zeros(0, np.int32)
        return np.where(self.targets >= 0, self.targets[self.targets], DROPPED).astype(np.int32)

    # -- names ------------------------------------------------------------------------------

    def names_in(self, language: str, label_names: Sequence[str]) -> list[str]:
        """Return what labels are called in a language; those without such a name keep theirs."""
        if self.vocabulary is None or self.concepts is None:
            raise ParameterError(
                f"the model has no vocabulary, so that it knows no names in '{language}'; train it "
                "with --vocab"
            )
        if language not in self._named:
            found = self.vocabulary.preferred(language)
            names = [
                label if concept < 0 else found[concept] or label
                for label, concept in zip(label_names, self.concepts.tolist(), strict=True)
            ]
            self._named[language] = tell_apart(names, self.uris or [None] * len(names))
        return self._named[language]

    @property
    def languages(self) -> list[str]:
        """The languages in which the vocabulary, if there is one, can name labels."""
        return [] if self.vocabulary is None else sorted(filter(None, self.vocabulary.languages))

    @cached_property
    def uris(self) -> list[str | None] | None:
        """The URI of each label, None where it has none; None if no label has one."""
        if self.vocabulary is None or self.concepts is None or (self.concepts < 0).all():
            return None
        known = self.vocabulary.uris
        return [None if concept < 0 else known[concept] for concept in self.concepts.tolist()]

    # -- documents --------------------------------------------------------------------------

    def resolve(
        self, names: Sequence[str], uris: Mapping[str, str] | None, number: Mapping[str, int]
    ) -> Ids:
        """Return as which label of the model each name in data is given: UNKNOWN, DROPPED, or it.

        Args:
            names: what documents call labels.
            uris: the URIs of these, as far as there are any.
            number: from the model's names to their numbers.
        """
        old = self.old_names
        places = np.array([number.get(name, old.get(name, UNKNOWN)) for name in names], np.int32)
        if self.vocabulary is not None and self.concepts is not None and len(names):
            matched = self.vocabulary.match(names, uris).concepts
            by_concept = np.full(len(self.vocabulary), UNKNOWN, np.int32)
            known = np.flatnonzero(self.concepts >= 0)
            by_concept[self.concepts[known]] = known
            found = np.where(matched >= 0, by_concept[matched], UNKNOWN)
            places = np.where(places == UNKNOWN, found, places).astype(np.int32)
        if self.targets is None:
            return places
        return np.where(places >= 0, self.given[places], places).astype(np.int32)

    def read(self, dataset: Dataset, label_names: Sequence[str]) -> tuple[Dataset, list[str]]:
        """Return documents with the names that the model has for their labels, and what to say."""
        if self.vocabulary is None and self.targets is None and not self.old_names:
            return dataset, []
        number = {name: i for i, name in enumerate(label_names)}
        targets = self.resolve(dataset.label_names, dataset.label_uris, number)
        carried = np.bincount(dataset.Y.indices, minlength=dataset.n_labels) > 0
        lost = np.flatnonzero((targets == DROPPED) & carried).tolist()
        names = [
            own if target == UNKNOWN else None if target == DROPPED else label_names[target]
            for own, target in zip(dataset.label_names, targets.tolist(), strict=True)
        ]
        dropped = [dataset.label_names[label] for label in lost]
        return dataset.rename(names), [say_dropped(dropped)] if dropped else []

    # -- predictions ------------------------------------------------------------------------

    @cached_property
    def _sources(self) -> tuple[NDArray[np.int64], Ids]:
        """Where the labels that became each label begin (n_labels + 1,), and these in a row."""
        order = np.argsort(self.given, kind="stable").astype(np.int32)
        start = np.searchsorted(self.given[order], np.arange(len(order) + 1))
        return start, order

    def expand(self, labels: Ids) -> tuple[Ids, NDArray[np.int64]]:
        """Return all that became the labels (n, c), and the place in the row that each is part of.

        Both are (n, m), filled up with -1 and 0. What is no label any more has no parts.
        """
        start, order = self._sources
        safe = np.maximum(labels, 0)
        n_parts = np.where(labels >= 0, np.diff(start)[safe], 0)
        rows = n_parts.sum(axis=1)
        width = int(rows.max(initial=0))
        parts = np.full((len(labels), width), NO_LABEL, np.int32)
        places = np.zeros((len(labels), width), np.int64)
        flat = n_parts.ravel()
        first = np.repeat(np.cumsum(flat) - flat, flat)
        step = np.arange(flat.sum()) - first
        row = np.repeat(np.arange(len(labels)), rows)
        column = np.arange(len(row)) - np.repeat(np.cumsum(rows) - rows, rows)
        parts[row, column] = order[np.repeat(start[safe].ravel(), flat) + step]
        places[row, column] = np.repeat(np.tile(np.arange(labels.shape[1]), len(labels)), flat)
        return parts, places

    def score(self, labels: Ids, score: Callable[[Ids], Floats]) -> Floats:
        """Return the scores (n, c) of labels: those of all that became them, 1 at most."""
        parts, places = self.expand(labels)
        sums = np.zeros(labels.shape, np.float32)
        if parts.size:
            found = np.where(parts == NO_LABEL, 0, score(parts)).astype(np.float32)
            np.add.at(sums, (np.arange(len(labels))[:, None], places), found)
        return np.minimum(sums, np.float32(1))

    def edit(self, own: TopK, score: Score) -> TopK:
        """Return the labels of a model's own list as they are given now, best first."""
        if self.targets is None:
            return own
        labels = np.where(own.labels >= 0, self.given[own.labels], NO_LABEL).astype(np.int32)
        labels = np.where(_stand_first(labels), labels, NO_LABEL).astype(np.int32)
        scores = np.where(labels >= 0, own.scores, 0).astype(np.float32)
        start, _ = self._sources
        merged = (labels >= 0) & (np.diff(start)[np.maximum(labels, 0)] > 1)
        rows = np.flatnonzero(merged.any(axis=1))
        if len(rows):
            asked = np.where(merged[rows], labels[rows], NO_LABEL).astype(np.int32)
            sums = self.score(asked, lambda parts: score(rows, parts))
            scores[rows] = np.where(asked >= 0, sums, scores[rows])
        order = np.argsort(np.where(labels >= 0, -scores, 1), axis=1, kind="stable")
        return replace(
            own,
            labels=np.take_along_axis(labels, order, 1),
            scores=np.take_along_axis(scores, order, 1),
        )

    # -- changes ----------------------------------------------------------------------------

    def is_live(self, label: int) -> bool:
        """Whether a label is given under its own number."""
        return self.targets is None or int(self.targets[label]) == label

    def live(self, n_labels: int) -> NDArray[np.bool_]:
        """(n_labels,) which labels are given under their own numbers."""
        own = np.arange(n_labels)
        return np.ones(n_labels, np.bool_) if self.targets is None else self.targets == own

    def count(self, label_counts: NDArray[np.int64], n_documents: int) -> NDArray[np.int64]:
        """(n_labels,) how many training documents carry what became each label, at most."""
        if self.targets is None:
            return label_counts
        kept = self.given >= 0
        found = np.bincount(self.given[kept], label_counts[kept], minlength=len(self.given))
        return np.minimum(found, n_documents).astype(np.int64)

    def merge(self, labels: Sequence[int], target: int, n_labels: int) -> "LabelState":
        """Give labels, and what became them, as another from now on."""
        targets = self._start(n_labels)
        targets[np.isin(targets, labels)] = target
        return replace(self, targets=targets)

    def drop(self, labels: Sequence[int], n_labels: int) -> "LabelState":
        """Give labels, and what became them, no more."""
        targets = self._start(n_labels)
        targets[list(labels)] = DROPPED
        return replace(self, targets=targets)

    def _start(self, n_labels: int) -> Ids:
        """Return a copy of the targets."""
        return np.arange(n_labels, dtype=np.int32) if self.targets is None else self.targets.copy()

    def bring_back(self, label: int) -> "LabelState":
        """Give a label that was dropped again, with what had become it."""
        if self.targets is None:
            return self
        targets = self.targets.copy()
        targets[label] = label
        return replace(self, targets=targets)

    def rename(self, label: int, old: str) -> "LabelState":
        """Remember the name that a label had; names in languages are looked up anew."""
        return replace(self, old_names={**self.old_names, old: label})

    def widen(self, n_labels: int, concepts: Sequence[int] = ()) -> "LabelState":
        """Return the state with labels added at the end, which stand for `concepts` if for any.

        Names in languages are looked up anew, as labels may be called otherwise from now on.
        """
        state = replace(self)
        if self.concepts is not None and len(self.concepts) < n_labels:
            new = np.full(n_labels - len(self.concepts), NO_CONCEPT, np.int32)
            new[: len(concepts)] = concepts
            state = replace(state, concepts=np.concatenate([self.concepts, new]))
        if self.targets is not None and len(self.targets) < n_labels:
            more = np.arange(len(self.targets), n_labels, dtype=np.int32)
            state = replace(state, targets=np.concatenate([self.targets, more]))
        return state

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add what there is."""
        if self.vocabulary is not None and self.concepts is not None:
            self.vocabulary.add_to_files(files)
            files.arrays[CONCEPTS] = self.concepts
        if self.targets is not None:
            files.arrays[TARGETS] = self.targets
        if self.old_names:
            files.texts[OLD_NAMES] = list(self.old_names)
            files.arrays[RENAMED] = np.array(list(self.old_names.values()), np.int32)

    @classmethod
    def describe(cls, files: Files) -> Schema:
        """Return the schema of what `add_to_files` adds, as far as any of it is there."""
        found = Schema()
        if CONCEPTS in files.arrays:
            found |= Vocabulary.describe()
            found |= Schema(arrays={CONCEPTS: _numbers("concepts", "n_concepts")})
        if TARGETS in files.arrays:
            declared = {TARGETS: _numbers("labels", "n_labels")}
            found |= Schema(arrays=declared, rules=[_check_targets])
        if OLD_NAMES in files.texts:
            found |= Schema(
                arrays={RENAMED: indices("n_old_names", into="n_labels")},
                texts={OLD_NAMES: Texts("n_old_names", unique=True)},
            )
        return found

    @classmethod
    def from_files(cls, files: Files) -> "LabelState":
        """Take back what was saved."""
        renamed = files.arrays[RENAMED].tolist() if RENAMED in files.arrays else []
        return cls(
            Vocabulary.from_files(files),
            files.arrays.get(CONCEPTS),
            files.arrays.get(TARGETS),
            dict(zip(files.texts.get(OLD_NAMES, ()), renamed, strict=True)),
        )


def say_dropped(names: Sequence[str]) -> str:
    """Say that labels of documents are passed over, as they were dropped."""
    return (
        f"{list_labels(names)} of the documents passed over, "
        "as the model's labels of these names were dropped"
    )


def list_labels(names: Sequence[str]) -> str:
    """Return "3 labels ('a', 'b', 'c')", or the first of many."""
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN]) + ", …" * (len(names) > SHOWN)
    return f"{len(names):,} label{'s' * (len(names) > 1)} ({shown})"


def tell_apart(names: Sequence[str], uris: Sequence[str | None]) -> list[str]:
    """Return the names, those of several labels with the labels' URIs or numbers behind them."""
    count: dict[str, int] = {}
    for name in names:
        count[name] = count.get(name, 0) + 1
    return [
        name if count[name] == 1 else f"{name} <{uri or number}>"
        for number, (name, uri) in enumerate(zip(names, uris, strict=True))
    ]


def _stand_first(labels: Ids) -> NDArray[np.bool_]:
    """Return (n, k) which labels are no repetition of one before in their row."""
    n, k = labels.shape
    keys = np.arange(n, dtype=np.int64)[:, None] * (int(labels.max(initial=0)) + 2) + labels
    first = np.zeros(n * k, np.bool_)
    first[np.unique(keys.ravel(), return_index=True)[1]] = True
    return first.reshape(n, k)


def _numbers(what: str, most: str) -> Array:
    content = Content(
        f"numbers of {what}, or -1",
        lambda array, sizes: bool(array.min() >= -1 and array.max() < sizes[most]),
    )
    return Array((np.int32,), ("n_labels",), content)


def _check_targets(files: Files, sizes: Sizes) -> None:
    """Raise ValueError unless what labels became is given as itself or dropped, and any is left."""
    targets = files.arrays[TARGETS]
    named = np.unique(targets[targets >= 0])
    is_live = targets[named] == named
    if not is_live.any() or (targets[named[~is_live]] != DROPPED).any():
        raise ValueError(f"{TARGETS} must hold labels that are given as themselves")
