"""Dataset: documents as texts or feature rows, with their labels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from operator import eq
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.columns import Columns
from longtail.data.labels import LabelRows, NumberedNames, Numbering
from longtail.errors import DataError
from longtail.runtime.mapped import Texts, take_rows
from longtail.topk import NO_LABEL
from longtail.visible import visible

SHOWN = 5  # documents, and labels of each
SHOWN_LETTERS = 60


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Documents and their labels; exactly one of `X` and `texts` is given.

    Attributes:
        Y: (n, n_labels) CSR matrix of ones, float32, indices sorted and unique in each row.
        label_names: one unique name for each label, by id.
        X: (n, n_features) CSR matrix of features, float32, indices sorted and unique in each row.
        texts: one string for each document.
        exclude: (n, n_labels) CSR matrix of the pairs that must never be predicted (the XC
            repository's `filter_labels_test.txt`), or None.
        feature_names: what each column of X counts, such as a word; None if nobody knows.
        ids: what the source calls each document; None if it has no ids.
        columns: all columns of the source by name, one value for each document, where they were
            asked for (`keep`), or None.
        label_uris: from the names of labels to their URIs, as far as the source gives them.
        other_names: from the names of labels to further names, where a vocabulary gives any.
        read_as: one line on how the source was read: which columns, what separates labels; empty
            where nothing was guessed or chosen.
        read_columns: which columns of the source the documents come from; None if it has none.
    """

    Y: sp.csr_matrix
    label_names: Sequence[str]
    X: sp.csr_matrix | None = None
    texts: Sequence[str] | None = None
    exclude: sp.csr_matrix | None = None
    feature_names: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    columns: Mapping[str, Sequence[Any]] | None = None
    label_uris: Mapping[str, str] | None = None
    other_names: Mapping[str, Sequence[str]] | None = None
    read_as: str = ""
    read_columns: Columns | None = None

    def __post_init__(self) -> None:
        """Check that all agree in length."""
        if (self.X is None) == (self.texts is None):
            raise DataError("a Dataset needs either feature rows X or texts, and not both")
        documents = "texts" if self.X is None else "rows of X"
        if self.n_documents != self.Y.shape[0]:
            raise DataError(
                f"{self.n_documents} {documents} but {self.Y.shape[0]} rows of labels Y; "
                "both must have one row for each document"
            )
        if len(self.label_names) != self.n_labels:
            raise DataError(f"{len(self.label_names)} label names for {self.n_labels} labels")
        if self.exclude is not None and self.exclude.shape != self.Y.shape:
            raise DataError(
                f"exclude has the shape {self.exclude.shape}, but Y has {self.Y.shape}; "
                "both must be the same"
            )
        for name, values in {"ids": self.ids, **(self.columns or {})}.items():
            if values is not None and len(values) != self.n_documents:
                what = "ids" if name == "ids" else f"values in the column '{name}'"
                raise DataError(f"{len(values)} {what} for {self.n_documents} documents")
        self._check_feature_names()

    def _check_feature_names(self) -> None:
        if self.feature_names is None:
            return
        if self.X is None:
            raise DataError("feature names are those of the columns of X, but there are only texts")
        if len(self.feature_names) != self.X.shape[1]:
            raise DataError(
                f"{len(self.feature_names)} feature names for {self.X.shape[1]} columns of X"
            )

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.n_documents

    @property
    def n_documents(self) -> int:
        """The number of documents."""
        return len(self.texts or ()) if self.X is None else int(self.X.shape[0])

    @property
    def n_labels(self) -> int:
        """The number of labels, with those that no document here carries."""
        return int(self.Y.shape[1])

    def count_labels(self) -> NDArray[np.int64]:
        """Return for each label how many documents carry it."""
        return np.bincount(self.Y.indices, minlength=self.n_labels).astype(np.int64)

    def take(self, rows: NDArray[np.integer] | Sequence[int]) -> "Dataset":
        """Return the documents `rows`, in that order."""
        rows = np.asarray(rows)
        return replace(
            self,
            Y=self.Y[rows],
            X=None if self.X is None else take_rows(self.X, rows),
            texts=_pick(self.texts, rows),
            exclude=None if self.exclude is None else self.exclude[rows],
            ids=_pick(self.ids, rows),
            columns=None
            if self.columns is None
            else {name: _pick(values, rows) or [] for name, values in self.columns.items()},
        )

    def split(self, fraction: float, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Return two datasets, the second with `fraction` of the documents drawn at random."""
        order = np.random.default_rng(seed).permutation(self.n_documents)
        n_second = min(max(round(self.n_documents * fraction), 1), self.n_documents - 1)
        return self.take(np.sort(order[n_second:])), self.take(np.sort(order[:n_second]))

    def align(self, label_names: Sequence[str]) -> "Dataset":
        """Return the same documents with the label ids of `label_names`.

        Labels that `label_names` does not hold keep their names and come after all others, so
        that metrics still count them: nobody can predict them, yet the documents carry them.
        """
        if _are_same(label_names, self.label_names):
            return self
        if _are_numbers(label_names) and _are_numbers(self.label_names):
            return self._widen(NumberedNames(max(len(label_names), self.n_labels)))
        ids = {name: i for i, name in enumerate(label_names)}
        extra = [name for name in self.label_names if name not in ids]
        ids.update((name, len(label_names) + i) for i, name in enumerate(extra))
        new_id = np.array([ids[name] for name in self.label_names], dtype=np.int32)
        names = [*label_names, *extra]
        exclude = None if self.exclude is None else _renumber(self.exclude, new_id, len(names))
        return replace(
            self, Y=_renumber(self.Y, new_id, len(names)), label_names=names, exclude=exclude
        )

    def rename(self, names: Sequence[str | None]) -> "Dataset":
        """Return the same documents with other names for their labels, in their order.

        Labels that get the same name become one; those that get None are taken away.
        """
        if "" in names:
            old = self.label_names[list(names).index("")]
            raise DataError(f"the new name of the label '{old}' is empty; None takes a label away")
        ids = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        new_id = np.array([NO_LABEL if name is None else ids[name] for name in names], np.int32)
        exclude = None if self.exclude is None else _merge(self.exclude, new_id, len(ids))
        uris = {
            new: self.label_uris[old]
            for old, new in zip(self.label_names, names, strict=True)
            if self.label_uris and new is not None and old in self.label_uris
        }
        return replace(
            self,
            Y=_merge(self.Y, new_id, len(ids)),
            label_names=list(ids),
            exclude=exclude,
            label_uris=uris or None,
        )

    def _widen(self, label_names: Sequence[str]) -> "Dataset":
        """Return the same documents with labels added at the end."""
        shape = (self.n_documents, len(label_names))
        return replace(
            self,
            Y=_with_shape(self.Y, shape),
            label_names=label_names,
            exclude=None if self.exclude is None else _with_shape(self.exclude, shape),
        )

    def __repr__(self) -> str:
        """Show the counts and the first documents."""
        read_as = [visible(self.read_as)] if self.read_as else []
        return "\n  ".join([self._count(), *read_as, *self._first_rows()])

    def _repr_html_(self) -> str:
        """Show the counts and the first documents in a notebook."""
        rows = "".join(
            f"<tr><td>{escape(visible(text))}</td><td>{escape(visible(labels))}</td></tr>"
            for text, labels in map(self._show_row, range(min(self.n_documents, SHOWN)))
        )
        head = "<tr><th>document</th><th>labels</th></tr>"
        lines = filter(None, (self._count(), self.read_as))
        said = "".join(f"<p>{escape(visible(line))}</p>" for line in lines)
        return f"{said}<table>{head}{rows}</table>"

    def _count(self) -> str:
        held = "texts" if self.X is None else f"rows of {self.X.shape[1]:,} features"
        mean = self.Y.nnz / max(self.n_documents, 1)
        excluded = "" if self.exclude is None else f", {self.exclude.nnz:,} pairs excluded"
        return (
            f"Dataset of {self.n_documents:,} documents as {held}, {self.n_labels:,} labels, "
            f"{mean:.2f} a document{excluded}"
        )

    def _first_rows(self) -> list[str]:
        rows = map(self._show_row, range(min(self.n_documents, SHOWN)))
        shown = [visible(f"{text} → {labels or 'no labels'}") for text, labels in rows]
        return [*shown, "…"] if self.n_documents > SHOWN else shown

    def _show_row(self, row: int) -> tuple[str, str]:
        """Return the beginning of a document and of its labels, each on one line."""
        if self.X is None:
            text = " ".join((self.texts or ())[row][: 4 * SHOWN_LETTERS].split())
        else:
            text = f"{self.X.indptr[row + 1] - self.X.indptr[row]:,} features"
        first, last = self.Y.indptr[row : row + 2].tolist()
        shown = self.Y.indices[first : min(last, first + SHOWN)].tolist()
        labels = ", ".join(self.label_names[label] for label in shown)
        return _shorten(text), _shorten(labels + (", …" if last - first > SHOWN else ""))


class Splits(NamedTuple):
    """A data set as it was found: its training split, and its test split where there is one."""

    train: Dataset
    test: Dataset | None

    def __repr__(self) -> str:
        """Show both splits, one after the other."""
        return f"train: {self.train!r}\ntest: {'none' if self.test is None else repr(self.test)}"

    def _repr_html_(self) -> str:
        """Show both splits in a notebook."""
        return "".join(
            f"<h4>{name}</h4>{split._repr_html_()}"
            for name, split in self._asdict().items()
            if split is not None
        )


def _pick(values: Sequence[Any] | None, rows: NDArray[np.integer]) -> Sequence[Any] | None:
    if isinstance(values, Texts):
        return values.take(rows)
    return None if values is None else [values[row] for row in rows.tolist()]


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"


def _with_shape(matrix: sp.csr_matrix, shape: tuple[int, int]) -> sp.csr_matrix:
    return sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=shape)


def _are_same(names: Sequence[str], others: Sequence[str]) -> bool:
    return names is others or (len(names) == len(others) and all(map(eq, names, others)))


def _are_numbers(names: Sequence[str]) -> bool:
    return isinstance(names, NumberedNames) and names.are_numbers


def _renumber(matrix: sp.csr_matrix, new_id: NDArray[np.int32], n_columns: int) -> sp.csr_matrix:
    indices = new_id[matrix.indices] if matrix.nnz else matrix.indices
    moved = sp.csr_matrix(
        (matrix.data, indices, matrix.indptr), shape=(matrix.shape[0], n_columns), copy=True
    )
    moved.sort_indices()
    return moved


def _merge(matrix: sp.csr_matrix, new_id: NDArray[np.int32], n_columns: int) -> sp.csr_matrix:
    """Return the matrix with other columns, of which several may be one; -1 leaves one out."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    columns = new_id[matrix.indices] if matrix.nnz else matrix.indices
    kept = columns >= 0
    ones = np.ones(int(kept.sum()), np.float32)
    shape = (matrix.shape[0], n_columns)
    merged = sp.csr_matrix((ones, (rows[kept], columns[kept])), shape=shape)
    merged.sum_duplicates()
    merged.data[:] = 1
    return merged


def build_label_matrix(
    label_lists: Iterable[Iterable[str]], label_names: Sequence[str] | None = None
) -> tuple[sp.csr_matrix, list[str]]:
    """Turn lists of label names into Y and its label names.

    Names are numbered in sorted order unless `label_names` fixes the first of them; names that
    `label_names` lacks follow in sorted order.
    """
    rows = LabelRows(Numbering())
    for labels in label_lists:
        rows.add(labels)
    fixed = list(label_names or ())
    known = set(fixed)
    names = [*fixed, *sorted(name for name in rows.numbering.names if name not in known)]
    column = {name: i for i, name in enumerate(names)}
    columns = np.array([column[name] for name in rows.numbering.names], dtype=np.int32)
    return rows.matrix(columns, len(names)), names
