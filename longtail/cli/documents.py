"""Documents to label, in batches; those of stdin as soon as they come."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import scipy.sparse as sp

from longtail.data import read_documents
from longtail.data.formats import Format, recognise, text_documents
from longtail.data.source import Source

BATCH = 4096
LINE_FORMATS = (Format.JSON_LINES, Format.FASTTEXT, Format.PLAIN)

Batch = list[str] | sp.csr_matrix


def read_batches(file: str) -> Iterator[Batch]:
    """Yield the documents of `file`, or of stdin for "-", some thousand at a time."""
    if file != "-":
        yield from read_documents(Path(file))
        return
    with _Stream(cast(BinaryIO, _Stdin())) as source:
        kind = recognise(source)
        if kind in LINE_FORMATS:
            yield from _read_lines(source, kind)
        elif kind in (Format.SPARSE, Format.MATRIX):
            from longtail.data.sparse import row_batches  # compiles its parser on import

            yield from row_batches(source)
        else:
            texts = (text for _, text, _ in text_documents(source, kind, labels=False))
            while batch := list(islice(texts, BATCH)):
                yield batch


def _read_lines(source: Source, kind: Format) -> Iterator[list[str]]:
    """Yield what has come so far: whoever writes to us may wait for the answer."""
    for first, lines in source.lines():
        for start in range(0, len(lines), BATCH):
            piece = _Piece(source.path, first + start, lines[start : start + BATCH])
            yield [text for _, text, _ in text_documents(piece, kind, labels=False)]


class _Stream(Source):
    """A source that gives its first lines before it reads on."""

    def blocks(self) -> Iterator[bytes]:
        """Yield whole lines as they come."""
        cut = self.head.rfind(b"\n") + 1
        first, self.head = self.head[:cut], self.head[cut:]
        if first:
            yield first
        yield from super().blocks()


class _Piece(Source):
    """Some lines of a source, posing as a source of their own."""

    def __init__(self, path: Path, first: int, lines: list[str]) -> None:
        """Keep the lines and the number of the first of them."""
        self.path = path
        self._numbered = (first, lines)

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the lines."""
        yield self._numbered


class _Stdin:
    """Stdin that gives what is there, once that is at least a line."""

    name = "<stdin>"

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; nothing only at the end."""
        stream: Any = sys.stdin.buffer
        data: bytes = stream.read1(size)
        while data and b"\n" not in data and len(data) < size:
            more = stream.read1(size - len(data))
            if not more:
                break
            data += more
        return data
