"""Which format a file has, told from its first bytes and never from its name."""

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain

from longtail.data.documents import (
    FASTTEXT_MARK,
    Document,
    TextPart,
    collect,
    collect_cells,
    fasttext_documents,
    json_documents,
    plain_documents,
)
from longtail.data.labels import LabelSpace
from longtail.data.source import Source
from longtail.data.table import (
    csv_documents,
    find_delimiter,
    find_text_delimiter,
    parquet_documents,
)
from longtail.errors import DataError


class Format(StrEnum):
    """The formats of a single file; the values are what messages call them."""

    SPARSE = "sparse rows"
    MATRIX = "a matrix"
    JSON_LINES = "JSON lines"
    TABLE = "a table"
    PARQUET = "Parquet"
    FASTTEXT = "fastText"
    PLAIN = "plain text"


KNOWN = (
    "known are sparse rows under an 'N D L' header, JSON lines, CSV, TSV, Parquet "
    "and fastText, each plain or gzipped"
)

_FILES = {Format.TABLE: csv_documents, Format.PARQUET: parquet_documents}
_LINES = {
    Format.JSON_LINES: json_documents,
    Format.FASTTEXT: fasttext_documents,
    Format.PLAIN: plain_documents,
}


def text_batches(
    source: Source, kind: Format, *, labels: bool = True
) -> Iterator[Iterator[Document]]:
    """Yield the documents of a file of texts; without `labels` there need not be any.

    Where a document is a line, a batch is what has come so far: whoever writes to us may wait
    for the answer. Other formats are one batch.
    """
    if kind in _FILES:
        yield _FILES[kind](source, labels=labels)
        return
    for first, lines in source.lines():
        yield _LINES[kind](source.path, enumerate(lines, first), labels=labels)


def read_texts(source: Source, kind: Format, space: LabelSpace) -> TextPart:
    """Read a whole file of texts with their labels."""
    gather = collect_cells if kind in (Format.TABLE, Format.PARQUET) else collect
    return gather(chain.from_iterable(text_batches(source, kind)), source.path, space)


def recognize(source: Source) -> Format:
    """Return the format of `source`; whatever is text but nothing else is plain text."""
    head = source.head
    if head.startswith(b"PAR1"):
        return Format.PARQUET
    text = head.decode(errors="replace")
    first = text.lstrip().split("\n", 1)[0].strip()
    if re.fullmatch(r"\d+[ \t]+\d+[ \t]+\d+", first):
        return Format.SPARSE
    if re.fullmatch(r"\d+[ \t]+\d+", first):
        return Format.MATRIX
    if first.startswith("{"):
        return Format.JSON_LINES
    if re.search(rf"^\s*{FASTTEXT_MARK}\S", text, re.MULTILINE):
        return Format.FASTTEXT
    if _is_table(first, source):
        return Format.TABLE
    if b"\0" in head:
        raise DataError(f"this is a binary file; {KNOWN}", path=source.path)
    return Format.PLAIN


def refuse_plain(source: Source) -> DataError:
    """Return the error for a text file that holds no labels in any known way."""
    first = source.head.decode(errors="replace").lstrip().split("\n", 1)[0].strip()
    if re.fullmatch(r"(\d+(,\d+)*)?(\s*\d+:[-+.\de]+)+", first[:2000].rpartition(" ")[0] or first):
        message = "sparse rows need a first line 'N D L': how many documents, features and labels"
    elif first.startswith("["):
        message = "a JSON array; write one object a line instead (JSON lines)"
    else:
        message = f"the format is not recognized; {KNOWN}"
    return DataError(message, path=source.path)


def _is_table(header: str, source: Source) -> bool:
    """A header with text and labels; with text alone only where a sentence cannot be meant."""
    if find_delimiter(header):
        return True
    named = re.search(r"\.[ct]sv(\.gz)?$", source.path.name) is not None
    return (named or "\t" in header) and find_text_delimiter(header) is not None
