"""Trade-off: the precision and recall to expect at each threshold and number of labels.

Both are counted on documents that had no part in the probabilities: the fewer labels are given, the
more of them are right, and the more are missed. What is kept are whole numbers, one for each place
in a document's list and each threshold, so that any k can be asked for afterwards.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.metrics import find_hits
from longtail.runtime.schema import LARGEST_SIZE, Sizes, indices
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

STEPS = 100
THRESHOLDS = np.arange(STEPS) / STEPS  # 0.00 to 0.99
NAME = "calibration.tradeoff"
N_TRUE = "n_true"

Counts = NDArray[np.int32]


class Expected(NamedTuple):
    """What to expect of the labels that reach a threshold, of 0 to 1 but for `labels`.

    Attributes:
        threshold: the least probability.
        precision: how many of the labels given are right; None where none is given.
        recall: how many of the right labels are given.
        f1: the harmonic mean of both; 0 where none is given.
        labels: how many a document is given.
    """

    threshold: float
    precision: float | None
    recall: float
    f1: float
    labels: float


class Tradeoff(NamedTuple):
    """How many labels reach each threshold at each place, and how many of them are right.

    Attributes:
        given: (depth, STEPS) labels given at this place of the lists, best first.
        right: (depth, STEPS) those of them that are right.
        n_true: the right labels of all documents.
        n_documents: how many documents were looked at.
    """

    given: Counts
    right: Counts
    n_true: int
    n_documents: int

    @classmethod
    def of(cls, top: TopK, Y: sp.csr_matrix) -> "Tradeoff":
        """Count on predictions with probabilities, and the true labels."""
        hits, known = find_hits(top, Y), top.labels != NO_LABEL
        # The last threshold that a label reaches; compared as the labels are, in single precision.
        last = np.searchsorted(THRESHOLDS.astype(np.float32), top.scores, side="right") - 1
        given = [_reach(last[:, i][known[:, i]]) for i in range(top.k)]
        right = [_reach(last[:, i][hits[:, i]]) for i in range(top.k)]
        return cls(np.stack(given), np.stack(right), int(Y.nnz), len(top))

    def expect(self, k: int | None = None) -> list[Expected]:
        """Return what to expect at each threshold if a document gets k labels at most."""
        given = self.given[:k].sum(axis=0, dtype=np.int64).tolist()
        right = self.right[:k].sum(axis=0, dtype=np.int64).tolist()
        return [
            Expected(
                threshold,
                precision=n_right / n if n else None,
                recall=n_right / max(self.n_true, 1),
                f1=2 * n_right / max(n + self.n_true, 1),
                labels=n / self.n_documents,
            )
            for threshold, n, n_right in zip(THRESHOLDS.tolist(), given, right, strict=True)
        ]

    # -- files ----------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add it to the files of a model, beside its calibration."""
        files.config["calibration"][N_TRUE] = self.n_true
        files.arrays[NAME] = np.stack([self.given, self.right])

    @classmethod
    def from_files(cls, files: Files) -> "Tradeoff | None":
        """Take back what `add_to_files` wrote; None if the model was saved before there was any."""
        held = files.config["calibration"]
        if NAME not in files.arrays:
            return None
        given, right = files.arrays[NAME]
        return cls(given, right, held.get(N_TRUE, 0), held["n_documents"])


ARRAY = indices(2, f"{NAME}.depth", STEPS, into=LARGEST_SIZE)._replace(optional=True)


def check_tradeoff(files: Files, sizes: Sizes) -> None:
    """Raise ValueError for more right labels than there are, or are given."""
    if NAME not in files.arrays:
        return
    given, right = files.arrays[NAME]
    n_true = files.config["calibration"].get(N_TRUE, 0)
    if (right > given).any() or (right.sum(axis=0, dtype=np.int64) > n_true).any():
        raise ValueError(f"{NAME} must not have more right labels than there are")


def _reach(last: NDArray[np.int64]) -> Counts:
    """Return (STEPS,) how many labels reach each threshold, by the last that each reaches."""
    each = np.bincount(last, minlength=STEPS)
    return np.cumsum(each[::-1])[::-1].astype(np.int32)
