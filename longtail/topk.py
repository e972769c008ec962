"""The one type of every prediction: for each document its best labels, best first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import scipy.sparse as sp

NO_LABEL = -1


@dataclass(frozen=True, eq=False)
class TopK:
    """The k best labels of n documents.

    Attributes:
        labels: (n, k) label ids, best first; `NO_LABEL` fills rows that have fewer than k.
        scores: (n, k) scores between 0 and 1, falling along each row; 0 where there is no label.
    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float32]

    @classmethod
    def concatenate(cls, tops: Sequence["TopK"]) -> "TopK":
        """Return the predictions of several groups of documents, one group after the other."""
        if len(tops) == 1:  # one document is answered without a copy
            return tops[0]
        return cls(
            np.concatenate([top.labels for top in tops]),
            np.concatenate([top.scores for top in tops]),
        )

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.labels)

    @property
    def k(self) -> int:
        """The number of labels kept for each document."""
        return int(self.labels.shape[1])

    def first(self, k: int) -> "TopK":
        """Return the same prediction cut to its `k` best labels."""
        return TopK(self.labels[:, :k], self.scores[:, :k])

    def above(self, threshold: float) -> "TopK":
        """Return the same prediction without the labels whose score is below `threshold`."""
        kept = self.scores >= threshold
        return TopK(
            np.where(kept, self.labels, NO_LABEL).astype(np.int32),
            np.where(kept, self.scores, 0).astype(np.float32),
        )

    def without(self, pairs: "sp.csr_matrix", k: int) -> "TopK":
        """Return the `k` best labels that are left when the pairs (document, label) are removed."""
        n_labels = pairs.shape[1]
        rows = np.arange(len(self), dtype=np.int64)
        removed = np.repeat(rows, np.diff(pairs.indptr)) * n_labels + pairs.indices
        # an id outside of the matrix would be the key of another document's pair
        inside = (self.labels >= 0) & (self.labels < n_labels)
        gone = np.isin(rows[:, None] * n_labels + self.labels, removed) & inside
        order = np.argsort(gone, axis=1, kind="stable")[:, :k]
        return TopK(
            np.take_along_axis(np.where(gone, NO_LABEL, self.labels), order, 1).astype(np.int32),
            np.take_along_axis(np.where(gone, 0, self.scores), order, 1).astype(np.float32),
        )

    def named(self, label_names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """Yield for each document its labels by name: [{"label": …, "score": …}, …]."""
        for labels, scores in zip(self.labels.tolist(), self.scores.tolist(), strict=True):
            yield [
                {"label": label_names[label], "score": round(score, 6)}
                for label, score in zip(labels, scores, strict=True)
                if label != NO_LABEL
            ]
