"""Formats of a single file: recognized by the first bytes, never by the name; then read."""

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import scipy.sparse as sp

from longtail.data.documents import (
    FASTTEXT_MARK,
    Document,
    TextFile,
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


BATCH = 8192  # documents
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


def read_documents(file: str | Path | BinaryIO) -> Iterator[list[str] | sp.csr_matrix]:
    """Yield batches of documents from a file or a binary stream such as `sys.stdin.buffer`.

    A batch is a list of texts, or rows X from a sparse file (`N D L`) or a matrix file (`N D`).
    Labels may be absent and are not looked at. What is in no other format is plain text, a document
    a line, in which an empty line is an empty document. Lines of a stream go out as they come in.
    """
    with Source(file) as source:
        form = recognize(source)
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
