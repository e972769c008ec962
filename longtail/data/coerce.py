"""From what users hold in memory to a Dataset.

Compiled code, scipy's and ours, trusts the indices of a matrix. So whatever comes from outside goes
through `matrix.py` first, a Dataset's own matrices as well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.columns import Columns
from longtail.data.dataset import Dataset, Splits, build_label_matrix
from longtail.data.frames import is_frame, read_frame, read_frame_texts
from longtail.data.labels import MAX_LABELS, NumberedNames, find_fault
from longtail.data.matrix import as_csr
from longtail.errors import DataError
from longtail.reading import ReadOptions
from longtail.runtime.mapped import BLOCK, Texts


def as_dataset(
    data: Any,
    labels: Any = None,
    *,
    text: str | Sequence[str] | None = None,
    like: Columns | None = None,
) -> Dataset:
    """Turn documents, with or without their labels, into a Dataset.

    Args:
        data: a Dataset; a scipy sparse matrix or a 2-d array of feature rows; a list of texts; or a
            frame: of pandas or polars, a table of pyarrow, a data set of Hugging Face.
        labels: a sparse matrix or 2-d array in which a value above 0 means that the document (row)
            carries the label (column); or for each document a list of label names, or of label
            ids (whole numbers), or a single one of them; of a frame also the name of a column.
            Without it documents have no labels, but for frames, whose column is guessed.
        text: of a frame, the name of the column that holds the text, or several.
        like: of a frame, the columns to take where they are there.
    """
    if is_frame(data):
        return _from_frame(data, labels, ReadOptions(text, like=like))
    _refuse_column(text, "text")
    if isinstance(data, Dataset):
        if labels is not None:
            raise DataError("a Dataset has its labels already; leave the labels out")
        return _check_dataset(data)
    documents = as_documents(data)
    if not sp.issparse(documents):
        Y, names = as_labels(labels, len(documents))
        return Dataset(Y, names, texts=documents)
    Y, names = as_labels(labels, documents.shape[0])
    return Dataset(Y, names, X=documents)


def _from_frame(data: Any, labels: Any, options: ReadOptions) -> Dataset:
    if labels is None or isinstance(labels, str):
        return read_frame(data, replace(options, labels=labels))
    documents = read_frame_texts(data, options)
    Y, names = as_labels(labels, len(documents))
    return replace(documents, Y=Y, label_names=names)


def _refuse_column(name: Any, parameter: str) -> None:
    if name is not None:
        raise DataError(
            f"{parameter}={name!r:.40} names a column, and these documents have none; leave it out"
        )


def as_documents(
    data: Any, *, text: str | Sequence[str] | None = None, like: Columns | None = None
) -> list[str] | Texts | sp.csr_matrix:
    """Return the texts or the checked feature rows of what `as_dataset` takes."""
    if isinstance(data, Splits):
        raise DataError(
            "these are the splits of a data set; give one of them: splits.train or splits.test"
        )
    if is_frame(data):
        return list(read_frame_texts(data, ReadOptions(text, like=like)).texts or ())
    _refuse_column(text, "text")
    if isinstance(data, Dataset):
        data = _check_dataset(data)
        if isinstance(data.texts, Texts):
            return data.texts
        return data.X if data.texts is None else list(data.texts)
    if sp.issparse(data) or (isinstance(data, np.ndarray) and data.dtype.kind in "fiub"):
        return as_rows(data)
    return _as_texts(data)


def _check_dataset(data: Dataset) -> Dataset:
    """Return a Dataset whose matrices are sound, the same one if they were."""
    X = None if data.X is None else as_rows(data.X)
    texts = None if data.texts is None else _as_texts(data.texts)
    Y = _as_ones(data.Y, "Y")
    exclude = None if data.exclude is None else _as_ones(data.exclude, "exclude")
    # Built anew in any case, as its lengths may have changed since they were compared.
    checked = replace(data, X=X, Y=Y, texts=texts, exclude=exclude)
    return data if X is data.X and Y is data.Y and exclude is data.exclude else checked


def as_rows(X: Any) -> sp.csr_matrix:
    """Return feature rows as canonical CSR float32 without zeros; the input stays as it is."""
    rows = as_csr(X, "X")
    if not _are_finite(rows.data):
        wrong = np.flatnonzero(~np.isfinite(rows.data))
        row = int(np.searchsorted(rows.indptr, wrong[0], side="right")) - 1
        raise DataError(
            f"X holds {rows.data[wrong[0]]} in row {row}, column {rows.indices[wrong[0]]}; "
            "every value must be a finite number"
        )
    if not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
    return rows


def _are_finite(values: NDArray[np.float32]) -> bool:
    """Look some at a time, as there may be more than memory holds."""
    blocks = range(0, len(values), BLOCK)
    return all(np.isfinite(values[first : first + BLOCK]).all() for first in blocks)


def _as_ones(matrix: Any, name: str) -> sp.csr_matrix:
    """Return a matrix of ones wherever `matrix` is above 0; the input stays as it is."""
    rows = as_csr(matrix, name)
    if (rows.data == 1).all():
        return rows
    if not (np.isfinite(rows.data).all() and (rows.data >= 0).all()):
        raise DataError(f"{name} holds a negative or non-finite value; a label is 1, no label is 0")
    rows = rows.copy()
    rows.eliminate_zeros()
    rows.data.fill(1)
    return rows


def as_labels(labels: Any, n_documents: int) -> tuple[sp.csr_matrix, Sequence[str]]:
    """Return labels as Y and the labels' names."""
    if labels is None:
        return sp.csr_matrix(np.empty((n_documents, 0), np.float32)), []
    is_matrix = isinstance(labels, np.ndarray) and labels.ndim > 1 and labels.dtype.kind in "fiub"
    if sp.issparse(labels) or is_matrix:
        Y = _as_ones(labels, "Y")
        if Y.shape[1] > MAX_LABELS:
            raise DataError(f"Y has {Y.shape[1]} columns; at most {MAX_LABELS} labels are possible")
        return Y, NumberedNames(Y.shape[1])
    rows = _as_label_lists(labels)
    if all(isinstance(label, int | np.integer) for row in rows for label in row):
        return _label_ids(rows)
    try:
        return build_label_matrix(rows)
    except TypeError:
        raise _bad_label(rows) from None


def _as_texts(data: Any) -> list[str] | Texts:
    if isinstance(data, Texts):
        return data  # all of them are strings, or say so when they are read
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"documents must be a list of texts or a matrix of rows; got {type(data).__name__}"
        )
    # Arrays of pyarrow give values of their own kind.
    texts = list(data.to_pylist() if hasattr(data, "to_pylist") else data)
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
    for i, row in enumerate(labels.to_pylist() if hasattr(labels, "to_pylist") else labels):
        if isinstance(row, str | int | np.integer):
            rows.append([row])  # the only label of this document
        elif isinstance(row, bytes) or not isinstance(row, Iterable):
            raise DataError(
                f"the labels of document {i} must be a list, such as ['beer', 'wine'], or one "
                f"label; got {row!r:.40}"
            )
        else:
            rows.append(list(row))
    return rows


def _label_ids(rows: list[list[Any]]) -> tuple[sp.csr_matrix, Sequence[str]]:
    """Build Y from label ids; there are as many labels as the largest id says."""
    for i, row in enumerate(rows):
        if row and not 0 <= min(row) <= max(row) < MAX_LABELS:
            wrong = min(row) if min(row) < 0 else max(row)
            got = wrong if abs(wrong) < 2**63 else "of more than 18 digits"
            raise DataError(f"label id {got} of document {i} is outside 0 to {MAX_LABELS - 1}")
    n_labels = max((max(row) for row in rows if row), default=-1) + 1
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.fromiter((label for row in rows for label in row), np.int32, int(indptr[-1]))
    ones = np.ones(len(indices), dtype=np.float32)
    Y = sp.csr_matrix((ones, indices, indptr), shape=(len(rows), int(n_labels)))
    Y.sum_duplicates()
    Y.data.fill(1)
    return Y, NumberedNames(Y.shape[1])


def _bad_label(rows: list[list[Any]]) -> DataError:
    for i, row in enumerate(rows):
        for label in row:
            if fault := find_fault(label):
                return DataError(
                    f"the labels of document {i} must be names or whole numbers; got {fault}"
                )
    return DataError("labels must be names or whole numbers")
