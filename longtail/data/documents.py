"""Documents in a single file: its format, recognized by the first bytes and never by the name.

The first line decides, but for fastText, whose documents may lack labels: there, half of the first
lines have to begin with `__label__`. What could be two formats is an error that asks for a name out
of `FORMATS`.

JSON lines may name their fields in several ways, as tables do (`table.py`). A field that is null is
empty.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import scipy.sparse as sp

from longtail.data.labels import LabelRows, LabelSpace, find_fault
from longtail.data.parquet import parquet_documents
from longtail.data.source import Source, name_json_type, parse_object
from longtail.data.table import (
    TEXT_FIELD,
    Document,
    choose_label_field,
    choose_text_fields,
    csv_documents,
    find_delimiter,
    find_text_delimiter,
    label_error,
)
from longtail.errors import DataError, ParameterError, suggest

FASTTEXT_MARK = "__label__"
BATCH = 8192  # documents
KNOWN = (
    "known are sparse rows under an 'N D L' header, JSON lines, CSV, TSV, Parquet "
    "and fastText, each plain or gzipped"
)


NumberedLines = Iterable[tuple[int, str]]

# One blank ends a label; what follows it belongs to the text.
_FASTTEXT_LABEL = re.compile(rf"\s*+{FASTTEXT_MARK}(\S*+)\s?")


class Format(StrEnum):
    """The formats of a single file; the values are what messages call them."""

    SPARSE = "sparse rows"
    MATRIX = "a matrix"
    JSON_LINES = "JSON lines"
    TABLE = "a table"
    PARQUET = "Parquet"
    FASTTEXT = "fastText"
    PLAIN = "plain text"


FORMATS = {
    "jsonl": Format.JSON_LINES,
    "csv": Format.TABLE,
    "tsv": Format.TABLE,
    "parquet": Format.PARQUET,
    "fasttext": Format.FASTTEXT,
    "sparse": Format.SPARSE,
    "matrix": Format.MATRIX,
    "text": Format.PLAIN,
}


@dataclass
class TextFile:
    """The documents of one file."""

    path: Path
    texts: list[str]
    labels: LabelRows


# -- reading ----------------------------------------------------------------------------------


def read_documents(
    file: str | Path | BinaryIO, format: str | None = None
) -> Iterator[list[str] | sp.csr_matrix]:
    """Yield batches of documents from a file or a binary stream such as `sys.stdin.buffer`.

    A batch is a list of texts, or rows X from a sparse file (`N D L`) or a matrix file (`N D`).
    Labels may be absent and are not looked at. What is in no other format is plain text, a document
    a line, in which an empty line is an empty document. Lines of a stream go out as they come in.
    `format` is one of `FORMATS`; without it the format is recognized.
    """
    named = choose_format(format)
    with Source(file) as source:
        form = named or recognize(source)
        if form in (Format.SPARSE, Format.MATRIX):
            from longtail.data.sparse import row_batches  # compiles its parser on import

            yield from row_batches(source)
            return
        for documents in text_batches(source, form, labels=False):
            texts = (text for _, text, _ in documents)
            while batch := list(islice(texts, BATCH)):
                yield batch


def text_batches(
    source: Source, form: Format, *, labels: bool = True
) -> Iterator[Iterator[Document]]:
    """Yield the documents of a file of texts; without `labels` there need not be any.

    Where a document is a line, a batch is what has come so far: whoever writes to us may wait
    for the answer. Other formats are one batch.
    """
    if form in _FILES:
        yield _FILES[form](source, labels=labels)
        return
    for first, lines in source.lines():
        yield _LINES[form](source.path, enumerate(lines, first), labels=labels)


def read_texts(source: Source, form: Format, space: LabelSpace) -> TextFile:
    """Read a whole file of texts with their labels."""
    gather = collect_cells if form in (Format.TABLE, Format.PARQUET) else collect
    return gather(chain.from_iterable(text_batches(source, form)), source.path, space)


def choose_format(name: str | None) -> Format | None:
    """Return the format of that name, and None for none."""
    if name is not None and name not in FORMATS:
        hint = suggest(name, FORMATS) or f"; there are {', '.join(FORMATS)}"
        raise ParameterError(f"no format is called '{name}'{hint}")
    return None if name is None else FORMATS[name]


def recognize(source: Source) -> Format:
    """Return the format of `source`; whatever is text but nothing else is plain text."""
    head = source.head
    if head.startswith(b"PAR1"):
        return Format.PARQUET
    text = head.decode(errors="replace")
    first = text.lstrip().split("\n", 1)[0].strip()
    fields = first.split()
    if len(fields) in (2, 3) and all(field.isascii() and field.isdigit() for field in fields):
        return Format.SPARSE if len(fields) == 3 else Format.MATRIX
    if first.startswith("{"):
        return Format.JSON_LINES
    lines = [line for line in text.split("\n") if line.strip()]
    n_marked = sum(map(_is_marked, lines))
    if _is_marked(first):
        return Format.FASTTEXT
    if _is_table(first, source):
        if n_marked and not _rows_fit(text, first):
            raise _ambiguous(source, n_marked, len(lines), "csv")
        return Format.TABLE
    if n_marked:
        if 2 * n_marked < len(lines):
            raise _ambiguous(source, n_marked, len(lines), "text")
        return Format.FASTTEXT
    if b"\0" in head:
        raise DataError(f"this is a binary file; {KNOWN}", path=source.path)
    return Format.PLAIN


def refuse_plain(source: Source) -> DataError:
    """Return the error for a text file that holds no labels in any known way."""
    first = source.head.decode(errors="replace").lstrip().split("\n", 1)[0].strip()
    if _is_sparse_row(first[:2000]):
        message = "sparse rows need a first line 'N D L': how many documents, features and labels"
    elif first.startswith("["):
        message = "a JSON array; write one object a line instead (JSON lines)"
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


def _is_table(header: str, source: Source) -> bool:
    """A header with text and labels; with text alone only where a sentence cannot be meant."""
    if find_delimiter(header):
        return True
    named = source.path.name.removesuffix(".gz").endswith((".csv", ".tsv"))
    return (named or "\t" in header) and find_text_delimiter(header) is not None


def _rows_fit(head: str, header: str) -> bool:
    """Return whether the rows at the start of a table all have the cells of its header."""
    delimiter = find_delimiter(header) or find_text_delimiter(header) or ","
    lines = [f"{line}\n" for line in head.lstrip().split("\n")]
    widths: list[int] = []
    # The end of the head may cut a row; whatever else is wrong, reading will say.
    with suppress(csv.Error):
        widths.extend(map(len, csv.reader(lines[:-1], delimiter=delimiter, strict=True)))
    return len({width for width in widths if width}) < 2


def _ambiguous(source: Source, n_marked: int, n_lines: int, other: str) -> DataError:
    what = {"csv": "the first line is the header of a table", "text": "most of them do not"}[other]
    return DataError(
        f"{n_marked} of the first {n_lines} lines begin with {FASTTEXT_MARK} as in fastText, but "
        f"{what}; say which it is with --format fasttext or --format {other} "
        "(of `longtail predict` and `longtail data convert`)",
        path=source.path,
    )


# -- lines of text ----------------------------------------------------------------------------


def json_documents(path: Path, lines: NumberedLines, *, labels: bool) -> Iterator[Document]:
    """Yield the documents of JSON objects, one a line."""
    for number, line in lines:
        if not line or line.isspace():
            continue
        document = parse_object(line, path, number)
        text = document.get(TEXT_FIELD)
        if type(text) is not str:
            text = _join_text(document, path, number)
        found = document.get("labels") if labels else None
        if labels and type(found) is not list:
            found = _other_labels(document, path, number)
        yield number, text, found


def fasttext_documents(path: Path, lines: NumberedLines, *, labels: bool) -> Iterator[Document]:
    """Yield lines of `__label__x __label__y words`; each is a document, even an empty one."""
    for number, line in lines:
        found, end = [], 0
        while label := _FASTTEXT_LABEL.match(line, end):
            found.append(label[1])
            end = label.end()
        yield number, line[end:], [label for label in found if label]


def plain_documents(path: Path, lines: NumberedLines, *, labels: bool) -> Iterator[Document]:
    """Yield the lines of plain text, which have no labels."""
    for number, line in lines:
        yield number, line, None


def collect(documents: Iterable[Document], path: Path, space: LabelSpace) -> TextFile:
    """Gather the documents of a file whose labels are lists."""
    file = TextFile(path, [], LabelRows(space.numbering))
    for line, text, labels in documents:
        file.texts.append(text)
        try:
            file.labels.add(labels or ())
        except TypeError:
            wrong = next(label for label in labels or () if _is_wrong(label))
            raise label_error(wrong, path, line) from None
    return file


def collect_cells(documents: Iterable[Document], path: Path, space: LabelSpace) -> TextFile:
    """Gather the documents of a file whose labels may be cells, to be split when all are read."""
    texts: list[str] = []
    cells: list[str | list[Any]] = []
    for _, text, labels in documents:
        texts.append(text)
        cells.append(labels or "")
    return TextFile(path, texts, space.split_cells(cells, path))


def read_parallel(texts: Source, labels: Source, space: LabelSpace) -> TextFile:
    """Read a file of texts and a file of labels, line by line the same documents.

    The labels of a line are split as LabelSpace says.
    """
    lines = [line for _, block in texts.lines() for line in block]
    cells = [line for _, block in labels.lines() for line in block]
    if len(cells) != len(lines):
        raise DataError(
            f"{len(lines)} lines of texts, but {len(cells)} lines of labels in "
            f"{labels.path}; line n of both must be the same document",
            path=texts.path,
        )
    return TextFile(texts.path, lines, space.split_cells(cells, labels.path))


def _join_text(document: dict[str, Any], path: Path, line: int) -> str:
    fields = choose_text_fields(document)
    if not fields:
        raise DataError(
            f'no "text" in the object, only {_name_keys(document)}; '
            'a document is {"text": "…", "labels": ["…"]}',
            path=path,
            line=line,
        )
    parts = [document[name] for name in fields]
    for name, value in zip(fields, parts, strict=True):
        if not isinstance(value, str | None):
            raise DataError(
                f'"{name}" must be a string; got {name_json_type(value)}', path=path, line=line
            )
    return " ".join(filter(None, parts))


def _other_labels(document: dict[str, Any], path: Path, line: int) -> list[Any]:
    name = choose_label_field(document)
    if name is None:
        raise DataError(
            f'no "labels" in the object, only {_name_keys(document)}; '
            'a document is {"text": "…", "labels": ["…"]}',
            path=path,
            line=line,
        )
    labels = document[name]
    if not isinstance(labels, list | None):
        raise DataError(
            f'"{name}" must be a list such as ["beer", "wine"]; got {name_json_type(labels)}',
            path=path,
            line=line,
        )
    return labels or []


def _is_wrong(label: Any) -> bool:
    return type(label) not in (str, int) or find_fault(label) is not None


def _name_keys(document: dict[str, Any]) -> str:
    keys = ", ".join(f'"{key:.20}"' for key in list(document)[:5])
    return keys or "nothing"


_FILES = {Format.TABLE: csv_documents, Format.PARQUET: parquet_documents}
_LINES = {
    Format.JSON_LINES: json_documents,
    Format.FASTTEXT: fasttext_documents,
    Format.PLAIN: plain_documents,
}
