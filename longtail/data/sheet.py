"""Sheets of spreadsheet programs: the first sheet of an .xlsx file, whose first row names columns.

openpyxl reads them, which `longtail[xlsx]` installs. An .xlsx file is a zip archive, so what it
unpacks to is bounded as that of other packed files is.
"""

import io
import warnings
import zipfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from longtail.data.columns import Columns, choose_columns, tell_apart
from longtail.data.parquet import SAMPLED, as_cell
from longtail.data.source import Source, check_unpacked
from longtail.data.table import Document, Opened, join_texts, spell_id
from longtail.errors import DataError, MissingExtraError
from longtail.reading import ReadOptions

_Row = tuple[Any, ...]


def open_sheet(source: Source, options: ReadOptions, *, labels: bool) -> Opened:
    """Choose the columns of the first sheet and begin to read its rows."""
    rows = _read_rows(source)
    names = ["" if cell is None else str(cell).strip() for cell in next(rows, ())]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise DataError("the first row of the first sheet must name the columns", path=source.path)
    first = list(islice(rows, SAMPLED))

    def sample() -> dict[str, list[Any]]:
        return {name: [_cell(row, i) for row in first] for i, name in enumerate(names)}

    columns = choose_columns(names, sample, options, source.path, labels=labels)
    documents = _documents(source.path, chain(first, rows), names, columns, options)
    return Opened(iter([documents]), columns, has_cells=True)


def _documents(
    path: Path, rows: Iterator[_Row], names: list[str], columns: Columns, options: ReadOptions
) -> Iterator[Document]:
    texts = [names.index(name) for name in columns.text]
    kept = tell_apart(names)
    for number, row in enumerate(rows, 2):
        values = [_cell(row, i) for i in range(len(names))]
        if all(value is None for value in values):
            continue
        label = values[names.index(columns.labels)] if columns.labels else None
        id = values[names.index(columns.id)] if columns.id else None
        yield (
            number,
            join_texts([values[i] for i in texts]),
            as_cell(label, path, number, options),
            spell_id(id) if columns.id else None,
            dict(zip(kept, values, strict=True)) if options.keep else None,
        )


def _cell(row: _Row, column: int) -> Any:
    """Return the value of a cell; whole numbers that a sheet holds as 3.0 are 3."""
    value = row[column] if column < len(row) else None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_rows(source: Source) -> Iterator[_Row]:
    try:
        import openpyxl
    except ImportError:
        raise MissingExtraError(
            "reading .xlsx files needs openpyxl: pip install openpyxl, or save the sheet as CSV"
        ) from None
    file = source.seekable()
    packed = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
            if not any(name.startswith("xl/") for name in archive.namelist()):
                raise DataError(
                    "a zip archive, but no .xlsx file; unpack it first", path=source.path
                )
        check_unpacked(unpacked, packed, source.path)
        with warnings.catch_warnings():  # about styles and validations that nobody needs here
            warnings.simplefilter("ignore")
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # what a file says of its size may be wrong, and hide rows
        yield from sheet.iter_rows(values_only=True)
    except DataError:
        raise
    except Exception as error:  # openpyxl lets through whatever broken XML makes its code raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"not a readable .xlsx file ({reason:.200})", path=source.path) from None
