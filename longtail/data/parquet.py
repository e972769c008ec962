"""Parquet: a column of texts, and one of labels as strings or lists.

The reader is pyarrow's. A few bytes of Parquet can stand for gigabytes: pages are packed, and
dictionaries and run lengths say a value once for many rows. So before a column is decoded its pages
are counted, by their own headers (the summary at the end of the file may lie); dictionaries are
expanded only after their result has been measured. What comes out meets the bound of gzip files
(`check_unpacked`). The headers are parsed here, as pyarrow shows only the summary, and ends the
process when that is damaged.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.data.columns import Columns, choose_columns
from longtail.data.labels import find_fault
from longtail.data.line_readers import Parsed
from longtail.data.source import Source, check_unpacked
from longtail.data.table import Document, Opened, join_texts, parse_cell, spell_id
from longtail.errors import DataError
from longtail.reading import ReadOptions
from longtail.runtime.mapped import Texts

BATCH = 1 << 12  # rows
SAMPLED = 500  # rows that tell which column is what
BATCH_BYTES = 1 << 28  # that dictionaries of plain columns can expand to
VALUE_BYTES = 16  # what a value takes at least, even one that is absent
_HEADER = 1 << 12  # bytes in which nearly every page header fits
_LONGEST_HEADER = 1 << 24
_DEEPEST = 16  # structs within structs; the summary has seven
_DAMAGED = "a header is damaged"


class _Pages(NamedTuple):
    """What the pages of some columns hold, as their headers say."""

    unpacked: int
    n_values: int
    largest_dictionary: int


class _Bound:
    """The bytes that a file has given so far."""

    def __init__(self, packed: int, path: Path) -> None:
        self.packed, self.path, self.unpacked = packed, path, 0

    def add(self, n_bytes: int) -> None:
        self.unpacked += n_bytes
        check_unpacked(self.unpacked, self.packed, self.path)


def open_parquet(source: Source, options: ReadOptions, *, labels: bool) -> Opened:
    """Choose the columns of a Parquet file and begin to read its rows."""
    reader = begin_parquet(source, options, labels=labels)
    return Opened(iter([reader.documents()]), reader.columns, has_cells=True)


def begin_parquet(source: Source, options: ReadOptions, *, labels: bool) -> "ParquetReader":
    """Choose the columns of a Parquet file."""
    # pyarrow takes a fifth of a second to import, and few need it.
    import pyarrow.parquet as pq

    with _readable(source.path):
        file = source.seekable()
        bound = _Bound(file.seek(0, io.SEEK_END), source.path)
        schema = pq.ParquetFile(file).schema_arrow

        def sample() -> dict[str, list[Any]]:
            told = [field.name for field in schema if _can_tell(field.type)]
            first = next(_read_batches(file, told, bound, SAMPLED), None)
            return {} if first is None else _as_lists(first[1], told, bound)

        columns = choose_columns(schema.names, sample, options, source.path, labels=labels)
        _check_types(schema, columns, source.path)
        if options.keep:
            _check_kept(schema, source.path)
    return ParquetReader(file, schema, columns, bound, options)


class ParquetReader:
    """Reads the rows of a Parquet file whose columns are chosen."""

    def __init__(
        self, file: BinaryIO, schema: Any, columns: Columns, bound: _Bound, options: ReadOptions
    ) -> None:
        """Read these columns."""
        self.columns, self.options = columns, options
        self._file, self._schema, self._bound = file, schema, bound
        self._chosen = [each for each in (*columns.text, columns.labels, columns.id) if each]

    @property
    def has_lists(self) -> bool:
        """Whether labels are lists of strings, so that no cell is to be split."""
        label = self.columns.labels
        held = None if label is None else self._schema.field(label).type
        return held is not None and _is_list(held) and _is_string(held.value_type)

    def documents(self) -> Iterator[Document]:
        """Yield one document after another."""
        bound, options = self._bound, self.options
        chosen = self._schema.names if options.keep else self._chosen
        with _readable(bound.path):
            for number, batch in _read_batches(self._file, chosen, bound, BATCH):
                values = _as_lists(batch, chosen, bound)
                yield from _join(values, number, self.columns, bound.path, options)

    def batches(self) -> Iterator[Parsed]:
        """Yield many documents at a time, where labels are lists: no string is made of any text."""
        bound, columns = self._bound, self.columns
        with _readable(bound.path):
            for number, batch in _read_batches(self._file, self._chosen, bound, BATCH):
                texts = [_as_texts(batch.column(name), bound) for name in columns.text]
                ids = [] if columns.id is None else _as_texts(batch.column(columns.id), bound)
                labels = _number_labels(batch.column(columns.labels), bound, number)
                joined = texts[0] if len(texts) == 1 else _join_all(texts)
                yield Parsed(joined, ids, [], *labels)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises into one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"not a readable Parquet file ({reason:.200})", path=path) from None


def _join(
    values: dict[str, list[Any]], first: int, columns: Columns, path: Path, options: ReadOptions
) -> Iterator[Document]:
    """Make documents of the columns of a batch."""
    n = len(next(iter(values.values())))
    texts = zip(*(values[name] for name in columns.text), strict=True)
    cells = values[columns.labels] if columns.labels else [None] * n
    ids = values[columns.id] if columns.id else [None] * n
    for i, (parts, cell, id) in enumerate(zip(texts, cells, ids, strict=True)):
        yield (
            first + i,
            join_texts(parts),
            as_cell(cell, path, first + i, options),
            spell_id(id) if columns.id else None,
            {name: column[i] for name, column in values.items()} if options.keep else None,
        )


def as_cell(cell: Any, path: Path | None, line: int, options: ReadOptions) -> list[Any] | str:
    """Return what a column of labels holds for a document: a list, or a cell to be split."""
    if isinstance(cell, str):
        return parse_cell(cell, path, line, options)
    if isinstance(cell, list):
        return [label for label in cell if label not in (None, "")]
    return [] if cell is None else [cell]


def _read_batches(
    file: BinaryIO, columns: list[str], bound: "_Bound", most: int
) -> Iterator[tuple[int, Any]]:
    """Yield some columns, some rows at a time, and the number of the first row."""
    import pyarrow.parquet as pq

    # In lists the longest value times all rows says little, so dictionaries stay as they are.
    leaves = _find_leaves(pq.ParquetFile(file).schema, columns)
    nested = [path for path in leaves.values() if "." in path]
    table = pq.ParquetFile(file, read_dictionary=nested)
    pages = _count_pages(file, leaves)
    check_unpacked(pages.unpacked + VALUE_BYTES * pages.n_values, bound.packed, bound.path)
    n_rows = min(max(BATCH_BYTES // max(pages.largest_dictionary, 1), 1), most)
    number = 1
    for batch in _batches(table, columns, n_rows):
        batch.validate()
        yield number, batch
        number += len(batch)


def _batches(table: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    """Yield batches that cross no row groups: pyarrow cannot join the dictionaries of lists."""
    for group in range(table.metadata.num_row_groups):
        yield from table.iter_batches(n_rows, row_groups=[group], columns=columns)


def _check_types(schema: Any, columns: Columns, path: Path) -> None:
    """Refuse columns that hold something else than strings, or for labels lists of them."""
    import pyarrow as pa

    for name in columns.text:
        held = schema.field(name).type
        if not _is_string(held):
            raise DataError(f"the column '{name}' must hold strings; it holds {held}", path=path)
    for name in filter(None, (columns.labels, columns.id)):
        held = schema.field(name).type
        if name == columns.labels and _is_list(held):
            if not (_is_string(held.value_type) or pa.types.is_integer(held.value_type)):
                raise DataError(
                    f"the lists of the column '{name}' must hold strings, not {held.value_type}",
                    path=path,
                )
        elif not (_is_string(held) or pa.types.is_integer(held)):
            raise DataError(f"the column '{name}' must hold strings; it holds {held}", path=path)


def _check_kept(schema: Any, path: Path) -> None:
    """Refuse to keep columns of structs: what they expand to cannot be measured before."""
    import pyarrow as pa

    for field in schema:
        held = field.type.value_type if _is_list(field.type) else field.type
        if pa.types.is_nested(held):
            raise DataError(
                f"the column '{field.name}' holds {held} and cannot be kept; leave out --keep",
                path=path,
            )


def _can_tell(held: Any) -> bool:
    """Return whether the values of a column can be told for texts or labels."""
    return _is_string(held) or (_is_list(held) and _is_string(held.value_type))


def _is_list(held: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(held) or pa.types.is_large_list(held))


def _is_string(held: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(held):
        held = held.value_type
    return bool(pa.types.is_string(held) or pa.types.is_large_string(held))


def _expand(column: Any, bound: _Bound) -> Any:
    """Return a column of plain values; a dictionary's result is measured before it is made."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bound.add(VALUE_BYTES * len(column))
    if pa.types.is_dictionary(column.type) and _is_string(column.type):
        # Taking the lengths also checks that the indices are within the dictionary.
        lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
        bound.add(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0)
        column = column.dictionary_decode()
    else:
        bound.add(column.nbytes)
    column.validate(full=True)  # that strings are UTF-8
    return column


def _as_lists(batch: Any, columns: Sequence[str], bound: _Bound) -> dict[str, list[Any]]:
    return {name: _values(batch.column(name), bound) for name in columns}


def _values(column: Any, bound: _Bound) -> list[Any]:
    """Return the values of a column, lists among them, as Python knows them."""
    if not _is_list(column.type):
        return list(_expand(column, bound).to_pylist())
    bound.add(VALUE_BYTES * len(column))
    values = _expand(column.flatten(), bound).to_pylist()
    ends = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).cumsum().tolist()
    starts = [0, *ends[:-1]]
    return [values[start:end] for start, end in zip(starts, ends, strict=True)]


def _as_texts(column: Any, bound: _Bound) -> Sequence[str]:
    """Return a column of strings, or of numbers, without a string for each; none where absent."""
    if not _is_string(column.type):
        return [spell_id(each) for each in _values(column, bound)]
    import pyarrow as pa

    strings = _expand(column, bound).fill_null("").cast(pa.large_string())
    _, start, letters = strings.buffers()
    n = strings.offset + len(strings)
    bounds = np.frombuffer(start, np.int64)[strings.offset : n + 1]
    held = np.frombuffer(letters or b"", np.uint8)[bounds[0] : bounds[-1]]
    return Texts(held, bounds - bounds[0])


def _join_all(columns: Sequence[Sequence[str]]) -> list[str]:
    return [join_texts(parts) for parts in zip(*columns, strict=True)]


def _number_labels(
    column: Any, bound: _Bound, first: int
) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32]]:
    """Return the labels of lists, each once, then all as places among these, and how many each has.

    `first` is the number of the first row, for errors.
    """
    import pyarrow.compute as pc

    bound.add(VALUE_BYTES * len(column))
    strings = _expand(column.flatten(), bound)
    is_label = pc.fill_null(pc.not_equal(strings, ""), False).to_numpy(zero_copy_only=False)
    ends = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).cumsum()
    n_labels = np.concatenate(([0], np.cumsum(is_label)))
    counts = np.diff(n_labels[ends], prepend=0).astype(np.int32)
    found = strings.filter(is_label).dictionary_encode()
    names, numbers = found.dictionary.to_pylist(), found.indices.to_numpy(zero_copy_only=False)
    for i, name in enumerate(names):
        if (fault := find_fault(name)) is not None:
            place = int(np.argmax(numbers == i))
            row = first + int(np.searchsorted(np.cumsum(counts), place, side="right"))
            raise DataError(
                f"document {row}: a label must be a string; got {fault}", path=bound.path
            )
    return names, numbers.astype(np.int32), counts


# -- pages ----------------------------------------------------------------------------------------


def _find_leaves(schema: Any, columns: list[str]) -> dict[int, str]:
    """Return the numbers and paths of the stored columns that make up `columns`."""
    paths = ((i, schema.column(i).path) for i in range(len(schema)))
    # A name may hold a dot itself.
    begins = tuple(f"{name}." for name in columns)
    return {i: path for i, path in paths if f"{path}.".startswith(begins)}


def _count_pages(file: BinaryIO, leaves: dict[int, str]) -> _Pages:
    """Walk over the pages of stored columns, without unpacking any; ValueError means damage."""
    unpacked, n_values, largest = 0, 0, 0
    for group in _take(_read_footer(file), 4, list):
        chunks = _take(group, 1, list)
        for i, path in leaves.items():
            chunk = _take(chunks[i], 3, dict)
            for page in _page_headers(file, chunk, is_nested="." in path):
                unpacked += page.unpacked
                n_values += page.n_values
                largest = max(largest, page.largest_dictionary)
    return _Pages(unpacked, n_values, largest)


def _read_footer(file: BinaryIO) -> Any:
    """Return the summary of a file: its size and `PAR1` stand behind it."""
    end = file.seek(-8, io.SEEK_END)
    size = int.from_bytes(file.read(4), "little")
    file.seek(max(end - size, 0))
    return _Thrift(file.read(min(size, end))).read_struct()


def _page_headers(file: BinaryIO, chunk: Any, *, is_nested: bool) -> Iterator[_Pages]:
    """Yield the pages of a column chunk, up to the one that holds its last value."""
    offset, n_seen = _take(chunk, 9, int), 0
    if 11 in chunk and 0 < (dictionary := _take(chunk, 11, int)) < offset:
        offset = dictionary
    end = offset + _take(chunk, 7, int)
    while n_seen < _take(chunk, 5, int) and offset < end:
        header, size = _read_header(file, offset)
        counts = [_take(header[kind], 1, int) for kind in (5, 8) if kind in header]
        n_values = max(counts, default=0)
        unpacked = _take(header, 2, int)
        if 7 in header:
            yield _Pages(unpacked, 0, 0 if is_nested else unpacked)
        else:
            yield _Pages(unpacked, n_values, 0)
            n_seen += n_values
        offset += size + _take(header, 3, int)


def _read_header(file: BinaryIO, offset: int) -> tuple[Any, int]:
    """Return the header of the page at `offset`, and its length."""
    size = _HEADER
    while size <= _LONGEST_HEADER:
        file.seek(offset)
        thrift = _Thrift(file.read(size))
        try:
            return thrift.read_struct(), thrift.position
        except IndexError:
            size *= 16
    raise ValueError(_DAMAGED)


def _take(struct: Any, number: int, kind: type[Any]) -> Any:
    """Return a field of a struct, which must be there; a number must not be negative."""
    value: Any = struct.get(number) if isinstance(struct, dict) else None
    if not isinstance(value, kind) or (isinstance(value, int) and value < 0):
        raise ValueError(_DAMAGED)
    return value


class _Thrift:
    """Reads structs of Thrift's compact protocol, in which Parquet has its headers.

    A struct becomes a dictionary from the numbers of its fields. IndexError means that it is cut.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError(_DAMAGED)
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._read_byte():
            step = kind >> 4
            number = number + step if step else self._read_signed()
            # A field that is true or false says so in its type.
            is_bool = kind & 15 in (1, 2)
            fields[number] = None if is_bool else self._read_value(kind & 15, depth)
        return fields

    def _read_value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self._read_signed()
        if kind == 9:
            return self._read_list(depth)
        if kind == 12:
            return self.read_struct(depth + 1)
        # Of one byte, of eight, or as many as it says: nobody asks for these.
        sizes = {1: 1, 2: 1, 3: 1, 7: 8}
        if kind != 8 and kind not in sizes:
            raise ValueError(_DAMAGED)
        n_bytes = self._read_unsigned() if kind == 8 else sizes[kind]
        self.position += n_bytes
        if self.position > len(self._data):
            raise IndexError("the struct is cut")
        return None

    def _read_list(self, depth: int) -> list[Any]:
        head = self._read_byte()
        n = head >> 4
        n = self._read_unsigned() if n == 15 else n
        # Every value takes a byte at least.
        if n > len(self._data):
            raise IndexError("the list is cut")
        return [self._read_value(head & 15, depth + 1) for _ in range(n)]

    def _read_byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _read_unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError(_DAMAGED)

    def _read_signed(self) -> int:
        value = self._read_unsigned()
        return (value >> 1) ^ -(value & 1)
