"""Metrics for labels that stand above one another: a label near a true one counts in part.

For one document with true labels T, let d(r, t) be how many steps r is above t in the hierarchy,
0 if it is t itself. Then, with G the first k labels of the document,

    hP@k       = 1/k · Σ_{r ∈ G} max_{t ∈ T} 2^-d(r, t)
    hrecall@k  = 1/|T| · Σ_{t ∈ T} max_{r ∈ G} 2^-d(r, t)

so that a parent of a true label counts as half of it, a parent of that as a quarter. Only what is
above a true label counts, up to STEPS steps: what is below or beside it says what is not true. Each
is the mean over all documents, in percent; those without labels score 0 and count.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.evaluation.sums import ExactSum
from longtail.topk import NO_LABEL, TopK

STEPS = 3  # above a true label


def link_above(
    pairs: NDArray[np.integer], concepts: NDArray[np.integer], n_concepts: int
) -> list[sp.csr_matrix]:
    """Return for 1, 2, … steps which labels stand so far above which.

    Args:
        pairs: (m, 2) a concept and one that is broader.
        concepts: (n_labels,) the concept of each label; below 0 it has none.
        n_concepts: how many concepts there are; those that are no labels count as steps.

    Returns:
        STEPS matrices (n_labels, n_labels), 1 where the label of the column is above that of the
        row.
    """
    ones = np.ones(len(pairs), np.float32)
    up = sp.csr_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=(n_concepts, n_concepts))
    labels = np.flatnonzero(concepts >= 0)
    shape = (len(concepts), n_concepts)
    stands_for = sp.csr_matrix(
        (np.ones(len(labels), np.float32), (labels, concepts[labels])), shape
    )
    found, reached = [], stands_for
    for _ in range(STEPS):
        reached = _mark(reached @ up)
        found.append(_mark(reached @ stands_for.T))
    return found


class AboveCounts:
    """Counts hP@k and hrecall@k of predictions that come block by block."""

    def __init__(self, above: Sequence[sp.csr_matrix], k: Sequence[int]) -> None:
        """Begin without documents; `above` is what `link_above` returns for the labels."""
        self.above, self.n_documents = above, 0
        self._gains = dict.fromkeys(k, 0.0)
        self._recall = {cut: ExactSum() for cut in k}

    def add(self, top: TopK, Y: sp.csr_matrix) -> None:
        """Count documents; further labels of Y are in no hierarchy."""
        n, n_labels = len(top), self.above[0].shape[0]
        if n != Y.shape[0]:
            raise DataError(f"{n} predictions for {Y.shape[0]} documents; they must be as many")
        self.n_documents += n
        true = sp.csr_matrix(Y[:, :n_labels])
        n_true = np.maximum(np.diff(Y.indptr), 1)
        for cut in self._gains:
            given = _as_matrix(top.first(cut).labels, n_labels)
            gains, covered = given.multiply(true).tocsr(), true.multiply(given).tocsr()
            for step, links in enumerate(self.above, 1):
                part = np.float32(0.5**step)
                gains = gains.maximum(part * given.multiply(_mark(true @ links)))
                covered = covered.maximum(part * true.multiply(_mark(given @ links.T)))
            self._gains[cut] += float(gains.data.sum(dtype=np.float64))  # eighths: exact
            by_document = np.asarray(covered.sum(axis=1), np.float64).ravel()
            self._recall[cut].add(by_document / n_true)

    def report(self) -> dict[str, float]:
        """Return both metrics at each k, in percent."""
        results, n = {}, self.n_documents
        for cut, gains in self._gains.items():
            results[f"hP@{cut}"] = 100 * gains / (cut * n)
            results[f"hrecall@{cut}"] = 100 * self._recall[cut].value / n
        return results


def _as_matrix(labels: NDArray[np.int32], n_labels: int) -> sp.csr_matrix:
    """Return (n, n_labels) 1 for each label that is given."""
    rows, columns = np.nonzero((labels != NO_LABEL) & (labels < n_labels))
    ones = np.ones(len(rows), np.float32)
    return _mark(sp.csr_matrix((ones, (rows, labels[rows, columns])), (len(labels), n_labels)))


def _mark(matrix: Any) -> sp.csr_matrix:
    """Return a matrix with 1 in place of all that is not 0."""
    marked: sp.csr_matrix = sp.csr_matrix(matrix)
    marked.sum_duplicates()
    marked.data[:] = 1
    return marked
