"""Restraint: how much lower new labels score, so that known ones keep their places.

Updates teach a new label what it is, and little of what it is not. So an update judges itself by
its own documents, which the model of before had not seen: what it gave them is what it gives to any
others. A label that comes before the first one of such a document, which was right, and that the
document does not carry, takes a place that is not its own. The scores of each new label are
multiplied by what it takes to make that rare.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.schema import Schema, floats
from longtail.runtime.store import Files
from longtail.topk import TopK

ALLOWED = 0.0025  # share of all documents whose first label new ones may take by mistake
COMMON, POWER = True, 1.0
JUDGED = 1000  # documents by which an update is judged
DEPTH = 20  # labels of each that are looked at
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
        labels, scores = (np.take_along_axis(each, order, axis=1) for each in (top.labels, scores))
        return TopK(labels, scores)

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


def choose_factors(
    before: TopK, after: TopK, Y: sp.csr_matrix, new: NDArray[np.int64]
) -> dict[int, float]:
    """Return what the scores of new labels are multiplied by, for those that must be held back.

    Args:
        before: the first label of each document before the update, with what is left of its score.
        after: the first labels of each after it.
        Y: what the documents carry.
        new: the labels that are new; rising.
    """
    labels, margins = _find_mistakes(before, after, Y, new)
    order, most = np.argsort(margins, kind="stable"), int(ALLOWED * Y.shape[0])
    if COMMON:
        f = float(margins[order[most]]) if len(order) > most else 1.0
        return dict.fromkeys(new.tolist(), f**POWER)
    factors: dict[int, float] = {}
    for mistake in order[most:].tolist():  # those before them would cost the most
        factors.setdefault(int(labels[mistake]), float(margins[mistake]) ** POWER)
    return factors


def _find_mistakes(
    before: TopK, after: TopK, Y: sp.csr_matrix, new: NDArray[np.int64]
) -> tuple[Ids, Floats]:
    """Return the new labels that take the first place of documents which do not carry them.

    The second are what the label's score has to be multiplied by to leave that place.
    """
    rows = np.arange(len(before))
    first = before.labels[:, 0]
    is_right = (first >= 0) & (np.asarray(Y[rows, np.maximum(first, 0)]).ravel() > 0)
    is_new = np.zeros(Y.shape[1], bool)
    is_new[new] = True
    known = np.maximum(after.labels, 0)
    carried = np.asarray(Y[rows[:, None], known].todense()) > 0
    ahead = after.scores >= before.scores[:, :1]
    wrong = (after.labels >= 0) & is_new[known] & ~carried & ahead & is_right[:, None]
    documents, places = np.nonzero(wrong)
    scores = after.scores[documents, places]
    margins = before.scores[documents, 0] / np.maximum(scores, np.float32(1e-30))
    return after.labels[documents, places], np.nextafter(margins, np.float32(0))
