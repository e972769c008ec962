"""Restraint: how much lower new labels score, so that known ones keep their places.

Updates teach a new label what it is, and little of what it is not. So an update judges itself by
its own documents: a copy of the model takes in most of them and labels the others. Neither the
copy nor the model of before has seen those, so they are treated like any document. What known
labels gain or lose there is counted, and what new labels take from them: the first place of a
document, or one of its first five, with a label that it does not carry. The scores of new labels
are multiplied by what it takes to make that rare. Training on that costs known labels is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.schema import Schema, floats
from longtail.runtime.store import Files
from longtail.topk import TopK

ALLOWED = 0.003  # share of the documents whose first label new ones may take by mistake
ALLOWED_BEHIND = 0.01  # of the first five places
PLACES = 5
LOWEST = 0.2  # factor: one odd document should not silence new labels
FACTORS_TRIED = 0.99 ** np.arange(161)  # down to the lowest
PARTS = 4  # of the documents; each is labelled by a copy that has taken in the others
JUDGED = 1000  # documents that are enough to judge by, so that the copies of large updates are few
LEAST_JUDGED = 20  # fewer say nothing
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


def choose_judges(Y: sp.csr_matrix, new: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the documents to judge by: without new labels, or all if there are too few of them."""
    is_free = np.asarray(Y[:, new].sum(axis=1)).ravel() == 0
    free = np.flatnonzero(is_free & (np.diff(Y.indptr) > 0))
    return free if len(free) >= LEAST_JUDGED else np.arange(Y.shape[0])


@dataclass(frozen=True, eq=False)
class Judgement:
    """What an update does to documents that it has not seen; of new labels, those not carried.

    Attributes:
        before: (n, p) whether the first labels of before are right.
        known: (n, p) whether the first known labels of after are right.
        scores: (n, p) the scores of the latter.
        rivals: (n, 5) the highest scores of new labels that the document does not carry; or -1.
    """

    before: NDArray[np.bool_]
    known: NDArray[np.bool_]
    scores: Floats
    rivals: Floats

    @classmethod
    def of(
        cls,
        before: TopK,
        known: TopK,
        after: TopK,
        Y: sp.csr_matrix,
        is_new: NDArray[np.bool_],
    ) -> "Judgement":
        """Judge the first labels of before, of known labels alone, and of all labels.

        Args:
            before: of the model before the update.
            known: of the updated copy; new labels are among them only where others are few.
            after: of the updated copy, new labels among them.
            Y: (n, n_labels) what the documents carry.
            is_new: (n_labels,) which labels are new.
        """
        is_right = _are_carried(known, Y) & ~is_new[known.labels]
        is_rival = (after.labels >= 0) & is_new[after.labels] & ~_are_carried(after, Y)
        rivals = np.full((len(after), PLACES), -1, np.float32)
        highest = -np.sort(-np.where(is_rival, after.scores, -1), axis=1)[:, :PLACES]
        rivals[:, : highest.shape[1]] = highest
        return cls(_are_carried(before, Y), is_right, known.scores, rivals)

    @classmethod
    def join(cls, parts: "Sequence[Judgement]") -> "Judgement":
        """Return the judgement of all documents."""
        names = (each.name for each in fields(cls))
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))

    def hits(self, factor: float) -> NDArray[np.bool_]:
        """Return (n, p) which known labels are right and keep a place among the first p."""
        rivals = self.rivals * np.float32(factor)
        n_ahead = (rivals[:, None, :] >= self.scores[:, :, None]).sum(axis=2)
        n_places = self.known.shape[1]
        found: NDArray[np.bool_] = self.known & (np.arange(n_places) + n_ahead < n_places)
        found[:, 0] = self.known[:, 0] & (n_ahead[:, 0] == 0)
        return found

    @property
    def lost(self) -> float:
        """Share of the documents whose first label is no longer right, as known labels moved."""
        return float(self.before[:, 0].mean() - self.known[:, 0].mean())

    def choose_factor(self) -> float:
        """Return the largest factor with which known labels lose few places to new ones.

        The largest factor that costs r - 1 of n judged documents costs others r of n on average,
        as it is chosen by them. What known labels gain for sure, new labels may take.
        """
        n, all_hits = len(self.before), self.hits(0)
        first = max(1, round(ALLOWED * n)) - 1 + _sure_gain(self.before[:, :1], all_hits[:, :1])
        behind = ALLOWED_BEHIND * all_hits.size + _sure_gain(self.before, all_hits)
        for factor in FACTORS_TRIED:
            taken = all_hits & ~self.hits(factor)
            if taken[:, 0].sum() <= first and taken.sum() <= behind:
                return float(factor)
        return LOWEST


def _are_carried(top: TopK, Y: sp.csr_matrix) -> NDArray[np.bool_]:
    """Return (n, k) which labels the documents carry; where there is none, it is not."""
    rows = np.repeat(np.arange(len(top)), top.k)
    cells = np.asarray(Y[rows, np.maximum(top.labels, 0).ravel()])
    return (cells.reshape(top.labels.shape) > 0) & (top.labels >= 0)


def _sure_gain(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> float:
    """Return how many right labels more there are, less a standard error; 0 if not for sure."""
    gains = after.sum(axis=1) - before.sum(axis=1).astype(np.int64)
    return max(0.0, float(gains.sum() - np.sqrt((gains**2).sum())))
