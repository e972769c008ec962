"""Restraint: how much lower new labels score, so that known ones keep their places.

Updates teach a new label what it is, and little of what it is not. So an update judges itself by
its own documents: a copy of the model takes in most of them and labels the others. Neither the
copy nor the model of before has seen those, so they are treated like any document. Some had a first
label that was right, and now a new label comes before it that they do not carry. The scores of new
labels are multiplied by what it takes to make that rare.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.schema import Schema, floats
from longtail.runtime.store import Files
from longtail.topk import TopK

ALLOWED = 0.0025  # share of the documents whose first label new ones may take by mistake
HARMLESS = 0.999  # factor, beyond which scores are left alone
LOWEST = 0.2  # factor: one odd document should not silence new labels
PARTS, TRIALS = 4, 2  # of the documents, and how many of them are labelled by a copy
JUDGED = 500  # documents of a part that are labelled
LEAST_JUDGED = 20  # fewer say nothing
DEPTH = 20  # labels of each that are looked at
LEAST = np.float32(1e-30)
SPARE = 16  # labels more to rank at first
FACTORS = "restraint"  # among the arrays of a model folder, if any label is held back

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Restraint:
    """What scores are multiplied by, from 0 to 1, for each label (n_labels,)."""

    factors: Floats

    def rank(self, rank: Callable[[int], TopK], k: int) -> TopK:
        """Return the `k` best labels; `rank` gives as many as it is asked for, all at most."""
        n_labels, depth = len(self.factors), k + SPARE
        while True:
            top = rank(min(depth, n_labels))
            found = self._order(top)
            # What is behind the list scores no more than its last label.
            is_sure = (found.scores[:, k - 1] >= top.scores[:, -1]) | (top.labels[:, -1] < 0)
            if depth >= n_labels or is_sure.all():
                return found.first(k)
            depth *= 4

    def _order(self, top: TopK) -> TopK:
        scores = self.weigh(top.labels, top.scores)
        order = np.argsort(-scores, axis=1, kind="stable")
        labels = np.take_along_axis(top.labels, order, axis=1)
        return TopK(labels, np.take_along_axis(scores, order, axis=1))

    def weigh(self, labels: Ids, scores: Floats) -> Floats:
        """Return what is left of the scores of labels (n, c); those of -1 stay."""
        return np.where(labels >= 0, scores * self.factors[labels], scores)

    def add_to_files(self, files: Files) -> None:
        """Add the factors to a model's files."""
        files.arrays[FACTORS] = self.factors

    @staticmethod
    def describe(files: Files) -> Schema:
        """Return the schema of the factors, where there are any."""
        has_any = FACTORS in files.arrays
        return Schema(arrays={FACTORS: floats("n_labels", least=0, most=1)} if has_any else {})

    @classmethod
    def from_files(cls, files: Files) -> "Restraint | None":
        """Take back the factors, where there are any."""
        return cls(files.arrays[FACTORS]) if FACTORS in files.arrays else None


def widen(restraint: Restraint | None, n_labels: int) -> Floats:
    """Return the factors of all labels; 1 for those that nothing is known of."""
    factors = np.ones(n_labels, np.float32)
    if restraint is not None:
        factors[: len(restraint.factors)] = restraint.factors
    return factors


def find_margins(before: TopK, after: TopK, Y: sp.csr_matrix, is_new: NDArray[np.bool_]) -> Floats:
    """Return what the scores of new labels must be multiplied by to leave a right label first.

    (n,) for each document; 1 if no new label comes before its first label, which was right.

    Args:
        before: the first label of each document before the update, with what is left of its score.
        after: the first labels of each after it.
        Y: (n, n_labels) what the documents carry.
        is_new: (n_labels,) which labels are new.
    """
    rows, first = np.arange(len(before)), before.labels[:, 0]
    is_right = (first >= 0) & (np.asarray(Y[rows, np.maximum(first, 0)]).ravel() > 0)
    given = np.maximum(after.labels, 0)
    cells = np.asarray(Y[np.repeat(rows, given.shape[1]), given.ravel()])
    carried = cells.reshape(given.shape) > 0
    is_wrong = (after.labels >= 0) & is_new[given] & ~carried & is_right[:, None]
    highest = np.where(is_wrong, after.scores, 0).max(axis=1)
    is_ahead = (highest > 0) & (highest >= before.scores[:, 0])
    margins = np.where(is_ahead, before.scores[:, 0] / np.maximum(highest, LEAST), 1)
    return margins.astype(np.float32)


def choose_factor(margins: Floats) -> float:
    """Return the factor with which as many documents as are allowed lose their first label."""
    n_allowed = max(1, round(ALLOWED * len(margins)))
    if n_allowed >= len(margins):
        return 1.0
    factor = np.nextafter(np.sort(margins)[n_allowed], np.float32(0))
    return 1.0 if factor > HARMLESS else max(LOWEST, float(factor))
