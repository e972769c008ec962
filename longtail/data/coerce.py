"""From what users hold in memory to a Dataset."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.data.dataset import Dataset, Splits, build_label_matrix
from longtail.errors import DataError


def as_dataset(data: Any, labels: Any = None) -> Dataset:
    """Turn documents, with or without their labels, into a Dataset.

    Args:
        data: a Dataset; a scipy sparse matrix or a 2-d array of feature rows; or a list of texts.
        labels: a sparse matrix or 2-d array in which a value above 0 means that the document (row)
            carries the label (column); or for each document a list of label names, or of label
            ids (whole numbers). Without it the documents have no labels.
    """
    documents = as_documents(data)
    if isinstance(data, Dataset):
        if labels is not None:
            raise DataError("a Dataset has its labels already; leave the labels out")
        return data if isinstance(documents, list) else replace(data, X=documents)
    if isinstance(documents, list):
        Y, names = as_labels(labels, len(documents))
        return Dataset(Y, names, texts=documents)
    Y, names = as_labels(labels, documents.shape[0])
    return Dataset(Y, names, X=documents)


def as_documents(data: Any) -> list[str] | sp.csr_matrix:
    """Return the texts or the checked feature rows of what `as_dataset` takes."""
    if isinstance(data, Splits):
        raise DataError(
            "these are the splits of a data set; give one of them: splits.train or splits.test"
        )
    if isinstance(data, Dataset):
        data = data.texts if data.X is None else data.X
    if sp.issparse(data) or (isinstance(data, np.ndarray) and data.dtype.kind in "fiub"):
        return as_rows(data)
    return _as_texts(data)


def as_rows(X: Any) -> sp.csr_matrix:
    """Return feature rows as canonical CSR float32; the input stays as it is."""
    is_ready = isinstance(X, sp.csr_matrix) and X.dtype == np.float32 and X.has_canonical_format
    rows = X if is_ready else _as_csr(X, "X")
    if not np.isfinite(rows.data).all():
        wrong = np.flatnonzero(~np.isfinite(rows.data))
        row = int(np.searchsorted(rows.indptr, wrong[0], side="right")) - 1
        raise DataError(
            f"X holds {rows.data[wrong[0]]} in row {row}, column {rows.indices[wrong[0]]}; "
            "every value must be a finite number"
        )
    return rows


def as_labels(labels: Any, n_documents: int) -> tuple[sp.csr_matrix, list[str]]:
    """Return labels as Y and the labels' names."""
    if labels is None:
        return sp.csr_matrix(np.empty((n_documents, 0), np.float32)), []
    if sp.issparse(labels) or (isinstance(labels, np.ndarray) and labels.dtype.kind in "fiub"):
        Y = _as_csr(labels, "Y")
        if not (np.isfinite(Y.data).all() and (Y.data >= 0).all()):
            raise DataError("Y holds a negative or non-finite value; a label is 1, no label is 0")
        Y.eliminate_zeros()
        Y.data.fill(1)
        return Y, [str(i) for i in range(Y.shape[1])]
    rows = _as_label_lists(labels)
    if all(isinstance(label, int | np.integer) for row in rows for label in row):
        return _label_ids(rows)
    try:
        return build_label_matrix(rows)
    except TypeError:
        raise _bad_label(rows) from None


def _as_csr(matrix: Any, name: str) -> sp.csr_matrix:
    if matrix.ndim != 2:
        raise DataError(f"{name} has {matrix.ndim} dimensions; it must have 2: a row a document")
    if matrix.dtype.kind == "c":
        raise DataError(f"{name} holds complex numbers; it must hold real ones")
    with np.errstate(over="ignore"):  # a value too large for float32 is reported as infinite
        rows = sp.csr_matrix(matrix, dtype=np.float32)
    canonical = rows.has_canonical_format
    if (name == "Y" or not canonical) and np.shares_memory(rows.data, _data_of(matrix)):
        rows = rows.copy()
    rows.sum_duplicates()
    return rows


def _data_of(matrix: Any) -> Any:
    data = getattr(matrix, "data", None)
    return data if isinstance(data, np.ndarray) else np.empty(0)


def _as_texts(data: Any) -> list[str]:
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"documents must be a list of texts or a matrix of rows; got {type(data).__name__}"
        )
    texts = list(data)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"document {i} must be a string; got {type(text).__name__}")
    return texts


def _as_label_lists(labels: Any) -> list[list[Any]]:
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise DataError(
            f"labels must be a list of label lists or a matrix; got {type(labels).__name__}"
        )
    rows = []
    for i, row in enumerate(labels):
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise DataError(
                f"the labels of document {i} must be a list, such as ['beer', 'wine']; "
                f"got {row!r:.40}"
            )
        rows.append(list(row))
    return rows


def _label_ids(rows: list[list[Any]]) -> tuple[sp.csr_matrix, list[str]]:
    """Build Y from label ids; there are as many labels as the largest id says."""
    for i, row in enumerate(rows):
        if row and not 0 <= min(row) <= max(row) < 2**31 - 1:
            raise DataError(
                f"label id {min(row) if min(row) < 0 else max(row)} of document {i}"
                " is outside 0 to 2147483646"
            )
    n_labels = max((max(row) for row in rows if row), default=-1) + 1
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.fromiter((label for row in rows for label in row), np.int32, int(indptr[-1]))
    ones = np.ones(len(indices), dtype=np.float32)
    Y = sp.csr_matrix((ones, indices, indptr), shape=(len(rows), int(n_labels)))
    Y.sum_duplicates()
    Y.data.fill(1)
    return Y, [str(i) for i in range(Y.shape[1])]


def _bad_label(rows: list[list[Any]]) -> DataError:
    for i, row in enumerate(rows):
        for label in row:
            if not isinstance(label, str | int) or isinstance(label, bool) or label == "":
                return DataError(
                    f"the labels of document {i} must be names or whole numbers; got {label!r:.40}"
                )
    return DataError("labels must be names or whole numbers")
