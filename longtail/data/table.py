"""CSV and TSV: tables whose first line names their columns.

The delimiter is the one that makes columns with known names, or that gives every row of the
beginning the cells of the first one, if that looks like names. A cell in quotes may hold line
breaks and delimiters. `columns.py` says which column is what; a cell of labels is a JSON array
(`["beer", "wine"]`), or several labels with one separator between them, which LabelSpace finds.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from longtail.data.columns import (
    Columns,
    choose_columns,
    columns_like,
    find_labels,
    find_text,
    tell_apart,
)
from longtail.data.labels import find_fault
from longtail.data.source import (
    MAX_LINE,
    Source,
    drop_packed,
    name_json_type,
    parse_json,
)
from longtail.errors import DataError
from longtail.reading import ReadOptions

DELIMITERS = "\t,;|"
TABLE_ENDINGS = (".csv", ".tsv")
LONGEST_NAME = 40  # letters of a column's name that nobody knows
_SAMPLED = 500  # rows

Lines = tuple[int, list[str]]  # the number of the first one, and all of them

# The line where a document stands, its text, its labels (a list, a cell to be split, or None where
# there are none or they are not wanted), its id where there is a column of them, and all its cells
# by name where they are kept.
Document = tuple[int, str, list[Any] | str | None, str | None, dict[str, Any] | None]


@dataclass(frozen=True)
class Opened:
    """A source whose columns are chosen, ready to be read.

    Attributes:
        batches: the documents. Where one is a line, a batch is what has come so far: whoever writes
            to us may wait for the answer. Other formats are one batch.
        columns: which column is what; None where there are none.
        has_cells: whether labels may be cells to be split, and not only lists.
    """

    batches: Iterator[Iterator[Document]]
    columns: Columns | None = None
    has_cells: bool = False


@dataclass(frozen=True)
class TableHead:
    """What the beginning of a table says: its delimiter, its names, and its first rows."""

    delimiter: str
    names: list[str]
    rows: list[list[str]]

    @property
    def is_even(self) -> bool:
        """Whether every row has the cells of the header."""
        return all(len(row) == len(self.names) for row in self.rows)

    @property
    def looks_named(self) -> bool:
        """Whether the first line can be names rather than a sentence or values."""
        names = [name.strip() for name in self.names]
        return (
            len(set(names)) == len(names)
            and all(map(_is_name, names))
            # In a sentence a blank follows the comma.
            and not any(name.startswith(" ") for name in self.names)
        )

    def repeats_its_first_line(self) -> bool:
        """Whether a value of the first line comes again in its column, so that it names nothing."""
        return any(
            name in {row[i] for row in self.rows if i < len(row)}
            for i, name in enumerate(self.names)
            if name
        )

    def sample(self) -> dict[str, list[str]]:
        """Return the values of each column in the first rows."""
        even = [row for row in self.rows[:_SAMPLED] if len(row) == len(self.names)]
        return {name: [row[i] for row in even] for i, name in enumerate(self.names)}


def find_table(source: Source, options: ReadOptions) -> TableHead | None:
    """Return the beginning of a table, or None if the source is none."""
    given, like = options.delimiter, columns_like(options)
    marks = given or dict.fromkeys((like.delimiter or "") + DELIMITERS)
    heads = [head for mark in marks if (head := _parse_head(source, mark))]
    is_called_table = _ending(source.path) in TABLE_ENDINGS or options.format in ("csv", "tsv")
    if given is not None or options.names_columns or is_called_table:
        return _best(heads)
    alike = [h for h in heads if len(h.names) > 1 and like.stand_in(map(str.strip, h.names))]
    if alike:
        return _best(alike)
    # With text alone, only where a sentence cannot be meant.
    known = [head for head in heads if find_text(head.names)]
    known = [head for head in known if find_labels(head.names) or head.delimiter == "\t"]
    if known:
        return _best(known)
    even = [h for h in heads if len(h.names) > 1 and h.rows and h.is_even and h.looks_named]
    return _best(even)


def _best(heads: list[TableHead]) -> TableHead | None:
    """Return the head whose delimiter explains most: known names, then even rows, then columns."""

    def explains(head: TableHead) -> tuple[bool, bool, bool, int]:
        has_text, has_labels = bool(find_text(head.names)), bool(find_labels(head.names))
        return has_text and has_labels, has_text, head.is_even, len(head.names)

    return max(heads, key=explains, default=None)


def _ending(path: Path) -> str:
    return Path(drop_packed(path.name.lower())).suffix


def _is_name(cell: str) -> bool:
    return (
        bool(re.search(r"[^\W\d]", cell))
        and len(cell) <= LONGEST_NAME
        and len(cell.split()) <= 4
        and cell[-1] not in ".!?:"
    )


def _parse_head(source: Source, delimiter: str) -> TableHead | None:
    """Split the beginning of a source into cells; its last row may be cut and is left out."""
    text = source.head.decode(errors="replace").lstrip()
    rows: list[list[str]] = []
    # Whatever is wrong with a later row, reading will say.
    with suppress(csv.Error):
        reader = csv.reader((f"{line}\n" for line in text.split("\n")), delimiter=delimiter)
        rows.extend(row for row in reader if row and row != [""])
    if not source.is_whole and len(rows) > 1:
        rows.pop()
    return TableHead(delimiter, rows[0], rows[1:]) if rows else None


class TableReader:
    """Reads the rows of a table whose columns are chosen.

    Attributes:
        names: all columns, in their order.
        columns: which of them is what.
        space: nothing that this reader knows of; others have one.
    """

    has_cells = True
    space: Any = None

    def __init__(
        self, path: Path, options: ReadOptions, columns: Columns, names: list[str], delimiter: str
    ) -> None:
        """Read these columns."""
        self.path, self.options, self.columns = path, options, columns
        self.names, self.delimiter = names, delimiter

    def read(self, lines: Iterable[tuple[int, str]]) -> Iterator[Document]:
        """Yield the documents of lines that begin and end with whole rows."""
        texts = [self.names.index(name) for name in self.columns.text]
        kept = tell_apart(self.names)
        label_column, id_column = (
            None if name is None else self.names.index(name)
            for name in (self.columns.labels, self.columns.id)
        )
        for number, row in _csv_rows(self.path, lines, self.delimiter):
            if len(row) != len(self.names):
                raise DataError(
                    f"{len(row)} cells, but the header has {len(self.names)} columns; "
                    "put quotes around a cell that holds the delimiter",
                    path=self.path,
                    line=number,
                )
            text = " ".join([cell for column in texts if (cell := row[column])])
            cell = "" if label_column is None else row[label_column]
            yield (
                number,
                text,
                parse_cell(cell, self.path, number, self.options),
                None if id_column is None else row[id_column],
                dict(zip(kept, row, strict=True)) if self.options.keep else None,
            )


def open_csv(source: Source, options: ReadOptions, *, labels: bool) -> Opened:
    """Choose the columns of a table and begin to read its rows."""
    reader, lines = begin_table(source, options, labels=labels)
    return Opened(iter([reader.read(lines)]), reader.columns, has_cells=True)


def begin_table(
    source: Source, options: ReadOptions, *, labels: bool
) -> tuple[TableReader, "TableLines"]:
    """Choose the columns of a table; return its reader, and the lines below the header."""
    head = find_table(source, options) or _parse_head(source, options.delimiter or ",")
    if head is None:
        raise DataError("the first line must name the columns", path=source.path)
    # A line end in a quoted cell belongs to the text, whatever its kind.
    lines = TableLines(source.lines(exact=True), source.path)
    names = [name.strip() for name in next(_csv_rows(source.path, lines, head.delimiter))[1]]
    is_alike = columns_like(options).stand_in(names)
    is_known = bool(find_text(names)) or options.names_columns or is_alike
    if not is_known and (not head.looks_named or head.repeats_its_first_line()):
        first = head.delimiter.join(names)
        raise DataError(
            f"the first line must name the columns; got '{first:.60}'; put a line such as "
            f"text{head.delimiter}labels in front, or say --format text if each line is a document",
            path=source.path,
            line=1,
        )
    columns = choose_columns(names, head.sample, options, source.path, labels=labels)
    columns = replace(columns, delimiter=head.delimiter)
    return TableReader(source.path, options, columns, names, head.delimiter), lines


class TableLines(Iterator[tuple[int, str]]):
    """The lines of a table with their numbers, one at a time or in blocks."""

    def __init__(self, blocks: Iterator[Lines], path: Path) -> None:
        """Take blocks of lines."""
        self._blocks, self._path = blocks, path
        self._block: Iterator[tuple[int, str]] = iter(())

    def __next__(self) -> tuple[int, str]:
        """Return the next line."""
        while (line := next(self._block, None)) is None:
            number, lines = next(self._blocks)
            self._block = enumerate(lines, number)
        return line

    def whole_rows(self, delimiter: str, at_once: int) -> Iterator[Lines]:
        """Yield what has not been read yet, in blocks that end where a row does.

        What has at most `at_once` blocks is one.
        """
        rest = list(self._block)
        begun = [(rest[0][0], [line for _, line in rest])] if rest else []
        begun += islice(self._blocks, at_once)
        more = next(self._blocks, None)
        if more is not None:
            blocks = chain(begun, [more], self._blocks)
            yield from _cut_at_rows(blocks, delimiter, self._path)
        elif begun:
            yield begun[0][0], [line for _, lines in begun for line in lines]


def _cut_at_rows(blocks: Iterable[Lines], delimiter: str, path: Path) -> Iterator[Lines]:
    from longtail.data.table_kernel import ROW, follow_rows  # for large tables only

    first, waiting, state, n_letters = 1, list[str](), ROW, 0
    for number, lines in blocks:
        if not waiting:
            first = number
        text = "\n".join(lines) + "\n"
        letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        n_whole, state = follow_rows(letters, ord(delimiter), state)
        if n_whole:
            yield first, waiting + lines[:n_whole]
            first, waiting, n_letters = number + n_whole, lines[n_whole:], 0
        else:
            waiting += lines
            n_letters += len(letters)
        if n_letters > MAX_LINE:
            raise DataError(
                f"the row is longer than {MAX_LINE >> 20} MiB; a quote may be missing",
                path=path,
                line=first,
            )
    if waiting:
        yield first, waiting


def _csv_rows(
    path: Path, lines: Iterable[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not blank."""
    lines = iter(lines)
    begin = next(lines, None)
    if begin is None:
        return
    feed = (f"{line}\n" for _, line in chain([begin], lines))
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    # The module's limit is 128 KiB a cell and global, so it is lifted only while rows are parsed.
    while True:
        number = begin[0] + reader.line_num
        limit = csv.field_size_limit(MAX_LINE)
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"not a readable table row ({error}); a quote inside a quoted cell is doubled",
                path=path,
                line=number,
            ) from None
        finally:
            csv.field_size_limit(limit)
        if row is None:
            return
        if row:
            yield number, row


def parse_cell(cell: str, path: Path | None, line: int, options: ReadOptions) -> str | list[Any]:
    """Return the labels of a cell that is a JSON array, or the cell, to be split later."""
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")) or options.separator is not None:
        return cell
    labels = list(parse_json(cell, path, line))
    check_labels(labels, path, line)
    return labels


def check_labels(labels: Iterable[Any], path: Path | None, line: int) -> None:
    """Raise a DataError for the first label out of JSON that cannot be one."""
    for label in labels:
        fault = find_fault(label) if type(label) in (str, int) else name_json_type(label)
        if fault is not None:
            raise DataError(f"a label must be a string; got {fault}", path=path, line=line)


def spell_id(id: Any) -> str:
    """Return an id as text, an empty one where it is missing."""
    return id if type(id) is str else "" if id is None else str(id)


def join_texts(parts: Sequence[Any]) -> str:
    """Join the parts of a text by blanks; what is missing or empty is left out."""
    return " ".join(str(part) for part in parts if part not in (None, ""))
