"""The one type of every prediction: for each document its best labels, best first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import LongtailError, MissingExtraError
from longtail.visible import html_table, visible

if TYPE_CHECKING:
    import scipy.sparse as sp

NO_LABEL = -1
SHOWN = 5  # documents of a prediction that is printed
SHOWN_LABELS = 5  # of each of them
DIGITS = 6  # of a score that is written


@dataclass(frozen=True, eq=False, repr=False)
class TopK:
    """The k best labels of n documents.

    Attributes:
        labels: (n, k) label ids, best first; `NO_LABEL` fills rows that have fewer than k.
        scores: (n, k) scores between 0 and 1, falling along each row; 0 where there is no label.
        label_names: the name of each label, by id; a model's predictions have them.
        label_uris: the URI of each label, None for those without; None if no label has one.
    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    label_names: Sequence[str] | None = None
    label_uris: Sequence[str | None] | None = None

    @classmethod
    def concatenate(cls, tops: Sequence["TopK"]) -> "TopK":
        """Return the predictions of several groups of documents, one group after the other."""
        if len(tops) == 1:  # one document is answered without a copy
            return tops[0]
        return cls(
            np.concatenate([top.labels for top in tops]),
            np.concatenate([top.scores for top in tops]),
            tops[0].label_names,
            tops[0].label_uris,
        )

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.labels)

    @property
    def k(self) -> int:
        """The number of labels kept for each document."""
        return int(self.labels.shape[1])

    # -- other predictions ------------------------------------------------------------------

    def take(self, rows: NDArray[np.integer] | slice) -> "TopK":
        """Return the predictions of some of the documents."""
        return replace(self, labels=self.labels[rows], scores=self.scores[rows])

    def first(self, k: int) -> "TopK":
        """Return the same prediction cut to its `k` best labels."""
        return replace(self, labels=self.labels[:, :k], scores=self.scores[:, :k])

    def above(self, threshold: float) -> "TopK":
        """Return the same prediction without the labels whose score is below `threshold`."""
        kept = self.scores >= threshold
        return replace(
            self,
            labels=np.where(kept, self.labels, NO_LABEL).astype(np.int32),
            scores=np.where(kept, self.scores, 0).astype(np.float32),
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
        labels = np.take_along_axis(np.where(gone, NO_LABEL, self.labels), order, 1)
        scores = np.take_along_axis(np.where(gone, 0, self.scores), order, 1)
        return replace(self, labels=labels.astype(np.int32), scores=scores.astype(np.float32))

    # -- as names ---------------------------------------------------------------------------

    @property
    def names(self) -> list[list[str]]:
        """The names of each document's labels, best first."""
        known = self._known_names()
        return [
            [known[label] for label in row if label != NO_LABEL] for row in self.labels.tolist()
        ]

    @property
    def uris(self) -> list[list[str | None]]:
        """The URIs of each document's labels, best first; None for labels without one."""
        known = self.label_uris
        return [
            [None if known is None else known[label] for label in row if label != NO_LABEL]
            for row in self.labels.tolist()
        ]

    def to_list(self) -> list[list[dict[str, Any]]]:
        """Return the labels of each document by name: [{"label": …, "score": …, "uri": …}, …].

        Labels without a URI have no "uri".
        """
        rows = zip(self.names, self.score_lists(), self.uris, strict=True)
        return [
            [
                {"label": name, "score": score} | ({} if uri is None else {"uri": uri})
                for name, score, uri in zip(*row, strict=True)
            ]
            for row in rows
        ]

    def score_lists(self) -> list[list[float]]:
        """Return the scores of each document's labels, best first, rounded to six digits."""
        rows = zip(self.labels.tolist(), self.scores.tolist(), strict=True)
        return [
            [round(score, DIGITS) for label, score in zip(*row, strict=True) if label != NO_LABEL]
            for row in rows
        ]

    def to_table(self, ids: Iterable[Any] | None = None, *, long: bool = False) -> Any:
        """Return a pyarrow table with a row for each document: its id, labels and scores.

        Args:
            ids: what to call the documents; 0, 1, 2, … unless given.
            long: a row for each label instead: the document's id, the label's rank (from 1), the
                label and its score. A document without labels then has no row.

        Where labels have URIs, they are in the column `uris`, or `uri`.
        """
        import pyarrow as pa

        names = self.names
        known = pa.array(range(len(self)) if ids is None else list(ids))
        if len(known) != len(self):
            raise LongtailError(f"{len(known)} ids for {len(self)} documents; give one for each")
        if not long:
            scores = pa.array(self.score_lists(), pa.list_(pa.float64()))
            labels = pa.array(names, pa.list_(pa.string()))
            listed = pa.array(self.uris, pa.list_(pa.string()))
            uris = {} if self.label_uris is None else {"uris": listed}
            return pa.table({"id": known, "labels": labels, "scores": scores, **uris})
        lengths = [len(row) for row in names]
        ranks = [rank for n in lengths for rank in range(1, n + 1)]
        flat = pa.array([uri for row in self.uris for uri in row], pa.string())
        uris = {} if self.label_uris is None else {"uri": flat}
        return pa.table(
            {
                "id": known.take(pa.array(np.repeat(np.arange(len(self)), lengths))),
                "rank": pa.array(ranks, pa.int32()),
                "label": pa.array([name for row in names for name in row], pa.string()),
                "score": pa.array([s for row in self.score_lists() for s in row], pa.float64()),
                **uris,
            }
        )

    def to_frame(self, ids: Iterable[Any] | None = None, *, long: bool = False) -> Any:
        """Return the table of `to_table` as a pandas DataFrame."""
        try:
            import pandas  # noqa: F401 - pyarrow makes the frame
        except ImportError:
            raise MissingExtraError(
                "to_frame needs pandas: pip install pandas; to_table returns a pyarrow table "
                "without it, which polars reads as well (polars.from_arrow)"
            ) from None
        return self.to_table(ids, long=long).to_pandas()

    def _known_names(self) -> Sequence[str]:
        if self.label_names is None:
            raise LongtailError(
                "this prediction does not know the names of its labels; set label_names, "
                "as the predictions of a model have it"
            )
        return self.label_names

    # -- shown ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return how many documents there are and the labels of the first."""
        lines = [f"TopK: {len(self):,} documents, up to {self.k} labels each"]
        rows = [visible(", ".join(cells)) for cells in self._first_rows()]
        lines += [f"  {i}: {row}" for i, row in enumerate(rows)]
        return "\n".join(lines + ["  …"] * (len(self) > SHOWN))

    def _repr_html_(self) -> str:
        """Return the same as a table for notebooks."""
        rows = [[str(i), ", ".join(cells)] for i, cells in enumerate(self._first_rows())]
        more = " (the first of them)" if len(self) > SHOWN else ""
        return html_table(f"{len(self):,} documents{more}", ["", "labels"], rows)

    def _first_rows(self) -> list[list[str]]:
        """Return "name score" for the labels of the first documents."""
        first = self.take(slice(SHOWN))
        names = first.names if self.label_names is not None else _as_names(first.labels)
        rows = zip(names, first.score_lists(), strict=True)
        return [
            [f"{name} {score:.2f}" for name, score in list(zip(*row, strict=True))[:SHOWN_LABELS]]
            + ["…"] * (len(row[0]) > SHOWN_LABELS)
            for row in rows
        ]


def _as_names(labels: NDArray[np.int32]) -> list[list[str]]:
    """Return the ids of labels in place of their names."""
    return [[str(label) for label in row if label != NO_LABEL] for row in labels.tolist()]
