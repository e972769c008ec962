"""Documents in a single file: its format, recognized by the first bytes.

The first line decides, but for fastText, whose documents may lack labels: there, half of the first
lines have to begin with `__label__`; and for tables, which `table.py` recognizes. The name of a
file counts only where it ends in .csv or .tsv. What could be two formats is an error that asks for
a name out of `FORMATS`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.annif import annif_documents, is_annif
from longtail.data.cell_readers import split_cells
from longtail.data.columns import Columns, find_text
from longtail.data.dataset import Dataset
from longtail.data.encoding import UTF8
from longtail.data.json_lines import STANDARD, JsonReader, NumberedLines
from longtail.data.labels import LabelRows, LabelSpace
from longtail.data.line_readers import READ_HERE, Parsed, Reader, parse_blocks
from longtail.data.parquet import begin_parquet, open_parquet
from longtail.data.sheet import open_sheet
from longtail.data.source import Source
from longtail.data.table import (
    Document,
    Lines,
    Opened,
    begin_table,
    check_labels,
    find_table,
    open_csv,
)
from longtail.errors import DataError, ParameterError, suggest
from longtail.reading import ANYTHING, ReadOptions
from longtail.runtime.mapped import TextWriter

FASTTEXT_MARK = "__label__"
BATCH = 8192  # documents
KNOWN = (
    "known are sparse rows under an 'N D L' header, JSON lines, CSV, TSV, Parquet, .xlsx, fastText "
    "and Annif's corpora, each plain or packed"
)

_JSON_ARRAY = re.compile(r"\s*+\[\s*+([\[{\]]|\Z)")
# One blank ends a label; what follows it belongs to the text.
_FASTTEXT_LABEL = re.compile(rf"\s*+{FASTTEXT_MARK}(\S*+)\s?")


class Format(StrEnum):
    """The formats of a single file; the values are what messages call them."""

    SPARSE = "sparse rows"
    MATRIX = "a matrix"
    JSON_LINES = "JSON lines"
    TABLE = "a table"
    PARQUET = "Parquet"
    SHEET = "an .xlsx file"
    FASTTEXT = "fastText"
    ANNIF = "Annif's TSV"
    PLAIN = "plain text"


FORMATS = {
    "jsonl": Format.JSON_LINES,
    "csv": Format.TABLE,
    "tsv": Format.TABLE,
    "parquet": Format.PARQUET,
    "xlsx": Format.SHEET,
    "fasttext": Format.FASTTEXT,
    "annif": Format.ANNIF,
    "sparse": Format.SPARSE,
    "matrix": Format.MATRIX,
    "text": Format.PLAIN,
}
# What a file of each format looks like, for those who have to choose or to write one.
EXAMPLES = {
    Format.JSON_LINES: '{"id": "7", "text": "…", "labels": ["a", "b"]}, an object a line',
    Format.TABLE: "columns with names in the first line; cells in quotes may hold line breaks",
    Format.PARQUET: "columns of strings; labels as strings or lists",
    Format.SHEET: "the first sheet, its columns named in the first row; needs openpyxl",
    Format.FASTTEXT: "__label__a __label__b some words",
    Format.ANNIF: "a text, a tab, and <http://…> URIs with blanks between them",
    Format.SPARSE: "N D L, then l1,l2 f:v f:v: labels and features by number",
    Format.MATRIX: "N D, then f:v f:v: rows without labels, for predict only",
    Format.PLAIN: "a document a line, without labels, for predict only",
}


@dataclass
class TextFile:
    """The documents of one file, or of several that are one split.

    There are as many ids and rows as texts, or none at all.
    """

    path: Path
    texts: list[str] | TextWriter
    labels: LabelRows
    ids: list[str] | TextWriter = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    columns: Columns | None = None
    read_as: str = ""

    def extend(self, other: "TextFile") -> None:
        """Append the documents of another file of the split; the first says if there are ids."""
        self.texts.extend(_finish(other.texts))
        if self.columns is None or self.columns.id is not None:
            self.ids.extend(_finish(other.ids))
        self.rows += other.rows
        self.labels.extend(other.labels)

    def as_dataset(
        self,
        columns: NDArray[np.int32],
        label_names: Sequence[str],
        label_uris: Mapping[str, str] | None,
    ) -> Dataset:
        """Return the documents with label number i in column columns[i]."""
        Y = self.labels.matrix(columns, len(label_names))
        return self._build(Y, label_names, label_uris)

    def without_labels(self) -> Dataset:
        """Return the documents alone."""
        return self._build(_no_labels(len(self.texts)), [], None)

    def _build(
        self, Y: sp.csr_matrix, names: Sequence[str], uris: Mapping[str, str] | None
    ) -> Dataset:
        fields = dict.fromkeys(name for row in self.rows for name in row)
        kept = {name: [row.get(name) for row in self.rows] for name in fields}
        return Dataset(
            Y,
            names,
            texts=_finish(self.texts),
            ids=_finish(self.ids) if len(self.ids) else None,
            columns=kept or None,
            label_uris=uris,
            read_as=self.read_as,
            read_columns=self.columns,
        )


_Read = tuple[TextFile, Columns | None]


def _finish(texts: list[str] | TextWriter) -> Sequence[str]:
    return texts.map() if isinstance(texts, TextWriter) else texts


# -- reading ----------------------------------------------------------------------------------


def cut_documents(dataset: Dataset, size: int = BATCH) -> Iterator[Dataset]:
    """Yield a data set in blocks of so many documents."""
    n = len(dataset)
    for start in range(0, n, size):
        yield dataset if n <= size else dataset.take(np.arange(start, min(start + size, n)))


def read_file(file: str | Path | BinaryIO, options: ReadOptions = ANYTHING) -> Iterator[Dataset]:
    """Yield batches of documents from a file or a binary stream such as `sys.stdin.buffer`.

    A batch is a Dataset without labels: texts, or rows X from a sparse file (`N D L`) or a matrix
    file (`N D`), with ids where the file has them, and with `options.keep` all its columns. What is
    in no other format is plain text, a document a line, in which an empty line is an empty
    document. Lines of a stream go out as they come in.
    """
    with Source(file, options.encoding) as source:
        form = choose_format(options.format) or recognize(source, options)
        if form in (Format.SPARSE, Format.MATRIX):
            from longtail.data.sparse import row_batches  # compiles its parser on import

            for X in row_batches(source):
                yield Dataset(_no_labels(X.shape[0]), [], X=X)
            return
        opened = open_texts(source, form, options, None)
        for documents in opened.batches:
            while batch := list(islice(documents, BATCH)):
                alone = ((line, text, None, id, row) for line, text, _, id, row in batch)
                found = collect(alone, source.path)
                found.read_as = describe_reading(form, opened.columns, source)
                yield found.without_labels()


def _no_labels(n: int) -> sp.csr_matrix:
    return sp.csr_matrix(np.empty((n, 0), np.float32))


def open_texts(
    source: Source, form: Format, options: ReadOptions, space: LabelSpace | None
) -> Opened:
    """Begin to read a file of texts; labels go into `space`, None if nobody wants any."""
    if form in _FILES:
        return _FILES[form](source, options, labels=space is not None)
    if form is Format.JSON_LINES:
        reader = JsonReader.open(source, options, space)
        batches = (reader.read(enumerate(lines, first)) for first, lines in source.lines())
        return Opened(batches, reader.columns, reader.has_cells)
    read = _LINES[form]
    batches = (read(source.path, enumerate(lines, first)) for first, lines in source.lines())
    return Opened(batches)


def read_texts(source: Source, form: Format, options: ReadOptions, space: LabelSpace) -> TextFile:
    """Read a whole file of texts with their labels."""
    file, columns = (_read_each if options.keep else _read_many)(source, form, options, space)
    file.columns = note_separator(columns, space, options)
    file.read_as = describe_reading(form, columns, source, space.said)
    return file


def _read_many(source: Source, form: Format, options: ReadOptions, space: LabelSpace) -> _Read:
    """Read on all cores, where that is known how; one document after another elsewhere."""
    if form is Format.JSON_LINES:
        reader = JsonReader.open(source, options, space)
        return _read_lines(reader, source.lines(), space)
    if form is Format.TABLE:
        table, lines = begin_table(source, options, labels=True)
        return _read_lines(table, lines.whole_rows(table.delimiter, READ_HERE), space)
    if form is Format.PARQUET:
        parquet = begin_parquet(source, options, labels=True)
        if parquet.has_lists:
            return _gather(parquet.batches(), parquet.columns, source.path, space)
        return _collect_all(parquet.documents(), parquet.columns, True, source.path, space)
    return _read_each(source, form, options, space)


def _read_each(source: Source, form: Format, options: ReadOptions, space: LabelSpace) -> _Read:
    opened = open_texts(source, form, options, space)
    documents = chain.from_iterable(opened.batches)
    return _collect_all(documents, opened.columns, opened.has_cells, source.path, space)


def _collect_all(
    documents: Iterator[Document],
    columns: Columns | None,
    has_cells: bool,
    path: Path,
    space: LabelSpace,
) -> _Read:
    if columns is not None and space.separator is None:
        space.separator = columns.separator
    return (collect_cells if has_cells else collect)(documents, path, space), columns


def _read_lines(reader: Reader, blocks: Iterable[Lines], space: LabelSpace) -> _Read:
    """Read JSON lines or rows of a table, many of them by several processes."""
    parsed = parse_blocks(reader, blocks, space)
    return _gather(parsed, reader.columns, reader.path, space, has_cells=reader.has_cells)


def _gather(
    parsed: Iterable[Parsed],
    columns: Columns,
    path: Path,
    space: LabelSpace,
    *,
    has_cells: bool = False,
) -> _Read:
    """Gather documents that come many at a time."""
    if space.separator is None:
        space.separator = columns.separator
    file, cells = _begin(path, space), space.new_cells()
    for each in parsed:
        file.texts.extend(each.texts)
        file.ids.extend(each.ids)
        cells.extend(each.cells)
        if not has_cells:
            file.labels.add_numbered(each.names, each.numbers, each.counts)
    if has_cells:
        file.labels = split_cells(space, _all_cells(cells), path)
    return file, columns


def note_separator(
    columns: Columns | None, space: LabelSpace, options: ReadOptions
) -> Columns | None:
    """Return the columns with what separates labels, if it separated any or the user said it."""
    if columns is None or columns.labels is None:
        return columns
    return replace(columns, separator=space.separator or options.separator)


def describe_reading(
    form: Format, columns: Columns | None, source: Source, labels: str = ""
) -> str:
    """Say in one line what was guessed about a file: its columns and its encoding."""
    parts = []
    if columns is not None and (form is not Format.JSON_LINES or labels or not _is_usual(columns)):
        parts.append(columns.describe(labels))
    if source.encoding != UTF8:
        parts.append(f"encoding: {source.encoding}")
    return "; ".join(parts)


def _is_usual(columns: Columns) -> bool:
    return columns.text == STANDARD.text and columns.labels in (None, STANDARD.labels)


def choose_format(name: str | None) -> Format | None:
    """Return the format of that name, and None for none."""
    if name is not None and name not in FORMATS:
        hint = suggest(name, FORMATS) or f"; there are {', '.join(FORMATS)}"
        raise ParameterError(f"no format is called '{name}'{hint}")
    return None if name is None else FORMATS[name]


def recognize(source: Source, options: ReadOptions = ANYTHING) -> Format:
    """Return the format of `source`; whatever is text but nothing else is plain text."""
    head = source.head
    if head.startswith(b"PAR1"):
        return Format.PARQUET
    if head.startswith(b"PK\x03\x04"):
        return Format.SHEET
    text = head.decode(errors="replace")
    first = text.lstrip().split("\n", 1)[0].strip()
    if first.startswith("{"):
        return Format.JSON_LINES
    if _JSON_ARRAY.match(text):
        raise DataError(
            "a JSON array; write one object a line instead (JSON lines)", path=source.path
        )
    table = find_table(source, options)
    if options.names_columns or options.delimiter is not None:
        return Format.TABLE
    fields = first.split()
    if len(fields) in (2, 3) and all(field.isascii() and field.isdigit() for field in fields):
        return Format.SPARSE if len(fields) == 3 else Format.MATRIX
    lines = [line for line in text.split("\n") if line.strip()]
    n_marked = sum(map(_is_marked, lines))
    if _is_marked(first):
        return Format.FASTTEXT
    if is_annif(lines):
        return Format.ANNIF
    if b"\0" in head and (table is None or not find_text(table.names)):
        raise DataError(f"this is a binary file; {KNOWN}", path=source.path)
    if table is not None:
        if n_marked and not table.is_even:
            raise _ambiguous(source, n_marked, len(lines), "csv")
        return Format.TABLE
    if n_marked:
        if 2 * n_marked < len(lines):
            raise _ambiguous(source, n_marked, len(lines), "text")
        return Format.FASTTEXT
    return Format.PLAIN


def refuse_plain(source: Source) -> DataError:
    """Return the error for a text file that holds no labels in any known way."""
    first = source.head.decode(errors="replace").lstrip().split("\n", 1)[0].strip()
    if _is_sparse_row(first[:2000]):
        message = "sparse rows need a first line 'N D L': how many documents, features and labels"
    else:
        message = f"the format is not recognized; {KNOWN}"
    return DataError(message, path=source.path)


def _is_sparse_row(line: str) -> bool:
    """Tell `l1,l2 f:v f:v` from other text; the last cell may be cut."""
    cells = line.split()
    pairs = [cell.partition(":") for cell in cells if ":" in cell]
    numbers = all(
        left.isdecimal() and not right.strip("0123456789+-.e") for left, _, right in pairs
    )
    return bool(pairs) and numbers and len(cells) - len(pairs) <= 2


def _is_marked(line: str) -> bool:
    """Return whether a line begins with `__label__x`."""
    begin = line.lstrip()
    rest = begin.removeprefix(FASTTEXT_MARK)
    return rest != begin and bool(rest) and not rest[0].isspace()


def _ambiguous(source: Source, n_marked: int, n_lines: int, other: str) -> DataError:
    what = {"csv": "the first line is the header of a table", "text": "most of them do not"}[other]
    return DataError(
        f"{n_marked} of the first {n_lines} lines begin with {FASTTEXT_MARK} as in fastText, but "
        f"{what}; say which it is with --format fasttext or --format {other} "
        "(in Python format=)",
        path=source.path,
    )


# -- lines of text ----------------------------------------------------------------------------


def fasttext_documents(path: Path, lines: NumberedLines) -> Iterator[Document]:
    """Yield lines of `__label__x __label__y words`; each is a document, even an empty one."""
    for number, line in lines:
        found, end = [], 0
        while label := _FASTTEXT_LABEL.match(line, end):
            found.append(label[1])
            end = label.end()
        yield number, line[end:], [label for label in found if label], None, None


def plain_documents(path: Path, lines: NumberedLines) -> Iterator[Document]:
    """Yield the lines of plain text, which have no labels."""
    for number, line in lines:
        yield number, line, None, None, None


def collect(documents: Iterable[Document], path: Path, space: LabelSpace | None = None) -> TextFile:
    """Gather the documents of a file whose labels are lists."""
    space = space or LabelSpace()
    file = _begin(path, space)
    add_text, add_labels = file.texts.append, file.labels.add
    for line, text, labels, id, row in documents:
        add_text(text)
        if id is not None:
            file.ids.append(id)
        if row is not None:
            file.rows.append(row)
        try:
            add_labels(labels or ())
        except TypeError:
            check_labels(labels or (), path, line)
            raise
    return file


def collect_cells(documents: Iterable[Document], path: Path, space: LabelSpace) -> TextFile:
    """Gather the documents of a file whose labels may be cells, to be split when all are read."""
    file = _begin(path, space)
    cells = space.new_cells()
    add_text, add_cell = file.texts.append, cells.append
    for _, text, labels, id, row in documents:
        add_text(text)
        add_cell(labels or "")
        if id is not None:
            file.ids.append(id)
        if row is not None:
            file.rows.append(row)
    file.labels = split_cells(space, _all_cells(cells), path)
    return file


def _begin(path: Path, space: LabelSpace) -> TextFile:
    ids = space.new_texts()
    return TextFile(path, space.new_texts(), space.new_rows(space.numbering), ids)


def _all_cells(cells: Any) -> Sequence[str | list[Any]]:
    found: Sequence[str | list[Any]] = cells if isinstance(cells, list) else cells.map()
    return found


def read_parallel(texts: Source, labels: Source, space: LabelSpace) -> TextFile:
    """Read a file of texts and a file of labels, line by line the same documents.

    The labels of a line are split as LabelSpace says.
    """
    lines, cells = space.new_texts(), space.new_cells()
    for _, block in texts.lines():
        lines.extend(block)
    for _, block in labels.lines():
        cells.extend(block)
    found = _all_cells(cells)
    if len(found) != len(lines):
        raise DataError(
            f"{len(lines)} lines of texts, but {len(found)} lines of labels in "
            f"{labels.path}; line n of both must be the same document",
            path=texts.path,
        )
    rows = split_cells(space, found, labels.path, in_doubt=" ")
    return TextFile(texts.path, lines, rows, read_as=f"labels {space.said}" if space.said else "")


_FILES: dict[Format, Callable[..., Opened]] = {
    Format.TABLE: open_csv,
    Format.PARQUET: open_parquet,
    Format.SHEET: open_sheet,
}
_LINES: dict[Format, Callable[[Path, NumberedLines], Iterator[Document]]] = {
    Format.FASTTEXT: fasttext_documents,
    Format.ANNIF: annif_documents,
    Format.PLAIN: plain_documents,
}
