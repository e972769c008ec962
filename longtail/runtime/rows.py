"""Rows: a sparse matrix as three plain arrays that compiled code can walk, saved and loaded."""

from typing import NamedTuple
from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.schema import LARGEST_WEIGHT, Schema, floats, indices, starts
from longtail.runtime.store import Files

LEAST_SQUARES = 1e-70  # of a row that has a direction; 1 over the root of less leaves float32


class Rows(NamedTuple):
    """Row i holds `values[start[i]:start[i + 1]]` in the columns `columns[start[i]:…]`.

    One set of types for all matrices, so that each compiled function exists once.
    """

    start: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]


def view_rows(matrix: sp.csr_matrix) -> Rows:
    """View a CSR matrix as Rows; copies only what has another type."""
    return Rows(
        matrix.indptr.astype(np.int64, copy=False),
        matrix.indices.astype(np.int32, copy=False),
        matrix.data.astype(np.float32, copy=False),
    )


def scale_to_unit(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the matrix with every row of length 1, empty rows left empty."""
    values = scale_rows(view_rows(matrix)).values
    return sp.csr_matrix((values, matrix.indices, matrix.indptr), shape=matrix.shape)


@njit(nogil=True, cache=True)
def scale_rows(rows: Rows) -> Rows:
    """Return the rows with every one of length 1, rows of zeros left as they are."""
    values = np.empty_like(rows.values)
    for i in range(len(rows.start) - 1):
        squares = 0.0
        for cell in range(rows.start[i], rows.start[i + 1]):
            squares += np.float64(rows.values[cell]) ** 2
        scale = 1 / np.sqrt(squares) if squares > 0 else 1.0
        for cell in range(rows.start[i], rows.start[i + 1]):
            values[cell] = rows.values[cell] * scale
    return Rows(rows.start, rows.columns, values)


@njit(nogil=True, cache=True)
def gather_rows(
    rows: Rows, chosen: NDArray[np.int32], new_column: NDArray[np.int32]
) -> tuple[Rows, NDArray[np.int32]]:
    """Copy the `chosen` rows together and number their columns anew, densely from 0.

    Columns are numbered as they first appear, which puts the frequent ones side by side: a
    dense array indexed by the new numbers stays in the processor's cache. `new_column` is
    scratch space of -1 for every column and is left that way.

    Returns:
        The copied rows, and for each new column number the column it stood for.
    """
    start = np.empty(len(chosen) + 1, np.int64)
    start[0] = 0
    for i in range(len(chosen)):
        row = chosen[i]
        start[i + 1] = start[i] + rows.start[row + 1] - rows.start[row]
    size = start[len(chosen)]
    columns = np.empty(size, np.int32)
    values = np.empty(size, np.float32)
    old_column = np.empty(min(size, len(new_column)), np.int32)
    n_columns = 0
    place = 0
    for i in range(len(chosen)):
        for cell in range(rows.start[chosen[i]], rows.start[chosen[i] + 1]):
            column = rows.columns[cell]
            if new_column[column] < 0:
                new_column[column] = n_columns
                old_column[n_columns] = column
                n_columns += 1
            columns[place] = new_column[column]
            values[place] = rows.values[cell]
            place += 1
    for i in range(n_columns):
        new_column[old_column[i]] = -1
    return Rows(start, columns, values), old_column[:n_columns].copy()


# -- saving ---------------------------------------------------------------------------------------


def add_matrix(files: Files, name: str, matrix: sp.csr_matrix) -> None:
    """Add a sparse matrix to a model's files; a matrix of ones is saved without its values."""
    rows = view_rows(matrix)
    files.arrays[f"{name}.start"] = rows.start
    files.arrays[f"{name}.columns"] = rows.columns
    if (rows.values != 1).any():
        files.arrays[f"{name}.values"] = rows.values


def describe_matrix(
    name: str, n_rows: str, n_columns: str, least: float = -LARGEST_WEIGHT
) -> Schema:
    """Return the schema of what `add_matrix` adds; no value is below `least`."""
    n_entries = f"{name}.n_entries"
    return Schema(
        arrays={
            f"{name}.start": starts(n_rows, of=n_entries),
            f"{name}.columns": indices(n_entries, into=n_columns),
            f"{name}.values": floats(n_entries, least=least, empty=True, optional=True),
        }
    )


def take_matrix(files: Files, name: str, n_columns: int) -> sp.csr_matrix:
    """Return what `add_matrix` saved, after its schema was checked."""
    start, columns = files.arrays[f"{name}.start"], files.arrays[f"{name}.columns"]
    values = files.arrays.get(f"{name}.values", np.ones(len(columns), np.float32))
    return sp.csr_matrix((values, columns, start), shape=(len(start) - 1, n_columns))


# -- before a model learns ----------------------------------------------------------------------


def weigh_features(X: sp.csr_matrix) -> NDArray[np.float32]:
    """Return log(n/df) + 1 of each feature if X holds counts; other values are weights already."""
    if X.nnz and (X.data != np.round(X.data)).any():
        return np.ones(X.shape[1], np.float32)
    held = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return (np.log((1 + X.shape[0]) / (1 + held)) + 1).astype(np.float32)


def weigh_rows(X: sp.csr_matrix, weights: NDArray[np.float32], normalize: bool) -> sp.csr_matrix:
    """Return X with every feature multiplied by its weight, then with rows of length 1 if asked."""
    X = sp.csr_matrix((X.data * weights[X.indices], X.indices, X.indptr), shape=X.shape)
    return scale_to_unit(X) if normalize else X


def hold_out(
    n_documents: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the documents at random: return those to train on, then the share held out."""
    order = np.random.default_rng(seed).permutation(n_documents)
    n_held = min(round(share * n_documents), n_documents - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])


def pairs_of(Y: Rows, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs (place in the batch, label) of these documents."""
    counts = Y.start[rows + 1] - Y.start[rows]
    documents = np.repeat(np.arange(len(rows)), counts)
    offsets = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    labels = Y.columns[np.repeat(Y.start[rows], counts) + offsets]
    return documents, labels.astype(np.int64)


def fingerprint(X: sp.csr_matrix, Y: sp.csr_matrix) -> str:
    """Return a few characters that change with the data."""
    total = 0
    for array in (X.indptr, X.indices, X.data, Y.indptr, Y.indices):
        total = crc32(np.ascontiguousarray(array).data, total)
    return f"{total:08x}"
