"""Predictions in files: JSON lines, CSV, TSV, Parquet, .xlsx, as the name of the file says.

A document is a row with its `labels` and their `scores`; with `long`, each label is a row, with its
`rank`, `label` and `score`. Where labels have URIs, these go along as `uris` or `uri`. The
document's id goes along where there is one; so do all columns of the input where these were kept. A
column of the input that bears the name of one of ours becomes `input_NAME`. Cells of CSV, TSV and
.xlsx hold labels side by side, with a separator that no label contains, or else as a JSON array.

Batches are written as they come, and nothing of them is kept.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from longtail.data.dataset import Dataset
from longtail.errors import DataError, MissingExtraError, ParameterError, suggest
from longtail.topk import TopK
from longtail.visible import as_json, visible

WIDE = ("labels", "scores")
LONG = ("rank", "label", "score")
WIDE_URIS, LONG_URI = "uris", "uri"  # beside them, where labels have URIs
SEPARATORS = (";", "|", ",", "\t")
ROWS = 8192  # of a row group in Parquet
SHEET_ROWS = 1 << 20  # that a sheet can hold, its header among them
CELL_LETTERS = 32_767  # that one of its cells can hold

Row = dict[str, Any]


class Results(Protocol):
    """Takes predictions, batch by batch."""

    def write(self, batch: Dataset, top: TopK) -> None:
        """Write the labels of the documents of `batch`."""


def choose_results(path: Path) -> str:
    """Return the ending of `path` that says what it will hold; ParameterError for others."""
    ending = path.suffix.lower()
    if ending not in WRITERS:
        known = ", ".join(WRITERS)
        raise ParameterError(
            f"{path}: the name must say what to write: {known}. Got '{path.suffix or path.name}' "
            f"instead{suggest(ending, WRITERS)}"
        )
    if ending == ".xlsx":
        _require_openpyxl()
    return ending


@contextmanager
def open_results(
    path: Path,
    ending: str,
    label_names: Sequence[str],
    label_uris: Sequence[str | None] | None = None,
    *,
    long: bool,
) -> Iterator[Results]:
    """Open the file `path` for predictions; `ending` is one of `WRITERS`."""
    with WRITERS[ending](path, _Layout(label_names, long, label_uris)) as results:
        yield results


def make_parquet(
    results: Iterable[tuple[Dataset, TopK]],
    label_names: Sequence[str],
    label_uris: Sequence[str | None] | None = None,
    *,
    long: bool,
    n_before: int = 0,
    schema: Any = None,
    metadata: Mapping[bytes, bytes] | None = None,
) -> tuple[bytes, Any]:
    """Return predictions as the bytes of a Parquet file, and its columns.

    Args:
        results: batches of documents with their labels.
        label_names: of the model.
        label_uris: of the model.
        long: whether there is a row for each label.
        n_before: documents before the first batch, for those that have no id.
        schema: the columns, as of an earlier part of the same table; found if None.
        metadata: what to write beside the columns.
    """
    contents, layout = io.BytesIO(), _Layout(label_names, long, label_uris, n_before)
    table = _Parquet(contents, layout, schema, metadata)
    for batch, top in results:
        table.write(batch, top)
    table.close()
    return contents.getvalue(), table.schema


# -- rows -----------------------------------------------------------------------------------------


class _Layout:
    """Makes rows of predictions; counts documents, for those that have no id."""

    def __init__(
        self,
        label_names: Sequence[str],
        long: bool,
        label_uris: Sequence[str | None] | None = None,
        n_before: int = 0,
    ) -> None:
        self.label_names, self.long, self.label_uris = label_names, long, label_uris
        uris = [] if label_uris is None else [LONG_URI if long else WIDE_URIS]
        self.own = [*(LONG if long else WIDE), *uris]
        self.n_documents = n_before
        self._names: list[str] | None = None

    def rows(self, batch: Dataset, top: TopK) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
        """Yield what identifies each document, and its labels with scores and URIs."""
        given = batch.columns or {}
        kept = {self._rename(name, given): values for name, values in given.items()}
        if batch.ids is not None and "id" not in kept:
            kept = {"id": batch.ids, **kept}
        if self.long and not kept:
            first = self.n_documents + 1
            kept = {"document": range(first, first + len(top))}
        self.n_documents += len(top)
        columns = list(kept.values())
        for i, found in enumerate(top.to_list()):
            yield dict(zip(kept, (_spell(values[i]) for values in columns), strict=True)), found

    def _rename(self, name: str, given: Mapping[str, Any]) -> str:
        """Return what a column of the input is called beside our own."""
        if name not in self.own:
            return name
        while name in self.own or name in given:
            name = f"input_{name}"
        return name

    def table(self, batch: Dataset, top: TopK) -> Iterator[Row]:
        """Yield the rows of a table, whose columns are those of the first batch."""
        for known, found in self.rows(batch, top):
            self._check_columns(known)
            if self.long:
                for rank, each in enumerate(found, 1):
                    row = known | {"rank": rank, **each}
                    yield row if LONG_URI not in self.own else {**row, LONG_URI: each.get("uri")}
                continue
            row = known | {
                f"{name}s": [each[name] for each in found] for name in ("label", "score")
            }
            if WIDE_URIS in self.own:
                row[WIDE_URIS] = [each.get("uri") or "" for each in found]
            yield row

    def _check_columns(self, known: Row) -> None:
        if self._names is None:
            self._names = list(known)
        elif len(known) > len(self._names) or not known.keys() <= set(self._names):
            new = next(name for name in known if name not in self._names)
            raise DataError(
                f"the column '{new:.40}' is not among those of the first documents, which a table "
                "has for all; write a .jsonl file instead"
            )

    def continue_table(self, header: Sequence[str]) -> None:
        """Take the columns of an earlier part of the table in place of the first batch's."""
        self._names = [name for name in header if name not in self.own]

    @property
    def header(self) -> list[str]:
        """The names of all columns, once there was a row."""
        return [*(self._names or ()), *self.own]

    def find_separator(self) -> str | None:
        """Return what can stand between labels, as none of them contains it."""
        text = "\n".join([*self.label_names, *filter(None, self.label_uris or ())])
        return next((each for each in SEPARATORS if each not in text), None)


def _spell(value: Any) -> Any:
    """Return a value of the input as JSON has it: dates, decimals and the like are texts."""
    if isinstance(value, float):
        return value if value == value else None
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, dict):
        return {str(name): _spell(each) for name, each in value.items()}
    return list(map(_spell, value)) if isinstance(value, list) else str(value)


class _Cells:
    """Turns the values of a row into the cells of a sheet."""

    def __init__(self, layout: _Layout) -> None:
        self._separator = layout.find_separator()
        self._lists = () if layout.long else layout.own

    def make(self, row: Row, header: Sequence[str]) -> list[Any]:
        """Return the cells of a row: texts and numbers."""
        return [self._cell(row.get(name), name) for name in header]

    def _cell(self, value: Any, name: str) -> Any:
        if isinstance(value, list) and name in self._lists and self._separator is not None:
            return self._separator.join(map(str, value))
        if value is None:
            return ""
        plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        return value if plain else as_json(value)


# -- formats --------------------------------------------------------------------------------------


class JsonLines:
    """One JSON object a line: `{"id": …, "labels": [{"label": …, "score": …}, …]}`."""

    def __init__(self, file: TextIO, layout: _Layout) -> None:
        self._file, self._layout = file, layout

    def write(self, batch: Dataset, top: TopK) -> None:
        """Write the batch and pass it on at once: a reader may wait for it."""
        for known, found in self._layout.rows(batch, top):
            if not self._layout.long:
                self._file.write(as_json(known | {"labels": found}) + "\n")
                continue
            for rank, each in enumerate(found, 1):
                self._file.write(as_json(known | {"rank": rank, **each}) + "\n")
        self._file.flush()


def write_json_lines(
    file: TextIO,
    label_names: Sequence[str],
    label_uris: Sequence[str | None] | None = None,
    *,
    long: bool,
) -> Results:
    """Return what writes JSON lines to an open file."""
    return JsonLines(file, _Layout(label_names, long, label_uris))


class _Csv:
    """A table with a header."""

    def __init__(self, file: TextIO, layout: _Layout, delimiter: str) -> None:
        self._layout, self._cells = layout, _Cells(layout)
        self._rows = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        # A carriage return gets no quotes by itself, but cannot be read without them.
        self._quoted = csv.writer(
            file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL
        )
        self._begun = False

    def write(self, batch: Dataset, top: TopK) -> None:
        for row in self._layout.table(batch, top):
            self.begin()
            self._write(self._cells.make(row, self._layout.header))

    def begin(self) -> None:
        """Write the header, if it is not there yet."""
        if not self._begun:
            self._begun = True
            self._write(self._layout.header)

    def _write(self, cells: Sequence[Any]) -> None:
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (self._quoted if has_return else self._rows).writerow(cells)


class _Parquet:
    """A table of lists and numbers; the first documents give the types of kept columns."""

    def __init__(
        self,
        place: Path | BinaryIO,
        layout: _Layout,
        schema: Any = None,
        metadata: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._place, self._layout = place, layout
        self.schema, self._metadata = schema, metadata
        self._waiting: list[Row] = []
        self._writer: Any = None
        if schema is not None:
            layout.continue_table(schema.names)

    def write(self, batch: Dataset, top: TopK) -> None:
        self._waiting.extend(self._layout.table(batch, top))
        if len(self._waiting) >= ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            found = self.schema or _find_schema(self._waiting, self._layout)
            self.schema = found.with_metadata(self._metadata)
            self._writer = pq.ParquetWriter(self._place, self.schema)
        columns = [_make_column(self._waiting, field) for field in self.schema]
        self._writer.write_table(pa.table(columns, schema=self.schema))
        self._waiting = []

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        if self._waiting or self._writer is None:
            self.flush()
        self._writer.close()


def _find_schema(rows: Sequence[Row], layout: _Layout) -> Any:
    """Return the types of all columns; what is neither text nor number becomes JSON."""
    import pyarrow as pa

    own = {
        "labels": pa.list_(pa.string()),
        "scores": pa.list_(pa.float64()),
        "rank": pa.int32(),
        "label": pa.string(),
        "score": pa.float64(),
        "uris": pa.list_(pa.string()),
        "uri": pa.string(),
    }

    return pa.schema(
        [
            (name, own[name] if name in layout.own else _find_type([row.get(name) for row in rows]))
            for name in layout.header
        ]
    )


def _find_type(values: Sequence[Any]) -> Any:
    """Return the type of a kept column: numbers, if Parquet can hold them exactly, or texts."""
    import pyarrow as pa

    types = {type(value) for value in values} - {type(None)}
    most = max((abs(value) for value in values if type(value) is int), default=0)
    if types == {bool}:
        return pa.bool_()
    if types == {int} and most < 1 << 63:
        return pa.int64()
    return pa.float64() if types and types <= {int, float} and most <= 1 << 53 else pa.string()


def _make_column(rows: Sequence[Row], field: Any) -> Any:
    """Return the values of a column; what is not text in a column of texts is spelled out."""
    import pyarrow as pa

    values = [row.get(field.name) for row in rows]
    if field.type == pa.string():
        values = [value if isinstance(value, str | None) else as_json(value) for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise DataError(
            f"the column '{field.name:.40}' does not go on as it began, with values of type "
            f"{field.type}; write a .jsonl or .csv file instead"
        ) from None


class _Sheet:
    """The one sheet of an .xlsx file; every text is a text, even one that begins with `=`."""

    def __init__(self, path: Path, layout: _Layout) -> None:
        from openpyxl import Workbook

        self._path, self._layout, self._cells = path, layout, _Cells(layout)
        self._book = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("labels")
        self._n_rows = 0

    def write(self, batch: Dataset, top: TopK) -> None:
        for row in self._layout.table(batch, top):
            self._begin()
            self._append(self._cells.make(row, self._layout.header))

    def _begin(self) -> None:
        if not self._n_rows:
            self._append(self._layout.header)

    def _append(self, cells: Sequence[Any]) -> None:
        if self._n_rows == SHEET_ROWS:
            raise DataError(f"a sheet holds {SHEET_ROWS:,} rows at most; write a .csv file instead")
        self._sheet.append([self._cell(value) for value in cells])
        self._n_rows += 1

    def _cell(self, value: Any) -> Any:
        from openpyxl.cell import WriteOnlyCell
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

        if not isinstance(value, str):
            return value
        if len(value) > CELL_LETTERS:
            raise DataError(
                f"a cell of a sheet holds {CELL_LETTERS:,} characters at most. Got {len(value):,}; "
                "write a .csv or .parquet file instead"
            )
        cell = WriteOnlyCell(
            self._sheet, visible(value) if ILLEGAL_CHARACTERS_RE.search(value) else value
        )
        cell.data_type = "s"
        return cell

    def discard(self) -> None:
        """Let go of the rows, which lie in a temporary file until the process ends."""
        self._sheet.close()

    def close(self) -> None:
        """Write the file."""
        self._begin()
        self._book.save(self._path)


def _require_openpyxl() -> None:
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            ".xlsx files need openpyxl: pip install openpyxl; or write a .csv file"
        ) from None


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    # Half of a surrogate pair, which JSON can hold and UTF-8 cannot, stays its JSON escape.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        yield file


@contextmanager
def _open_jsonl(path: Path, layout: _Layout) -> Iterator[Results]:
    with _open_text(path) as file:
        yield JsonLines(file, layout)


@contextmanager
def _open_csv(path: Path, layout: _Layout, delimiter: str = ",") -> Iterator[Results]:
    with _open_text(path) as file:
        table = _Csv(file, layout, delimiter)
        yield table
        table.begin()


@contextmanager
def _open_tsv(path: Path, layout: _Layout) -> Iterator[Results]:
    with _open_csv(path, layout, "\t") as table:
        yield table


@contextmanager
def _open_parquet(path: Path, layout: _Layout) -> Iterator[Results]:
    table = _Parquet(path, layout)
    yield table
    table.close()


@contextmanager
def _open_sheet(path: Path, layout: _Layout) -> Iterator[Results]:
    sheet = _Sheet(path, layout)
    try:
        yield sheet
    except BaseException:
        sheet.discard()
        raise
    sheet.close()


WRITERS: Mapping[str, Callable[[Path, _Layout], Any]] = {
    ".jsonl": _open_jsonl,
    ".csv": _open_csv,
    ".tsv": _open_tsv,
    ".parquet": _open_parquet,
    ".xlsx": _open_sheet,
}
