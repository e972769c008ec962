"""Tables with a column of text and a column of labels: CSV and TSV, and what Parquet shares.

Columns are recognized by their names, in any case: the text is the column `text`, or else those of
title, body, content, abstract and description that are there, joined by a blank; the labels are the
first of labels, label, tags, subjects, keywords, categories, topics and target_ind.

A cell of labels is a JSON array (`["beer", "wine"]`), or several labels with one separator between
them: LabelSpace says which.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longtail.data.labels import find_fault
from longtail.data.source import MAX_LINE, Source, name_json_type, parse_json
from longtail.errors import DataError

DELIMITERS = "\t,;"
TEXT_FIELD = "text"
TEXT_PARTS = ("title", "body", "content", "abstract", "description")
LABEL_FIELDS = (
    "labels",
    "label",
    "tags",
    "subjects",
    "keywords",
    "categories",
    "topics",
    "target_ind",
)

# The line where a document stands, its text, and its labels: a list, a cell to be split, or None
# where there are none or they are not wanted.
Document = tuple[int, str, list[Any] | str | None]


def choose_text_fields(names: Iterable[str]) -> list[str]:
    """Return the fields that make up the text, in the order in which they are joined."""
    present = set(names)
    return [TEXT_FIELD] if TEXT_FIELD in present else [n for n in TEXT_PARTS if n in present]


def choose_label_field(names: Iterable[str]) -> str | None:
    """Return the field that holds the labels, if there is one."""
    present = set(names)
    return next((name for name in LABEL_FIELDS if name in present), None)


def find_delimiter(header: str) -> str | None:
    """Return the delimiter that splits `header` into names with a text and a labels column."""
    for delimiter in DELIMITERS:
        names = _split_header(header, delimiter)
        if choose_text_fields(names) and choose_label_field(names):
            return delimiter
    return None


def find_text_delimiter(header: str) -> str | None:
    """Return the delimiter that splits `header` into names with a text column."""
    for delimiter in DELIMITERS:
        if choose_text_fields(_split_header(header, delimiter)):
            return delimiter
    return None


def csv_documents(source: Source, *, labels: bool = True) -> Iterator[Document]:
    """Yield the rows of a table whose first line names its columns.

    The delimiter is a tab, a comma or a semicolon.
    """
    header = source.head.lstrip().split(b"\n", 1)[0].decode(errors="replace")
    delimiter = find_delimiter(header) or find_text_delimiter(header) or ","
    rows = _csv_rows(source, delimiter)
    names = [name.strip().lower() for name in next(rows)[1]]
    text_fields, label_field = choose_columns(names, source.path, labels=labels)
    columns = [names.index(name) for name in text_fields]
    label_column = names.index(label_field) if label_field else None
    for number, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{len(row)} cells, but the header has {len(names)} columns; "
                "put quotes around a cell that holds the delimiter",
                path=source.path,
                line=number,
            )
        text = " ".join([cell for column in columns if (cell := row[column])])
        cell = "" if label_column is None else row[label_column]
        yield number, text, parse_cell(cell, source.path, number)


def _split_header(header: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([header.strip("\r\n")], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [cell.strip().lower() for cell in cells]


def choose_columns(
    names: Iterable[str], path: Path, *, labels: bool
) -> tuple[list[str], str | None]:
    """Return the columns that hold the text and the one that holds the labels, if wanted."""
    text_fields = choose_text_fields(names)
    label_field = choose_label_field(names) if labels else None
    if text_fields and (label_field or not labels):
        return text_fields, label_field
    missing = (
        f"a labels column ({', '.join(LABEL_FIELDS)})"
        if text_fields
        else f"a text column ({', '.join((TEXT_FIELD, *TEXT_PARTS))})"
    )
    got = ", ".join(f"'{name:.20}'" for name in list(names)[:8])
    raise DataError(f"{missing} is missing; the columns are {got}", path=path)


def _csv_rows(source: Source, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not blank."""
    # A line end in a quoted cell belongs to the text, whatever its kind.
    lines = (f"{line}\n" for _, block in source.lines(exact=True) for line in block)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    # The module's limit is 128 KiB a cell and global, so it is lifted only while rows are parsed.
    while True:
        limit = csv.field_size_limit(MAX_LINE)
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"not a readable table row ({error}); a quote inside a quoted cell is doubled",
                path=source.path,
                line=number,
            ) from None
        finally:
            csv.field_size_limit(limit)
        if row is None:
            return
        if row:
            yield number, row
        number = reader.line_num + 1


def parse_cell(cell: str, path: Path, line: int) -> str | list[Any]:
    """Return the labels of a cell that is a JSON array, or the cell, to be split later."""
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return cell
    labels = parse_json(cell, path, line)
    for label in labels:
        if type(label) not in (str, int) or find_fault(label):
            raise label_error(label, path, line)
    return list(labels)


def label_error(label: Any, path: Path, line: int) -> DataError:
    """Say what is wrong with a label that JSON gave."""
    got = find_fault(label) if type(label) in (str, int) else name_json_type(label)
    return DataError(f"a label must be a string; got {got}", path=path, line=line)
