"""P@k, nDCG@k, PSP@k, PSnDCG@k, recall@k, F1@k and coverage@k.

For one document with true labels T, r_1, r_2, … its predicted labels, and g(r) = 1 if r is in T:

    P@k       = 1/k · Σ_{i≤k} g(r_i)                  always divided by k, even where |T| < k
    recall@k  = 1/|T| · Σ_{i≤k} g(r_i)
    DCG@k     = Σ_{i≤k} g(r_i) / log2(i + 1)
    nDCG@k    = DCG@k / Σ_{i≤min(k,|T|)} 1 / log2(i + 1)

Each is the mean over all documents; a document without labels scores 0 and counts. PSP@k and
PSnDCG@k put g(r) = 1/p_r, the inverse propensity, in place of 1, and divide the sum over all
documents by the same sum for the best possible ranking: T in order of falling 1/p. `propensity.py`
says what p is; `bands.py` has P@k and recall@k by the frequency of labels.

A missing prediction (`NO_LABEL`, or fewer than k columns) is a miss, so one column gives
P@5 = P@1 / 5. A label that stands twice in a row counts at its first place only. Where the data
set excludes pairs, those leave the ranking first and the labels below them move up. All values
are percentages.

Where G are the labels given to a document, whatever their order:

    precision = |G ∩ T| / |G|     recall = |G ∩ T| / |T|     F1 = 2·|G ∩ T| / (|G| + |T|)

once over all pairs (micro), once for each document and once for each label, of which the means are
taken (document, which others call example or samples; macro). What would be 0/0 is 0; macro counts
labels that were given or are true. F1-micro@k and the like give the first k labels; where a
threshold decides how many a document gets, the names have no @k. coverage@k is the share of the
labels in T of any document that are found among the first k labels at least once.

Predictions and documents are compared by the names of their labels where both have names, and by
their ids where one of them has none. Labels that the predictions do not know are missed.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.coerce import as_dataset
from longtail.data.dataset import Dataset
from longtail.data.frames import is_frame
from longtail.data.matrix import as_csr
from longtail.errors import DataError, ParameterError
from longtail.evaluation.propensity import inverse_propensity, propensity_constants
from longtail.evaluation.sums import GivenCounts, exact_sum, percent
from longtail.evaluation.unknown import find_unknown
from longtail.topk import NO_LABEL, TopK

KS = (1, 3, 5)
MEANS = ("micro", "macro", "document")
Cuts = Sequence[int]


@dataclass(frozen=True, eq=False)
class TrainingCounts:
    """All that the metrics need to know of a training split.

    Attributes:
        n_documents: the number of training documents.
        label_counts: for each label, how many of them carry it.
    """

    n_documents: int
    label_counts: NDArray[np.int64]

    @classmethod
    def of(cls, dataset: Dataset) -> "TrainingCounts":
        """Count the labels of `dataset`."""
        return cls(dataset.n_documents, dataset.count_labels())

    @cached_property
    def by_frequency(self) -> NDArray[np.int32]:
        """All labels, the most frequent first."""
        return np.argsort(-self.label_counts, kind="stable").astype(np.int32)

    def padded(self, n_labels: int) -> NDArray[np.int64]:
        """Return the counts of at least `n_labels` labels, 0 for those that training lacks."""
        missing = max(n_labels - len(self.label_counts), 0)
        return np.pad(self.label_counts, (0, missing))


class PerDocument(NamedTuple):
    """A metric document by document; over all of them it is 100 · Σ reached / Σ possible."""

    reached: NDArray[np.float64]
    possible: NDArray[np.float64]

    def percent(self) -> float:
        """Return the metric over all documents, 0 where nothing was possible."""
        return percent(exact_sum(self.reached), exact_sum(self.possible))


def evaluate(
    top: TopK,
    data: Any,
    labels: Any = None,
    *,
    text: str | Sequence[str] | None = None,
    train: Dataset | TrainingCounts | None = None,
    propensity: str = "default",
    k: int | Cuts = KS,
    threshold: float | None = None,
) -> dict[str, float]:
    """Compare predictions with the true labels; all metrics in percent.

    Args:
        top: the predictions, one row for each document of `data`.
        data: the documents, as `Model.fit` takes them, or only their labels Y.
        labels: the labels of documents that have none, or the name of a frame's column.
        text: the column of a frame that holds the text, where it is not known by its name.
        train: what the model was trained on; PSP and PSnDCG are given only with it.
        propensity: "default", "wikipedia" or "amazon", the constants A and B for such data.
        k: where rankings are cut, such as 10 or (1, 3, 5, 10).
        threshold: also give precision, recall and F1 of the labels of this score or more.

    Returns:
        "P@1", "P@3", "P@5", "nDCG@1", …, "F1-macro@5", "coverage@5" and "n_documents".

    Raises:
        DataError: the documents carry labels, and the predictions know none of their names.
    """
    cuts = check_cuts(k, top)
    if labels is not None or is_frame(data):
        data = as_dataset(data, labels, text=text)
    if (
        isinstance(data, Dataset)
        and top.label_names is not None
        and (unknown := find_unknown(data, top.label_names))
    ):
        warnings.warn(unknown, stacklevel=2)
    a, b = propensity_constants(propensity)
    aligned = Aligned.of(top, data, train, max(cuts))
    results = {name: each.percent() for name, each in aligned.per_document(cuts, a, b).items()}
    results |= aligned.by_label(cuts)
    if threshold is not None:
        results |= evaluate_given(top.above(threshold), aligned.Y)
    return results | {"n_documents": len(top)}


def evaluate_documents(
    top: TopK,
    data: Dataset | sp.csr_matrix,
    *,
    train: Dataset | TrainingCounts | None = None,
    propensity: str = "default",
    k: int | Cuts = KS,
) -> dict[str, PerDocument]:
    """Return those metrics of `evaluate` that have a value for every single document."""
    cuts = check_cuts(k, top)
    a, b = propensity_constants(propensity)
    return Aligned.of(top, data, train, max(cuts)).per_document(cuts, a, b)


class Aligned(NamedTuple):
    """Predictions and true labels with the same ids.

    Attributes:
        labels: (n, depth) the predicted labels, best first, none twice.
        found: (n, depth) which of them are true.
        Y: the true labels.
        counts: those of training; of no documents if they are not known.
    """

    labels: NDArray[np.int64]
    found: NDArray[np.bool_]
    Y: sp.csr_matrix
    counts: TrainingCounts

    @classmethod
    def of(
        cls,
        top: TopK,
        data: Dataset | sp.csr_matrix,
        train: Dataset | TrainingCounts | None,
        depth: int,
    ) -> "Aligned":
        """Give the true labels the ids of the predicted ones, by their names."""
        train = as_dataset(train) if isinstance(train, Dataset) else train
        names = top.label_names
        if names is None and isinstance(train, Dataset):
            names = train.label_names
        exclude = None
        if isinstance(data, Dataset):
            data = as_dataset(data)
            aligned = data if names is None else data.align(names)
            Y, exclude = aligned.Y, aligned.exclude
        else:
            Y = data
        Y = _canonical(Y)
        if len(top) != Y.shape[0]:
            raise DataError(
                f"{len(top)} predictions for {Y.shape[0]} documents; they must be as many"
            )
        if not len(top):
            raise DataError("there are no documents to evaluate")
        if exclude is not None:
            top = top.without(_canonical(exclude), top.k)
        if isinstance(train, Dataset):
            train = TrainingCounts.of(train if names is None else train.align(names))
        labels = _first_labels(top.labels.astype(np.int64), depth)
        counts = TrainingCounts(0, np.zeros(0, np.int64)) if train is None else train
        return cls(labels, _contains(Y, labels), Y, counts)

    def per_document(self, cuts: Cuts, a: float, b: float) -> dict[str, PerDocument]:
        """Return P, nDCG and recall, and with `counts` PSP and PSnDCG."""
        n_true = np.diff(self.Y.indptr)
        results = _plain_metrics(self.found, n_true, cuts)
        if self.counts.n_documents:
            inverse = inverse_propensity(
                self.counts.n_documents, self.counts.padded(self.Y.shape[1]), a, b
            )
            gains = np.where(self.found, inverse[np.where(self.found, self.labels, 0)], 0.0)
            best = _best_gains(self.Y, inverse, max(cuts))
            results |= _propensity_metrics(gains, best, n_true, cuts)
        return results

    def by_label(self, cuts: Cuts) -> dict[str, float]:
        """Return F1 and coverage of the first k labels."""
        return report_first(self.count_first(cuts))

    def count_first(
        self, cuts: Cuts, counted: Mapping[int, GivenCounts] | None = None
    ) -> Mapping[int, GivenCounts]:
        """Count the first k labels for each k, beside what was counted before."""
        counted = counted or {k: GivenCounts() for k in cuts}
        for k, counts in counted.items():
            _count_given(self.labels[:, :k], self.found[:, :k], self.Y, counts)
        return counted


def find_hits(top: TopK, Y: sp.csr_matrix) -> NDArray[np.bool_]:
    """Return (n, k) which of the predicted labels are true; those beyond Y's columns are not."""
    if len(top) != Y.shape[0]:
        raise DataError(f"{len(top)} predictions for {Y.shape[0]} documents; they must be as many")
    return _contains(_canonical(Y), top.labels.astype(np.int64))


def contains_pairs(
    Y: sp.csr_matrix, documents: NDArray[np.int64], labels: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which of the pairs of a document (row) and a label (column) stand in Y."""
    held = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr)) * Y.shape[1] + Y.indices
    found: NDArray[np.bool_] = np.isin(documents * Y.shape[1] + labels, held)
    return found


def evaluate_given(top: TopK, Y: sp.csr_matrix) -> dict[str, float]:
    """Return precision, recall and F1 of the labels given, whatever their order, in percent.

    Args:
        top: the predictions; `NO_LABEL` stands where none is given.
        Y: the true labels, one row for each document.

    Returns:
        "F1-micro", "F1-macro", "F1-document", and the same of precision and recall;
        "labels-per-document", how many were given.
    """
    if not len(top):
        raise DataError("there are no documents to evaluate")
    counts = GivenCounts()
    count_above(top, Y, counts)
    return report_given(counts)


def count_above(top: TopK, Y: sp.csr_matrix, counts: GivenCounts) -> None:
    """Count the labels given, whatever their order; `NO_LABEL` stands where none is."""
    _count_given(top.labels.astype(np.int64), find_hits(top, Y), _canonical(Y), counts)


def report_given(counts: GivenCounts) -> dict[str, float]:
    """Return what `evaluate_given` returns of labels that were counted."""
    return {"labels-per-document": counts.n_given / counts.n_documents} | counts.shares()


def _count_given(
    labels: NDArray[np.int64], hits: NDArray[np.bool_], Y: sp.csr_matrix, counts: GivenCounts
) -> None:
    counts.add(labels, hits, Y.indices, np.diff(Y.indptr))


def report_first(counted: Mapping[int, GivenCounts]) -> dict[str, float]:
    """Return F1 and coverage of the first k labels, for each k, in percent."""
    shares = {k: counts.shares() for k, counts in counted.items()}
    results = {f"F1-{mean}@{k}": shares[k][f"F1-{mean}"] for mean in MEANS for k in counted}
    for k, counts in counted.items():
        right, _, true = (int(np.count_nonzero(each)) for each in counts.by_label)
        results[f"coverage@{k}"] = percent(right, true)
    return results


def check_cuts(k: int | Cuts, top: TopK) -> Cuts:
    """Return where rankings are cut; raise ParameterError where the predictions end before."""
    given = list(k) if isinstance(k, Iterable) else [k]
    if not given or not all(
        isinstance(cut, int | np.integer) and cut is not True and cut >= 1 for cut in given
    ):
        raise ParameterError(
            "The 'k' parameter must be a whole number of at least 1, or several. "
            f"Got {k!r} instead."
        )
    cuts = sorted(set(given))
    enough = cuts[-1] <= max(top.k, *KS) or top.label_names is None
    if not enough and top.k < len(top.label_names or ()):
        raise ParameterError(
            f"the predictions hold {top.k} labels for each document, too few for metrics at "
            f"{cuts[-1]}; predict with k={cuts[-1]}"
        )
    return cuts


def _canonical(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the matrix with sorted, unique indices and no stored zeros, copied if need be."""
    matrix = as_csr(matrix, "Y")
    if not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def _first_labels(labels: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Cut or fill to `depth` columns, without repetitions."""
    labels = labels[:, :depth]
    first = np.pad(labels, ((0, 0), (0, depth - labels.shape[1])), constant_values=NO_LABEL)
    for column in range(1, depth):
        again = (first[:, :column] == first[:, column, None]).any(axis=1)
        first[again, column] = NO_LABEL
    return first


def _contains(matrix: sp.csr_matrix, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each cell of `labels` (n, k) whether row i of `matrix` holds that label."""
    n_rows, n_labels = matrix.shape
    if not matrix.nnz:
        return np.zeros(labels.shape, dtype=np.bool_)
    # One key for each (row, label): rising, since rows are in order and sorted within.
    held = _rows(matrix) * n_labels + matrix.indices
    asked = np.arange(n_rows, dtype=np.int64)[:, None] * n_labels + labels
    place = np.minimum(np.searchsorted(held, asked), len(held) - 1)
    # An id outside the matrix would be the key of another row.
    inside = (labels >= 0) & (labels < n_labels)
    result: NDArray[np.bool_] = (held[place] == asked) & inside
    return result


def _rows(matrix: sp.csr_matrix) -> NDArray[np.int64]:
    return np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))


def _plain_metrics(
    found: NDArray[np.bool_], n_true: NDArray[np.integer], cuts: Cuts
) -> dict[str, PerDocument]:
    hits = {k: found[:, :k].sum(axis=1).astype(np.float64) for k in cuts}
    one = np.ones(len(found))
    results = {f"P@{k}": PerDocument(hits[k], k * one) for k in cuts}
    results |= {f"nDCG@{k}": PerDocument(_ndcg(found, n_true, k), one) for k in cuts}
    true = np.maximum(n_true, 1)
    return results | {f"recall@{k}": PerDocument(hits[k] / true, one) for k in cuts}


def _propensity_metrics(
    gains: NDArray[np.float64], best: NDArray[np.float64], n_true: NDArray[np.integer], cuts: Cuts
) -> dict[str, PerDocument]:
    results = {
        f"PSP@{k}": PerDocument(gains[:, :k].sum(axis=1), best[:, :k].sum(axis=1)) for k in cuts
    }
    for k in cuts:
        reached, possible = _ndcg(gains, n_true, k), _ndcg(best, n_true, k)
        results[f"PSnDCG@{k}"] = PerDocument(reached, possible)
    return results


def _ndcg(gains: NDArray[Any], n_true: NDArray[np.integer], k: int) -> NDArray[np.float64]:
    """Return DCG@k / Σ_{i≤min(k,|T|)} 1/log2(i + 1) of each document."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)[np.clip(n_true, 1, k) - 1]
    total = np.zeros(len(gains))
    for place in range(k):  # one after the other: BLAS rounds by how many documents there are
        total += gains[:, place] * discount[place]
    each: NDArray[np.float64] = total / ideal
    return each


def _best_gains(Y: sp.csr_matrix, inverse: NDArray[np.float64], depth: int) -> NDArray[np.float64]:
    """Return (n, depth) the largest inverse propensities of each document's labels, falling."""
    gains, rows = inverse[Y.indices], _rows(Y)
    gains = gains[np.lexsort((-gains, rows))]
    rank = np.arange(len(gains)) - Y.indptr[rows]
    kept = rank < depth
    best = np.zeros((Y.shape[0], depth))
    best[rows[kept], rank[kept]] = gains[kept]
    return best
