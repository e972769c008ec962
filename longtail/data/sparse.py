"""Feature rows as text: the sparse files of the extreme classification repository.

A sparse file has the header `N D L` and then a line for each document, `l1,l2 f:v f:v`: label ids,
then feature ids with their values. A matrix file has the header `N D` and lines of `f:v` alone.
Ids count from 0. A feature named twice in a row counts with the sum of its values, a label named
twice counts once, and a feature or label of value 0 is left out.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import sparse_kernel as kernel
from longtail.data.labels import MAX_FEATURES, MAX_LABELS, NO_LABELS
from longtail.data.source import Source
from longtail.errors import DataError
from longtail.runtime.mapped import MatrixWriter


class _Growing:
    """An array that is filled block by block and moves no more than it must (realloc)."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = dtype
        self._array: NDArray[Any] = np.empty(0, dtype)
        self._n = 0

    def room(self, n: int) -> NDArray[Any]:
        """Return the next `n` cells, to be filled."""
        if self._n + n > len(self._array):
            self._array.resize(max(self._n + n, len(self._array) * 5 // 4), refcheck=False)
        return self._array[self._n : self._n + n]

    def keep(self, n: int) -> None:
        """Count the next `n` cells as filled."""
        self._n += n

    def take(self) -> NDArray[Any]:
        """Return what was filled, and start again with nothing."""
        array = self._array
        array.resize(self._n, refcheck=False)
        self._array, self._n = np.empty(0, self._dtype), 0
        return array


class _Rows:
    """The rows read so far of one sparse or matrix file."""

    def __init__(self, source: Source, header: tuple[int, ...], what: str) -> None:
        self.source, self.what = source, what
        self.n_rows, self.n_features = header[:2]
        self.n_labels = header[2] if len(header) == 3 else -1
        self.n_read = 0
        self.features, self.values = _Growing(np.int32), _Growing(np.float32)
        self.labels = _Growing(np.int32)
        self.label_counts, self.feature_counts = _Growing(np.int32), _Growing(np.int32)

    def add(self, block: bytes, first_line: int) -> None:
        """Parse one block of whole lines that starts at line `first_line` of the file."""
        n_rows = min(block.count(b"\n"), self.n_rows - self.n_read)
        n_cells = block.count(b":")
        label_counts, feature_counts = (
            self.label_counts.room(n_rows),
            self.feature_counts.room(n_rows),
        )
        status, position = kernel.parse_rows(
            np.frombuffer(block, np.uint8),
            self.n_labels,
            self.n_features,
            self.labels.room(block.count(b",") + n_rows if self.n_labels >= 0 else 0),
            self.features.room(n_cells),
            self.values.room(n_cells),
            label_counts,
            feature_counts,
        )
        if status != kernel.OK:
            self._fail(status, block, position, first_line)
        if block[position:].strip():
            raise DataError(
                f"the header says {self.n_rows} rows, but here is one more",
                path=self.source.path,
                line=first_line + block.count(b"\n", 0, position),
            )
        n_cells = int(feature_counts.sum(dtype=np.int64))
        self.labels.keep(int(label_counts.sum(dtype=np.int64)))
        self.features.keep(n_cells)
        self.values.keep(n_cells)
        self.label_counts.keep(n_rows)
        self.feature_counts.keep(n_rows)
        self.n_read += n_rows

    def feature_matrix(self) -> sp.csr_matrix:
        """Return the features as a canonical CSR matrix."""
        return canonical_csr(
            self.values.take(),
            self.features.take(),
            self.feature_counts.take(),
            self.n_features,
        )

    def label_matrix(self) -> sp.csr_matrix:
        """Return the labels as a canonical CSR matrix of ones."""
        labels = self.labels.take()
        ones = np.ones(len(labels), np.float32)
        return ones_where_positive(
            canonical_csr(ones, labels, self.label_counts.take(), self.n_labels)
        )

    def _fail(self, status: int, block: bytes, position: int, first_line: int) -> NoReturn:
        token = block[position : position + 40].decode(errors="replace")
        got = token.replace(",", " ") if status in kernel.LABEL_FAULTS else token
        got = (got.split() or [""])[0] if got[:1].strip() else ""
        line = first_line + block.count(b"\n", 0, position)
        message = {
            kernel.BAD_LABEL: f"'{got}' is not a label id; a row is 'l1,l2 f:v f:v'",
            kernel.LABEL_RANGE: f"label id {got} is outside 0 to {self.n_labels - 1}, the range "
            f"that the header gives ({self.n_labels} labels)",
            kernel.BAD_FEATURE: f"'{got}' is not a {self.what} 'id:value'",
            kernel.FEATURE_RANGE: f"{self.what} id {got.partition(':')[0]} is outside 0 to "
            f"{self.n_features - 1}, the range that the header gives "
            f"({self.n_features} {self.what}s)",
            kernel.BAD_VALUE: f"'{got}' has no number after the colon",
            kernel.NOT_FINITE: f"'{got}' is not a finite number; leave the {self.what} out "
            "or give it a value",
        }[status]
        raise DataError(message, path=self.source.path, line=line)


def read_sparse(
    source: Source, what: str = "feature"
) -> tuple[sp.csr_matrix, sp.csr_matrix | None]:
    """Read a sparse file into X and Y, or a matrix file into X and None.

    `what` is what messages call the columns of a matrix file.
    """
    *_, rows = _grow(source, what)
    return rows.feature_matrix(), rows.label_matrix() if rows.n_labels >= 0 else None


def row_batches(source: Source) -> Iterator[sp.csr_matrix]:
    """Yield the feature rows of a sparse or matrix file, a block of the file at a time."""
    for rows in _grow(source):
        rows.labels.take()
        rows.label_counts.take()
        batch = rows.feature_matrix()
        if batch.shape[0]:
            yield batch


def labelled_batches(source: Source) -> Iterator[tuple[sp.csr_matrix, sp.csr_matrix]]:
    """Yield the feature rows and the labels of a sparse file, a block of the file at a time."""
    for rows in _grow(source):
        if rows.n_labels < 0:
            raise DataError(NO_LABELS, path=source.path)
        yield rows.feature_matrix(), rows.label_matrix()


def write_sparse(source: Source) -> tuple[sp.csr_matrix, sp.csr_matrix | None]:
    """Do as `read_sparse` does for a matrix file, into files; no rows of one that has labels."""
    X, has_labels = MatrixWriter(), False
    for rows in _grow(source):
        has_labels = rows.n_labels >= 0
        if has_labels:
            break
        X.add(rows.feature_matrix())
    matrix = X.map()
    return matrix, matrix if has_labels else None


def _grow(source: Source, what: str = "feature") -> Iterator[_Rows]:
    """Yield the rows after each block; the file is checked as a whole after the last one."""
    blocks = source.blocks()
    header, _, first = next(blocks).partition(b"\n")
    rows = _Rows(source, _read_header(source, header), what)
    number = 2
    for block in chain([first], blocks):
        if block:
            rows.add(block, number)
            number += block.count(b"\n")
        yield rows
    if rows.n_read < rows.n_rows:
        raise DataError(
            f"the header says {rows.n_rows} rows, but {rows.n_read} follow",
            path=source.path,
            line=1,
        )


def read_label_matrix(source: Source) -> sp.csr_matrix:
    """Read a matrix file of labels (`trn_X_Y.txt`) into a matrix of ones."""
    Y, extra = read_sparse(source, "label")
    if extra is not None:
        raise DataError(
            "the header has three numbers; a label matrix starts with 'N L'",
            path=source.path,
            line=1,
        )
    if Y.shape[1] > MAX_LABELS:
        _refuse_header(source, "labels", Y.shape[1], MAX_LABELS)
    return ones_where_positive(Y)


def canonical_csr(
    values: NDArray[np.float32],
    indices: NDArray[np.int32],
    counts: NDArray[np.int32],
    n_columns: int,
) -> sp.csr_matrix:
    """Build a CSR matrix with sorted, unique indices and no stored zeros."""
    indptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=indptr[1:])
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    matrix = sp.csr_matrix((values, indices, indptr), shape=(len(counts), n_columns))
    matrix.sum_duplicates()
    if not matrix.data.all():
        matrix.eliminate_zeros()
    return matrix


def ones_where_positive(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Turn a canonical matrix into ones wherever it is above zero, in place."""
    if len(matrix.data) and matrix.data.min() <= 0:
        matrix.data[matrix.data < 0] = 0
        matrix.eliminate_zeros()
    matrix.data.fill(1)
    return matrix


def _read_header(source: Source, line: bytes) -> tuple[int, ...]:
    fields = line.removeprefix(b"\xef\xbb\xbf").split()
    if len(fields) not in (2, 3) or not all(field.isdigit() for field in fields):
        raise DataError(
            f"the header must be 'N D L' (documents, features, labels) or 'N D'; "
            f"got '{line[:40].decode(errors='replace').strip()}'",
            path=source.path,
            line=1,
        )
    header = tuple(int(field[:20]) for field in fields)
    if header[1] > MAX_FEATURES:
        _refuse_header(source, "features", header[1], MAX_FEATURES)
    if len(header) == 3 and header[2] > MAX_LABELS:
        _refuse_header(source, "labels", header[2], MAX_LABELS)
    return header


def _refuse_header(source: Source, what: str, got: int, most: int) -> NoReturn:
    raise DataError(
        f"the header says {got} {what}; at most {most} are possible", path=source.path, line=1
    )
