"""What a data set holds, and what in it may surprise: the numbers behind `longtail data info`.

Frequency bands (one rule, used here and by the metrics). Sort the labels by how many training
documents carry them. The *head* is the most frequent labels that together hold half of all
training pairs (a pair is one label on one document), the *torso* the next ones up to 80 % of the
pairs, the *tail* all others that occur in training, and *unseen* the labels that do not. Labels
of equal frequency are never torn apart: the one that crosses a border takes its equals along.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from types import UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.runtime.mapped import count_values

BAND_NAMES = ("head", "torso", "tail", "unseen")
HEAD, TORSO, TAIL, UNSEEN = range(4)
_BORDERS = (50, 80)  # percent of the training pairs where the head and the torso end
_BLOCK = 1 << 20  # non-zero features hashed at a time


@dataclass(frozen=True)
class LabelBand:
    """The labels of one frequency band; `share` is their percentage of the training pairs."""

    name: str
    n_labels: int
    min_documents: int
    max_documents: int
    share: float


@dataclass(frozen=True)
class Spread:
    """Mean, median and maximum of a count."""

    mean: float
    median: float
    max: int

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> "Spread":
        """Summarize `counts`; all zero when there are none."""
        if not len(counts):
            return cls(0.0, 0.0, 0)
        return cls(float(counts.mean()), float(np.median(counts)), int(counts.max()))


@dataclass(frozen=True)
class SplitDescription:
    """One split of a data set, training or test.

    Attributes:
        n_documents: the number of documents.
        n_pairs: the number of labels on all documents together.
        n_labels_used: the labels that at least one document carries.
        labels_per_document: over all documents.
        documents_per_label: over the labels that are used.
        n_empty: documents whose text is blank, or whose row has no features.
        n_without_labels: documents without labels.
        n_duplicates: documents that equal an earlier one in text or row; empty ones not counted.
        n_repeated_ids: documents whose id an earlier one has; those without an id not counted.
    """

    n_documents: int
    n_pairs: int
    n_labels_used: int
    labels_per_document: Spread
    documents_per_label: Spread
    n_empty: int
    n_without_labels: int
    n_duplicates: int
    n_repeated_ids: int


@dataclass(frozen=True)
class Description:
    """A data set in numbers, with what seems wrong with it in plain sentences.

    Attributes:
        document_type: "texts" or "features".
        n_labels: all labels of both splits, with those that no document carries.
        n_features: the number of columns, or None for texts.
        train: the training split.
        test: the test split, or None.
        bands: head, torso and tail of the training labels.
        n_unseen_labels: labels that test documents carry and no training document does.
        n_unseen_pairs: how often test documents carry such labels.
        n_in_both: test documents that also stand in the training split.
        problems: one sentence for each thing that may surprise.
    """

    document_type: str
    n_labels: int
    n_features: int | None
    train: SplitDescription
    test: SplitDescription | None
    bands: list[LabelBand]
    n_unseen_labels: int
    n_unseen_pairs: int
    n_in_both: int
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain lists, dictionaries and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, held: Any) -> "Description":
        """Take back what `as_dict` gave, which may be a stranger's; ValueError if it is not so."""
        found: Description = _rebuild(cls, held)
        # The sentences follow from the numbers.
        return replace(found, problems=_find_problems(found))


def _rebuild(kind: Any, held: Any) -> Any:
    """Return `held` as the dataclass, list or plain value that `kind` says."""
    if isinstance(kind, UnionType):
        return None if held is None else _rebuild(get_args(kind)[0], held)
    if get_origin(kind) is list:
        return [_rebuild(get_args(kind)[0], each) for each in _must(held, list)]
    if is_dataclass(kind):
        fields = _must(held, dict)
        kinds = get_type_hints(kind)
        if set(fields) != set(kinds):
            raise ValueError("other fields")
        return cast(Any, kind)(**{name: _rebuild(kinds[name], fields[name]) for name in kinds})
    if kind is float and type(held) is int:
        held = float(held)
    if not isinstance(_must(held, kind), str) and not 0 <= held < 2**63:
        raise ValueError(f"the number {held!r:.20}")
    return held


def _must(held: Any, kind: type) -> Any:
    if type(held) is not kind:
        raise ValueError(f"{held!r:.20} for {kind.__name__}")
    return held


def describe(splits: tuple[Dataset, Dataset | None]) -> Description:
    """Count what `(train, test)` hold and look for what may surprise."""
    train, test = splits
    test = None if test is None else test.align(train.label_names)
    train_hashes = _hash_documents(train)
    test_hashes = None if test is None else _hash_documents(test)
    labels, label_counts = _count_used(train)
    unseen = _unseen_pairs(labels, test)
    draft = Description(
        document_type="features" if train.texts is None else "texts",
        n_labels=train.n_labels if test is None else max(train.n_labels, test.n_labels),
        n_features=None if train.X is None else int(train.X.shape[1]),
        train=_describe_split(train, train_hashes),
        test=None if test is None or test_hashes is None else _describe_split(test, test_hashes),
        bands=_label_bands(label_counts),
        n_unseen_labels=len(unseen),
        n_unseen_pairs=int(unseen.sum()),
        n_in_both=0 if test_hashes is None else _count_shared(train_hashes, test_hashes),
        problems=[],
    )
    draft.problems.extend(_find_problems(draft))
    return draft


def assign_bands(label_counts: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the frequency band of each label: HEAD, TORSO, TAIL or UNSEEN."""
    band = np.full(len(label_counts), UNSEEN, dtype=np.int8)
    total = int(label_counts.sum())
    if total == 0:
        return band
    band[label_counts > 0] = TAIL
    falling = np.sort(label_counts)[::-1]
    held = np.cumsum(falling) * 100
    for name, border in ((TORSO, _BORDERS[1]), (HEAD, _BORDERS[0])):
        least = falling[np.searchsorted(held, border * total)]
        band[label_counts >= least] = name
    return band


def _label_bands(label_counts: NDArray[np.int64]) -> list[LabelBand]:
    band = assign_bands(label_counts)
    total = max(int(label_counts.sum()), 1)
    rows = []
    for i, name in enumerate(BAND_NAMES[:UNSEEN]):
        counts = label_counts[band == i]
        least, most = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
        rows.append(LabelBand(name, len(counts), least, most, 100 * int(counts.sum()) / total))
    return rows


def _count_used(data: Dataset) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the labels that documents carry, and how many carry each.

    A header may declare millions of labels of which few occur: only these take memory.
    """
    if data.n_labels > len(data.Y.indices):
        labels, counts = np.unique(data.Y.indices, return_counts=True)
        return labels, counts.astype(np.int64)
    counts = count_values(data.Y.indices, data.n_labels)
    return np.flatnonzero(counts), counts[counts > 0]


def _unseen_pairs(trained: NDArray[Any], test: Dataset | None) -> NDArray[np.int64]:
    """Return the test frequency of each label that test documents carry and training lacks."""
    if test is None:
        return np.zeros(0, dtype=np.int64)
    labels, counts = _count_used(test)
    return counts[~np.isin(labels, trained)]


def _describe_split(data: Dataset, hashes: NDArray[np.uint64]) -> SplitDescription:
    labels_per_document = np.diff(data.Y.indptr).astype(np.int64)
    _, label_counts = _count_used(data)
    filled = hashes[hashes != 0]
    return SplitDescription(
        n_documents=data.n_documents,
        n_pairs=int(data.Y.nnz),
        n_labels_used=len(label_counts),
        labels_per_document=Spread.of(labels_per_document),
        documents_per_label=Spread.of(label_counts),
        n_empty=len(hashes) - len(filled),
        n_without_labels=int(np.count_nonzero(labels_per_document == 0)),
        n_duplicates=len(filled) - len(np.unique(filled)),
        n_repeated_ids=_count_repeated(data.ids or ()),
    )


def _count_repeated(ids: Sequence[str]) -> int:
    # Hashes, as there may be more ids than memory holds as strings.
    known = np.fromiter((hash(id) for id in ids if id), np.int64)
    return len(known) - len(np.unique(known))


def _count_shared(train: NDArray[np.uint64], test: NDArray[np.uint64]) -> int:
    return int(np.count_nonzero(np.isin(test[test != 0], train)))


def _hash_documents(data: Dataset) -> NDArray[np.uint64]:
    """Return 64 bits for each document, equal for equal documents and 0 for empty ones."""
    if data.X is not None:
        return _hash_rows(data.X)
    return np.fromiter(_hash_texts(data.texts or ()), dtype=np.uint64, count=data.n_documents)


def _hash_texts(texts: Sequence[str]) -> Iterator[int]:
    for text in texts:
        stripped = text.strip()
        # Setting the lowest bit keeps 0 free for blank texts and costs one bit of 64.
        yield hash(stripped) & 0xFFFFFFFFFFFFFFFF | 1 if stripped else 0


def _hash_rows(X: sp.csr_matrix) -> NDArray[np.uint64]:
    """Sum the scrambled (column, value) cells of each row, some million cells at a time."""
    hashes = np.zeros(X.shape[0], dtype=np.uint64)
    filled = np.flatnonzero(np.diff(X.indptr))
    starts, ends = X.indptr[filled].astype(np.int64), X.indptr[filled + 1].astype(np.int64)
    first = 0
    while first < len(filled):
        last = max(int(np.searchsorted(ends, starts[first] + _BLOCK, side="right")), first + 1)
        block = slice(int(starts[first]), int(ends[last - 1]))
        cells = _scramble(X.indices[block], X.data[block])
        sums = np.add.reduceat(cells, starts[first:last] - starts[first])
        hashes[filled[first:last]] = sums | np.uint64(1)
        first = last
    return hashes


def _scramble(columns: NDArray[Any], values: NDArray[Any]) -> NDArray[np.uint64]:
    """Spread each (column, value) over 64 bits so that sums of different rows differ."""
    # Adding 0 turns -0.0 into 0.0: the two are equal yet differ in their bits.
    bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)
    cells = (columns.astype(np.uint64) << np.uint64(32)) | bits
    # Multiplying by odd constants and folding the high bits down is a bijection on 64 bits.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        cells += np.uint64(0x9E3779B97F4A7C15)
        cells ^= cells >> np.uint64(shift)
        cells *= np.uint64(factor)
    return cells ^ (cells >> np.uint64(31))


def _find_problems(found: Description) -> list[str]:
    """Return a sentence for everything that may surprise, the training split first."""
    problems = _split_problems(found.train, "training", found.document_type)
    if found.test is not None:
        problems += _split_problems(found.test, "test", found.document_type)
        problems += _overlap_problems(found, found.test)
    unused = found.n_labels - found.train.n_labels_used - found.n_unseen_labels
    if unused > 0:
        problems.append(f"{_count(unused, 'label is', 'labels are')} on no document at all.")
    return problems


def _split_problems(split: SplitDescription, name: str, document_type: str) -> list[str]:
    if not split.n_documents:
        return [f"The {name} split holds no documents."]
    problems = []
    if split.n_empty:
        lacks = "no text" if document_type == "texts" else "no features"
        who = _share(split.n_empty, split.n_documents, name, "has", "have")
        problems.append(f"{who} {lacks}: such documents can only get the most frequent labels.")
    if split.n_without_labels:
        who = _share(split.n_without_labels, split.n_documents, name, "has", "have")
        effect = "teach nothing" if name == "training" else "score 0 in every metric"
        problems.append(f"{who} no labels: such documents {effect}.")
    if split.n_duplicates:
        who = _share(split.n_duplicates, split.n_documents, name, "repeats", "repeat")
        problems.append(f"{who} an earlier one.")
    if split.n_repeated_ids:
        who = _share(split.n_repeated_ids, split.n_documents, name, "has", "have")
        problems.append(f"{who} an id that stands there already.")
    return problems


def _overlap_problems(found: Description, test: SplitDescription) -> list[str]:
    problems = []
    if found.n_in_both:
        who = _share(found.n_in_both, test.n_documents, "test", "stands", "stand")
        problems.append(f"{who} in the training split as well: results will look too good.")
    if found.n_unseen_labels:
        who = _count(found.n_unseen_labels, "test label is", "test labels are")
        share = 100 * found.n_unseen_pairs / test.n_pairs
        problems.append(
            f"{who} never seen in training ({share:.1f} % of the test pairs): "
            "no model can predict them."
        )
    return problems


def _count(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"


def _share(n: int, total: int, split: str, one: str, many: str) -> str:
    noun, verb = ("document", one) if n == 1 else ("documents", many)
    return f"{n:,} {split} {noun} ({100 * n / total:.1f} %) {verb}"
