"""Rows: a sparse matrix as three plain arrays that compiled code can walk, saved and loaded."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple
from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.mapped import BLOCK, build_csr, room_for
from longtail.runtime.parallel import in_threads
from longtail.runtime.quantized import MOST_CODE, find_units, round_digits
from longtail.runtime.schema import LARGEST_FLOAT, LARGEST_WEIGHT, Schema, floats, indices
from longtail.runtime.store import Files
from longtail.runtime.varint import decode_starts, decode_steps, encode, steps

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
    values = room_for(matrix, np.float32)
    _scale_into(view_rows(matrix), values)
    return build_csr(values, matrix.indices, matrix.indptr, matrix.shape)


def join_rows(parts: Sequence[sp.csr_matrix], shape: tuple[int, int]) -> sp.csr_matrix:
    """Return the rows of all parts, one part behind the other, copied by all threads."""
    borders = np.cumsum([0, *(part.nnz for part in parts)])
    columns, values = np.empty(borders[-1], np.int32), np.empty(borders[-1], np.float32)

    def copy(part: sp.csr_matrix, first: int) -> None:
        columns[first : first + part.nnz] = part.indices
        values[first : first + part.nnz] = part.data

    in_threads(copy, list(zip(parts, borders.tolist(), strict=False)))
    lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.indptr) for part in parts)])
    return build_csr(values, columns, np.cumsum(lengths, dtype=np.int64), shape)


def scale_rows(rows: Rows) -> Rows:
    """Return the rows with every one of length 1, rows of zeros left as they are."""
    values = np.empty_like(rows.values)
    _scale_into(rows, values)
    return Rows(rows.start, rows.columns, values)


@njit(nogil=True, cache=True)
def _scale_into(rows: Rows, values: NDArray[np.float32]) -> None:
    for i in range(len(rows.start) - 1):
        squares = 0.0
        for cell in range(rows.start[i], rows.start[i + 1]):
            squares += np.float64(rows.values[cell]) ** 2
        scale = 1 / np.sqrt(squares) if squares > 0 else 1.0
        for cell in range(rows.start[i], rows.start[i + 1]):
            values[cell] = rows.values[cell] * scale


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


def add_matrix(files: Files, name: str, matrix: sp.csr_matrix, *, rounded: bool = False) -> None:
    """Add a sparse matrix to a model's files: columns as distances, values as they are.

    Values of `round_values` take one byte each; a matrix of ones is saved without any.
    """
    matrix = matrix if matrix.has_sorted_indices else matrix.sorted_indices()
    rows = view_rows(matrix)
    files.arrays[f"{name}.lengths"] = encode(np.diff(rows.start))
    files.arrays[f"{name}.columns"] = encode(steps(rows.columns, rows.start))
    if rounded:
        files.arrays[f"{name}.codes"], files.arrays[f"{name}.unit"] = code_values(rows)
    elif (rows.values != 1).any():
        files.arrays[f"{name}.values"] = rows.values


def describe_matrix(
    name: str, n_rows: str, least: float = -LARGEST_WEIGHT, *, rounded: bool = False
) -> Schema:
    """Return the schema of what `add_matrix` adds; no value is below `least`.

    `take_matrix` checks what the arrays hold together.
    """
    n_entries = f"{name}.n_entries"
    arrays = {
        f"{name}.lengths": indices(f"{name}.n_lengths", into=256, dtypes=(np.uint8,)),
        f"{name}.columns": indices(f"{name}.n_columns", into=256, dtypes=(np.uint8,)),
    }
    if not rounded:
        values = floats(n_entries, least=least, empty=True, optional=True)
        return Schema(arrays={**arrays, f"{name}.values": values})
    lowest = 0 if least >= 0 else -MOST_CODE
    codes = floats(n_entries, least=lowest, most=MOST_CODE, dtypes=(np.int8,), empty=True)
    unit = floats(n_rows, least=0, most=LARGEST_FLOAT, empty=True)  # rows as users have them
    return Schema(arrays={**arrays, f"{name}.unit": unit, f"{name}.codes": codes})


def take_matrix(files: Files, name: str, n_rows: int, n_columns: int) -> sp.csr_matrix:
    """Return what `add_matrix` saved; raise ValueError if it does not fit together."""
    lengths, stored = files.arrays[f"{name}.lengths"], files.arrays[f"{name}.columns"]
    start = decode_starts(lengths, n_rows, len(stored), f"{name}.lengths")
    columns = decode_steps(stored, start, n_columns - 1, f"{name}.columns")
    if f"{name}.codes" in files.arrays:
        values = files.arrays[f"{name}.codes"]
        unit = np.repeat(files.arrays[f"{name}.unit"], np.diff(start))
        values = values * unit if len(values) == len(unit) else values
    else:
        values = files.arrays.get(f"{name}.values", np.ones(len(columns), np.float32))
    if len(values) != len(columns):
        raise ValueError(f"{name} has {len(values)} values for {len(columns)} columns")
    shape = (n_rows, n_columns)
    return sp.csr_matrix((values, columns, start), shape=shape)


def round_values(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the matrix with values that are multiples of about 1/127 of their row's largest."""
    rows = view_rows(matrix)
    codes, unit = code_values(rows)
    values = codes * np.repeat(unit, np.diff(rows.start))
    return sp.csr_matrix((values, matrix.indices, rows.start), matrix.shape)


def code_values(rows: Rows) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the values in units of their row, and these units, with which rows keep their length.

    Of values that `round_values` has returned, nothing is lost.
    """
    lengths = np.diff(rows.start)
    filled = np.flatnonzero(lengths)
    unit = np.zeros(len(lengths), np.float32)
    if not len(filled):
        return np.empty(0, np.int8), unit
    start = rows.start[filled]
    unit[filled] = find_units(np.maximum.reduceat(np.abs(rows.values), start))
    codes = np.rint(rows.values / np.where(unit > 0, unit, 1).repeat(lengths))
    own, coded = (
        np.add.reduceat(np.square(numbers, dtype=np.float64), start)
        for numbers in (rows.values, codes)
    )
    unit[filled] = round_digits(np.sqrt(own / np.maximum(coded, 1)), np.rint)
    return codes.astype(np.int8), unit


# -- before a model learns ----------------------------------------------------------------------


def weigh_features(X: sp.csr_matrix) -> NDArray[np.float32]:
    """Return log(n/df) + 1 of each feature if X holds counts; other values are weights already."""
    blocks = [slice(first, first + BLOCK) for first in range(0, X.nnz, BLOCK)]
    if any((X.data[some] != np.round(X.data[some])).any() for some in blocks):
        return np.ones(X.shape[1], np.float32)
    held = np.zeros(X.shape[1], np.int64)
    for some in blocks:
        held += np.bincount(X.indices[some][X.data[some] != 0], minlength=X.shape[1])
    return (np.log((1 + X.shape[0]) / (1 + held)) + 1).astype(np.float32)


def weigh_rows(X: sp.csr_matrix, weights: NDArray[np.float32], normalize: bool) -> sp.csr_matrix:
    """Return X with every feature multiplied by its weight, then with rows of length 1 if asked."""
    values = room_for(X, np.float32)
    for first in range(0, X.nnz, BLOCK):
        some = slice(first, first + BLOCK)
        values[some] = X.data[some] * weights[X.indices[some]]
    weighed = copy(X)  # which shares what is not replaced, and takes no time
    weighed.data = values
    if normalize:
        _scale_into(view_rows(weighed), values)
    return weighed


def hold_out(
    n_documents: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the documents at random: return those to train on, then the share held out."""
    order = np.random.default_rng(seed).permutation(n_documents)
    n_held = min(round(share * n_documents), n_documents - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])


@njit(nogil=True, cache=True)
def pairs_of(Y: Rows, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs (place in the batch, label) of these documents."""
    n_pairs = 0
    for row in rows:
        n_pairs += Y.start[row + 1] - Y.start[row]
    documents, labels = np.empty(n_pairs, np.int64), np.empty(n_pairs, np.int64)
    at = 0
    for place in range(len(rows)):
        for cell in range(Y.start[rows[place]], Y.start[rows[place] + 1]):
            documents[at], labels[at] = place, Y.columns[cell]
            at += 1
    return documents, labels


def fingerprint(X: sp.csr_matrix, Y: sp.csr_matrix) -> str:
    """Return a few characters that change with the data."""
    total = 0
    for array in (X.indptr, X.indices, X.data, Y.indptr, Y.indices):
        total = crc32(np.ascontiguousarray(array).data, total)
    return f"{total:08x}"
