"""Arrays and texts that lie in files: mapped into memory, of which only pages in use take any.

What is larger than memory is written piece by piece into files without a name, which vanish with
the process that made them, and is then mapped. Compiled code sees plain arrays.
"""

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError

BLOCK = 1 << 22  # bytes that are written, and values that are copied, at a time
# Linux would refuse a private map that is larger than memory, though nothing is ever copied.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0

_folder: Path | None = None  # where files without a name go; None for the system's choice


@contextmanager
def scratch_in(folder: Path | None) -> Iterator[None]:
    """Let files without a name go into a folder; None leaves things as they are."""
    global _folder
    before = _folder
    _folder = folder or before
    try:
        yield
    finally:
        _folder = before


def map_file(file: IO[bytes], dtype: Any, n: int) -> NDArray[Any]:
    """Return the first `n` values of a file as an array; what is written there stays in memory."""
    return _map(file, np.dtype(dtype), n, shared=False)


def _map(file: IO[bytes], dtype: np.dtype[Any], n: int, *, shared: bool) -> NDArray[Any]:
    if not n:
        return np.empty(0, dtype)
    size = n * dtype.itemsize
    if sys.platform == "win32":
        access = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
        pages = mmap.mmap(file.fileno(), size, access=access)
    else:
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | _NO_RESERVE
        pages = mmap.mmap(file.fileno(), size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.frombuffer(pages, dtype, n)


class Extent(NamedTuple):
    """How large a matrix is that does not exist, for plans; it would lie in files.

    Attributes:
        shape: its rows and columns.
        nnz: its values.
        longest: the values of its longest row.
    """

    shape: tuple[int, int]
    nnz: int
    longest: int


def is_mapped(array: Any) -> bool:
    """Return whether an array, or what a matrix holds, lies in a file."""
    if isinstance(array, Extent):
        return True
    found: Any = getattr(array, "indices", array)
    while isinstance(found, np.ndarray):
        found = found.base
    owner = found.obj if isinstance(found, memoryview) else found
    return isinstance(owner, mmap.mmap)


def as_sent(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return a matrix as another machine gets it, not mapped; nothing is copied."""
    if not is_mapped(matrix):
        return matrix
    arrays: list[Any] = [matrix.data, matrix.indices, matrix.indptr]
    values, columns, start = (np.frombuffer(each.data, each.dtype) for each in arrays)
    return build_csr(values, columns, start, matrix.shape)


def room_for(matrix: sp.csr_matrix, dtype: Any, n: int | None = None) -> NDArray[Any]:
    """Return an array to be filled, of as many values as a matrix, and in a file as that is."""
    return room(len(matrix.indices) if n is None else n, dtype, in_file=is_mapped(matrix))


def room(n: int, dtype: Any, *, in_file: bool) -> NDArray[Any]:
    """Return an array of zeros to be filled, in a file if that is asked for."""
    kind = np.dtype(dtype)
    if not in_file or not n:
        return np.zeros(n, kind)
    with _open_scratch() as file:
        _reserve(file, n * kind.itemsize)
        return _map(file, kind, n, shared=True)


def _open_scratch() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=_folder)
    except OSError as error:
        raise _no_room(error) from None


def _reserve(file: IO[bytes], size: int) -> None:
    """Make sure that the disk has room, as a mapped file without any would end the process."""
    try:
        if hasattr(os, "posix_fallocate") and size:
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    except OSError as error:
        raise _no_room(error) from None


def _no_room(error: OSError) -> DataError:
    return DataError(
        f"what is larger than memory cannot be written to disk: {error.strerror}; "
        "make room there, or let TMPDIR name a folder that has some",
        path=_folder or tempfile.gettempdir(),
    )


class ArrayWriter:
    """An array that is written piece by piece, and then mapped."""

    def __init__(self, dtype: Any) -> None:
        """Begin an empty one."""
        self.dtype = np.dtype(dtype)
        self.n = 0
        self._file = _open_scratch()
        weakref.finalize(self, self._file.close)  # where reading fails, nobody maps it

    def add(self, values: NDArray[Any] | bytes) -> None:
        """Append values, or bytes that are values."""
        if isinstance(values, bytes):
            values = np.frombuffer(values, self.dtype)
        block = np.ascontiguousarray(values, self.dtype)
        try:
            self._file.write(block.data)
        except OSError as error:
            raise _no_room(error) from None
        self.n += len(block)

    def map(self) -> NDArray[Any]:
        """Return the whole array; nothing can be added any more."""
        try:
            self._file.flush()
            return _map(self._file, self.dtype, self.n, shared=True)
        except OSError as error:
            raise _no_room(error) from None
        finally:
            self._file.close()


class WordsOfTexts(NamedTuple):
    """The words of texts, found before: those of text i are ids[start[i]:start[i + 1]].

    Attributes:
        names: the words, each once.
        start: (n + 1,) where the words of each text begin.
        ids: the words of all texts in a row, as places in `names`.
        rule: stands for what a word was at that time.
    """

    names: Sequence[str]
    start: NDArray[np.int64]
    ids: NDArray[np.int32]
    rule: str


class Texts(Sequence[str]):
    """Texts in UTF-8, one behind the other; each becomes a string when it is asked for."""

    def __init__(
        self,
        letters: NDArray[np.uint8],
        start: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        words: WordsOfTexts | None = None,
    ) -> None:
        """Text i is letters[start[i]:start[i + 1]], or that of rows[i] where `rows` are given.

        `words` are those of all texts, where they were found before.
        """
        self.letters, self.start, self.rows, self.words = letters, start, rows, words
        self._view = letters.data

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Texts":
        """Write texts into a file."""
        file = TextWriter()
        file.extend(texts)
        return file.map()

    @classmethod
    def of_sizes(cls, letters: NDArray[np.uint8], sizes: NDArray[np.int64]) -> "Texts":
        """Return texts of so many bytes each, that follow one another."""
        start = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=start[1:])
        return cls(letters, start)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.start) - 1 if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return a text, or a list of texts."""
        found = range(len(self))[index]
        return self._read(found) if isinstance(found, int) else [self._read(i) for i in found]

    def __iter__(self) -> Iterator[str]:
        """Yield all texts."""
        return map(self._read, range(len(self)))

    def as_list(self) -> list[str]:
        """Return all texts, for those that are short; many times as fast, where all are ASCII."""
        letters = self.letters
        if self.rows is not None or (len(letters) and letters.max() > 127):
            return list(self)
        whole = str(self._view, "ascii")
        return [whole[begin:end] for begin, end in pairwise(self.start.tolist())]

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of texts, as lists do."""
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __reduce__(self) -> tuple[type["Texts"], tuple[Any, ...]]:
        """Return what another machine makes the same texts of."""
        return Texts, (self.letters, self.start, self.rows)

    def __add__(self, other: Sequence[str]) -> "Texts":
        """Return these texts and others behind them."""
        return Texts.of(text for texts in (self, other) for text in texts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each text."""
        sizes: NDArray[np.int64] = np.diff(self.start)
        return sizes if self.rows is None else sizes[self.rows]

    def take(self, rows: NDArray[np.integer]) -> "Texts":
        """Return the texts `rows`, in that order, without reading them."""
        chosen = rows.astype(np.int64) if self.rows is None else self.rows[rows]
        return Texts(self.letters, self.start, chosen, self.words)

    def blocks(self, size: int) -> Iterator[list[str]]:
        """Yield the texts in lists of about `size` bytes."""
        for first, last in cut_sizes(self.sizes, size):
            yield self[first:last]

    def _read(self, i: int) -> str:
        row = i if self.rows is None else int(self.rows[i])
        try:
            part = self._view[int(self.start[row]) : int(self.start[row + 1])]
            return str(part, "utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise DataError(
                f"text {row}, counted from 0, is not UTF-8; its file was changed after it was "
                "packed. Pack the data again"
            ) from None


def in_memory(documents: list[str] | Texts | sp.csr_matrix) -> list[str] | sp.csr_matrix:
    """Return texts that lie in a file as a list, and everything else as it is."""
    return list(documents) if isinstance(documents, Texts) else documents


def encode_texts(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """Return texts in UTF-8, one behind the other, and the bytes of each."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded))


class TextWriter:
    """Texts that are written as they come, and then mapped."""

    def __init__(self) -> None:
        """Begin without texts."""
        self.letters, self._sizes = ArrayWriter(np.uint8), ArrayWriter(np.int64)
        self.n = 0
        self._waiting: list[str] = []
        self._n_letters = 0

    def __len__(self) -> int:
        """Return the number of texts so far."""
        return self.n

    def append(self, text: str) -> None:
        """Add a text."""
        self._waiting.append(text)
        self.n += 1
        self._n_letters += len(text) + 16
        if self._n_letters > BLOCK:
            self._flush()

    def extend(self, texts: Iterable[str]) -> None:
        """Add texts; those that are bytes already are copied."""
        if not isinstance(texts, Texts) or texts.rows is not None:
            for text in texts:
                self.append(text)
            return
        self._flush()
        self.letters.add(texts.letters)
        self._sizes.add(texts.sizes)
        self.n += len(texts)

    def _flush(self) -> None:
        letters, sizes = encode_texts(self._waiting)
        self.letters.add(letters)
        self._sizes.add(sizes)
        self._waiting.clear()
        self._n_letters = 0

    def map(self) -> Texts:
        """Return all texts; none can be added any more."""
        self._flush()
        return Texts.of_sizes(self.letters.map(), self._sizes.map())


class MatrixWriter:
    """A sparse matrix that is written some rows at a time, and then mapped."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._columns, self._values = ArrayWriter(np.int32), ArrayWriter(np.float32)
        self._counts = ArrayWriter(np.int64)
        self._n_columns = 0

    def add(self, matrix: sp.csr_matrix) -> None:
        """Append rows; the widest ones say how many columns there are."""
        self._columns.add(matrix.indices)
        self._values.add(matrix.data)
        self._counts.add(np.diff(matrix.indptr))
        self._n_columns = max(self._n_columns, int(matrix.shape[1]))

    def map(self) -> sp.csr_matrix:
        """Return the whole matrix; nothing can be added any more."""
        counts = self._counts.map()
        start = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        shape = (len(counts), self._n_columns)
        return build_csr(self._values.map(), self._columns.map(), start, shape)


def write_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same array in a file."""
    file = ArrayWriter(array.dtype)
    file.add(array)
    return file.map()


def write_matrix(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the same matrix in a file."""
    file = MatrixWriter()
    file.add(matrix)
    return file.map()


def build_csr(
    values: NDArray[np.float32],
    columns: NDArray[np.int32],
    start: NDArray[np.integer],
    shape: tuple[int, int],
) -> sp.csr_matrix:
    """Return a CSR matrix of these very arrays; `start` is copied where 32 bits hold it."""
    if columns.dtype != np.int32:
        return sp.csr_matrix((values, columns, start), shape=shape)
    if len(columns) < 2**31:
        start = start.astype(np.int32, copy=False)
    matrix: Any = sp.csr_matrix(([], ([], [])), shape=shape, dtype=np.float32)
    # Given to the constructor, columns would be copied where `start` needs 64 bits.
    matrix.data, matrix.indices, matrix.indptr = values, columns, start
    return cast(sp.csr_matrix, matrix)


def take_rows(matrix: sp.csr_matrix, rows: NDArray[np.integer]) -> sp.csr_matrix:
    """Return the rows `rows` of a matrix, in a file of their own if the matrix lies in one."""
    if not is_mapped(matrix):
        return matrix[rows]
    counts = np.diff(matrix.indptr)[rows].astype(np.int64)
    start = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    n = int(start[-1])
    columns, values = room_for(matrix, np.int32, n), room_for(matrix, np.float32, n)
    for first, last in cut_sizes(counts, BLOCK):
        part, cells = matrix[rows[first:last]], slice(int(start[first]), int(start[last]))
        columns[cells], values[cells] = part.indices, part.data
    return build_csr(values, columns, start, (len(rows), int(matrix.shape[1])))


def cut_sizes(sizes: NDArray[np.integer], most: int) -> list[tuple[int, int]]:
    """Cut what has these sizes into pieces of about `most`; return where each begins and ends."""
    return cut_ends(np.cumsum(sizes, dtype=np.int64), most)


def cut_ends(ends: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Do as `cut_sizes` does for what ends there."""
    if not len(ends):
        return []
    borders = np.searchsorted(ends, np.arange(most, int(ends[-1]), most)).tolist()
    return list(pairwise(sorted({0, *borders, len(ends)})))


def count_values(numbers: NDArray[np.integer], n: int) -> NDArray[np.int64]:
    """Return how often each of 0 to n - 1 occurs, without a copy of all numbers."""
    counts = np.zeros(n, np.int64)
    for first in range(0, len(numbers), BLOCK):
        counts += np.bincount(numbers[first : first + BLOCK], minlength=n)
    return counts
