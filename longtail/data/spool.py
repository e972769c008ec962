"""Reading what is larger than memory: texts, cells and labels go into files as they are read.

The readers of all formats fill lists; here are those that they fill instead.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.labels import LabelRows, LabelSpace, Numbering
from longtail.runtime.mapped import (
    BLOCK,
    ArrayWriter,
    Texts,
    TextWriter,
    build_csr,
    cut_sizes,
)

_MOST_WAITING = 1 << 18  # labels in memory
_TEXT, _LIST = "=", "["  # with which a stored cell begins


class LabelWriter(LabelRows):
    """The labels of documents as numbers, in files."""

    def __init__(self, numbering: Numbering) -> None:
        """Start without rows; new labels go into `numbering`."""
        super().__init__(numbering)
        self._all_numbers, self._all_counts = ArrayWriter(np.int32), ArrayWriter(np.int32)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._all_counts.n + len(self._counts)

    def add(self, labels: Iterable[Any]) -> None:
        """Append the labels of one document."""
        super().add(labels)
        if len(self._numbers) + len(self._counts) > _MOST_WAITING:
            self._flush()

    def add_numbered(
        self, names: Iterable[str], numbers: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> None:
        """Append the labels of documents, given as places in `names`."""
        super().add_numbered(names, numbers, counts)
        self._flush()

    def extend(self, other: LabelRows) -> None:
        """Append the rows of another file of the same numbering, which can grow no more."""
        if not isinstance(other, LabelWriter):
            super().extend(other)
            return
        self._flush()
        for mine, others in zip(self._files, other._take(), strict=True):
            for first in range(0, len(others), BLOCK):
                mine.add(others[first : first + BLOCK])

    def matrix(self, columns: NDArray[np.int32], n_columns: int) -> sp.csr_matrix:
        """Return Y, with number i in column columns[i]; no row can be added any more."""
        numbers, counts = self._take()
        start = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        indices, kept = ArrayWriter(np.int32), np.zeros(len(counts) + 1, np.int64)
        for first, last in cut_sizes(counts, BLOCK):
            cells = columns[numbers[start[first] : start[last]]]
            ones = np.ones(len(cells), np.float32)
            shape = (last - first, n_columns)
            part = sp.csr_matrix((ones, cells, start[first : last + 1] - start[first]), shape)
            part.sum_duplicates()
            indices.add(part.indices)
            kept[first + 1 : last + 1] = np.diff(part.indptr)
        ones = np.ones(indices.n, np.float32)
        return build_csr(ones, indices.map(), np.cumsum(kept), (len(counts), n_columns))

    @property
    def _files(self) -> tuple[ArrayWriter, ArrayWriter]:
        return self._all_numbers, self._all_counts

    def _flush(self) -> None:
        self._all_numbers.add(np.frombuffer(self._numbers, np.int32))
        self._all_counts.add(np.frombuffer(self._counts, np.int32))
        self._numbers, self._counts = array("i"), array("i")

    def _take(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        self._flush()
        return self._all_numbers.map(), self._all_counts.map()


class Cells(Sequence[str | list[Any]]):
    """Cells of labels in a file: each a string to be split, or a list."""

    def __init__(self, stored: Texts) -> None:
        """Take what `store_cells` returns."""
        self.stored = stored

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> str | list[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | list[Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return a cell, or several."""
        found = self.stored[index]
        return _decode(found) if isinstance(found, str) else list(map(_decode, found))

    def __iter__(self) -> Iterator[str | list[Any]]:
        """Yield all cells."""
        return map(_decode, self.stored)


def store_cells(cells: Iterable[str | list[Any]]) -> list[str]:
    """Return cells as texts, from which `Cells` makes them again."""
    return [
        _TEXT + cell if isinstance(cell, str) else json.dumps(cell, default=repr) for cell in cells
    ]


def _decode(stored: str) -> str | list[Any]:
    return stored[1:] if stored[0] == _TEXT else list(json.loads(stored))


class CellWriter:
    """Cells of labels that are written as they come."""

    def __init__(self) -> None:
        """Begin without cells."""
        self._texts = TextWriter()

    def append(self, cell: str | list[Any]) -> None:
        """Add a cell."""
        self.extend([cell])

    def extend(self, cells: Iterable[str | list[Any]]) -> None:
        """Add cells."""
        self._texts.extend(cells.stored if isinstance(cells, Cells) else store_cells(cells))

    def map(self) -> Cells:
        """Return all cells; none can be added any more."""
        return Cells(self._texts.map())


def space_in_files(separator: str | None) -> LabelSpace:
    """Return a label space whose texts, cells and labels go into files."""
    space = LabelSpace(separator)
    space.new_texts, space.new_cells, space.new_rows = TextWriter, CellWriter, LabelWriter
    return space
