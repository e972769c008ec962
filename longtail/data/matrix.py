"""Sparse matrices from outside: their arrays are checked before compiled code sees them.

scipy checks `indices` and `indptr` only when it builds a matrix, and not all of it: a matrix whose
arrays were changed afterwards makes it read and write outside of them. Everything here compares and
never subtracts, as differences of large numbers wrap.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError

_Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
_Cells = tuple[Any, Any, Any]  # rows, columns and values
Shape = tuple[int, int]
_MANY_ROWS = 10_000_000
# What an object raises whose attributes are missing or of the wrong kind.
_BROKEN = (AttributeError, TypeError, ValueError, LookupError, OverflowError)


def as_csr(matrix: Any, name: str) -> sp.csr_matrix:
    """Return any sparse or dense matrix as canonical CSR float32; the input stays as it is.

    Raises a DataError for one that cannot be: `name` is what the message calls it.
    """
    try:
        return _as_csr(matrix, name)
    except _BROKEN as error:
        raise DataError(f"{name} is not a sound matrix ({error})") from None


def _as_csr(matrix: Any, name: str) -> sp.csr_matrix:
    return _from_sparse(matrix, name) if sp.issparse(matrix) else _from_dense(matrix, name)


def _from_sparse(matrix: Any, name: str) -> sp.csr_matrix:
    # Read once: a property may answer otherwise the next time.
    shape = tuple(matrix.shape)
    if len(shape) != 2:
        raise DataError(f"{name} has {len(shape)} dimensions; it must have 2: a row a document")
    if matrix.format == "csr":
        rows = _from_csr(matrix, shape, name)
        if _is_same(rows, matrix):
            rows = matrix
    elif matrix.format == "csc":
        data, indices, indptr = _compressed(matrix, shape[::-1], name)
        _check_height(shape[0], len(data), name)
        rows = sp.csc_matrix((data, indices, indptr), shape=shape).tocsr()
    else:
        rows = _from_coordinates(matrix, shape, name)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _from_dense(matrix: Any, name: str) -> sp.csr_matrix:
    if np.ma.isMaskedArray(matrix):
        raise DataError(f"{name} is a masked array; fill it first (matrix.filled(0))")
    values = np.asarray(matrix)
    if values.ndim != 2:
        raise DataError(f"{name} has {values.ndim} dimensions; it must have 2: a row a document")
    return sp.csr_matrix(_as_float32(values, name))


def _from_csr(matrix: Any, shape: Shape, name: str) -> sp.csr_matrix:
    data, indices, indptr = _compressed(matrix, shape, name)
    return sp.csr_matrix((data, indices, indptr), shape=shape)


def _is_same(rows: sp.csr_matrix, matrix: Any) -> bool:
    """Return whether a matrix is what its checked copy `rows` is, so that it can be kept."""
    return (
        type(matrix) is sp.csr_matrix
        and matrix.dtype == np.float32
        and len(rows.indices) == len(matrix.indices) == len(matrix.data)
        and rows.indices.dtype == matrix.indices.dtype == matrix.indptr.dtype
        and bool(rows.has_canonical_format)
    )


def _compressed(matrix: Any, shape: Shape, name: str) -> _Arrays:
    """Return the checked data, indices and indptr of a CSR matrix, or of a CSC one turned over."""
    data = _as_float32(np.asarray(matrix.data), name)
    if data.ndim != 1:
        raise DataError(f"{name} has values in {data.ndim} dimensions; they must be in one")
    indices, indptr = _check_compressed(matrix, shape, len(data), name)
    # Cells after the last row belong to none.
    return data[: indptr[-1]], indices[: indptr[-1]], indptr


def _check_compressed(
    matrix: Any, shape: Shape, n_values: int, name: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the indices and indptr of a matrix of `n_values` cells, or blocks of cells."""
    n_rows, n_columns = shape
    indptr, indices = _as_index(matrix.indptr, name), _as_index(matrix.indices, name)
    if indptr.shape != (n_rows + 1,) or indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise DataError(
            f"{name} has a broken indptr: it must hold {n_rows + 1} numbers that rise from 0, "
            "where each row begins and where the last one ends"
        )
    if int(indptr[-1]) > min(len(indices), n_values):
        raise DataError(
            f"{name} has a broken indptr: it ends at {indptr[-1]}, but there are {len(indices)} "
            f"indices and {n_values} values"
        )
    _check_range(indices[: indptr[-1]], n_columns, name)
    return indices, indptr


def _from_coordinates(matrix: Any, shape: Shape, name: str) -> sp.csr_matrix:
    """Build rows from a matrix of any other format, of each value its row and its column."""
    rows, columns, values = _COORDINATES.get(matrix.format, _coordinates)(matrix, shape, name)
    row, column = _as_index(rows, name), _as_index(columns, name)
    data = _as_float32(np.asarray(values), name)
    if not row.shape == column.shape == data.shape:
        raise DataError(
            f"{name} has {len(row)} rows for {len(column)} columns of {len(data)} cells"
        )
    _check_range(row, shape[0], name)
    _check_range(column, shape[1], name)
    _check_height(shape[0], len(data), name)
    return sp.coo_matrix((data, (row, column)), shape=shape).tocsr()


def _coordinates(matrix: Any, shape: Shape, name: str) -> _Cells:
    cells = matrix if matrix.format == "coo" else matrix.tocoo()
    return cells.row, cells.col, cells.data


def _coordinates_of_blocks(matrix: Any, shape: Shape, name: str) -> _Cells:
    n_blocks, height, width = np.asarray(matrix.data).shape
    blocks = (shape[0] // height, shape[1] // width)
    _check_compressed(matrix, blocks, n_blocks, name)
    return _coordinates(matrix, shape, name)


def _coordinates_of_diagonals(matrix: Any, shape: Shape, name: str) -> _Cells:
    data, offsets = np.asarray(matrix.data), _as_index(matrix.offsets, name)
    if data.ndim != 2 or len(data) != len(offsets):
        raise DataError(f"{name} has {len(data)} diagonals in {len(offsets)} places")
    column = np.broadcast_to(np.arange(data.shape[1], dtype=np.int64), data.shape)
    row = column - offsets.astype(np.int64)[:, None]
    inside = (row >= 0) & (row < shape[0]) & (column < shape[1]) & (data != 0)
    return row[inside], column[inside], data[inside]


def _coordinates_of_lists(matrix: Any, shape: Shape, name: str) -> _Cells:
    lengths = [len(row) for row in matrix.rows]
    if [len(row) for row in matrix.data] != lengths:
        raise DataError(f"{name} has rows with another number of values than of columns")
    row = np.repeat(np.arange(len(lengths)), lengths)
    columns = [column for each in matrix.rows for column in each]
    values = [value for each in matrix.data for value in each]
    return row, columns or np.empty(0, int), values or np.empty(0)


_COORDINATES = {
    "bsr": _coordinates_of_blocks,
    "dia": _coordinates_of_diagonals,
    "lil": _coordinates_of_lists,
}


def _check_height(n_rows: int, n_cells: int, name: str) -> None:
    """Refuse a matrix of few values that would take memory for very many rows."""
    if n_rows > max(_MANY_ROWS, 1000 * n_cells):
        raise DataError(f"{name} has {n_rows} rows, but only {n_cells} values")


def _as_index(array: Any, name: str) -> NDArray[Any]:
    index = np.asarray(array)
    if index.dtype.kind not in "iu" or index.ndim != 1:
        raise DataError(
            f"{name} has indices of the type {index.dtype} in {index.ndim} dimensions; "
            "they must be whole numbers in one"
        )
    return index


def _check_range(index: NDArray[Any], n: int, name: str) -> None:
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n:
        wrong = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise DataError(f"{name} has the index {wrong}, outside 0 to {n - 1}")


def _as_float32(values: NDArray[Any], name: str) -> NDArray[np.float32]:
    if values.dtype.kind == "c":
        raise DataError(f"{name} holds complex numbers; it must hold real ones")
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name} holds values of the type {values.dtype}; it must hold numbers")
    with np.errstate(over="ignore"):  # a value too large for float32 is reported as infinite
        return values.astype(np.float32, copy=False)
