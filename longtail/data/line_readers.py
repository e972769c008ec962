"""JSON lines read by several processes: Python parses on one core, however many there are.

The first blocks are parsed here. If more follow, and there are cores, each further block goes to
one of some processes, whose documents come back in the order of the file, labels numbered within
their block. Numbered once more as the blocks come, they are the very numbers that one process
gives. A block whose labels are concepts (objects with a URI) is read here, as their names depend on
those before; so is one whose process died.

What is exchanged are arrays and JSON, each part behind its length.
"""

import json
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import local
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.data.columns import Columns
from longtail.data.json_lines import JsonReader
from longtail.data.labels import LabelRows, LabelSpace, Numbering, find_fault
from longtail.data.table import label_error
from longtail.errors import DataError
from longtail.reading import ReadOptions
from longtail.runtime.mapped import Texts, encode_texts
from longtail.runtime.parallel import n_threads

READ_HERE = 3  # blocks of lines, before others are asked
WAITING = 2  # blocks that wait beside those that are read

Lines = tuple[int, list[str]]  # the number of the first one, and all of them
_SIZE = struct.Struct("<q")
_UTF8 = ("utf-8", "surrogatepass")


class Parsed(NamedTuple):
    """The documents of some lines.

    Attributes:
        texts: their texts.
        ids: their ids, none where there are none.
        cells: strings to be split, or lists, in place of labels; none where labels are lists.
        names: the labels, each once, as they first appear.
        numbers: the labels of all documents in a row, as places in `names`.
        counts: (n,) how many labels each document has.
    """

    texts: Sequence[str]
    ids: Sequence[str]
    cells: Sequence[Any]
    names: Sequence[str]
    numbers: NDArray[np.int32]
    counts: NDArray[np.int32]


def parse_blocks(
    reader: JsonReader, blocks: Iterable[Lines], space: LabelSpace
) -> Iterator[Parsed]:
    """Yield the documents of blocks of lines, in order; the URIs of labels go into `space`."""
    blocks = iter(blocks)
    reader.space = space
    for block in islice(blocks, READ_HERE):
        yield parse(reader, block)
    n_readers = 1 if space.uris else n_threads()
    if n_readers == 1 or not sys.executable:
        for block in blocks:
            yield parse(reader, block)
        return
    with _Readers(reader, n_readers) as readers:
        waiting: deque[tuple[Lines, Future[Parsed | None]]] = deque()
        for block in blocks:
            waiting.append((block, readers.submit(block)))
            if len(waiting) > n_readers + WAITING:
                yield _finish(reader, *waiting.popleft())
        while waiting:
            yield _finish(reader, *waiting.popleft())


def _finish(reader: JsonReader, block: Lines, found: Future[Parsed | None]) -> Parsed:
    parsed = found.result()
    return parse(reader, block) if parsed is None else parsed


def parse(reader: JsonReader, block: Lines) -> Parsed:
    """Parse a block of lines."""
    first, lines = block
    texts: list[str] = []
    ids: list[str] = []
    cells: list[Any] = []
    rows = LabelRows(Numbering())
    for line, text, labels, id, _ in reader.read(enumerate(lines, first)):
        texts.append(text)
        if id is not None:
            ids.append(id)
        if reader.has_cells:
            cells.append(labels or "")
            continue
        try:
            rows.add(labels or ())
        except TypeError:
            wrong = next(each for each in labels or () if _is_wrong(each))
            raise label_error(wrong, reader.path, line) from None
    return Parsed(texts, ids, cells, rows.numbering.names, *rows.arrays())


def _is_wrong(label: Any) -> bool:
    return type(label) not in (str, int) or find_fault(label) is not None


# -- the processes --------------------------------------------------------------------------------


class _Readers:
    """Processes that parse blocks, each served by a thread; one starts when it is needed."""

    def __init__(self, reader: JsonReader, n: int) -> None:
        self._reader = reader
        self._threads = ThreadPoolExecutor(n)
        self._here = local()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "_Readers":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            process.wait()

    def submit(self, block: Lines) -> "Future[Parsed | None]":
        """Let a process parse a block; None if it has to be read here."""
        return self._threads.submit(self._ask, block)

    def _ask(self, block: Lines) -> Parsed | None:
        process = getattr(self._here, "process", None)
        try:
            if process is None:
                process = self._here.process = self._start()
            first, lines = block
            _send(process.stdin, [_SIZE.pack(first), "\n".join(lines).encode(*_UTF8)])
            answer = _receive(process.stdout)
        except (OSError, EOFError):  # it has died, or could not be started
            return None
        if len(answer) == 2:
            raise _rebuild_error(self._reader.path, *answer)
        return _unpack(answer) if answer else None

    def _start(self) -> "subprocess.Popen[bytes]":
        # The same modules as here, wherever they come from.
        code = f"import sys; sys.path[:] = {sys.path!r}; from longtail.data import line_readers; "
        process = subprocess.Popen(
            [sys.executable, "-c", code + "line_readers.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started.append(process)
        _send(process.stdin, [_describe(self._reader)])
        return process


def serve() -> None:
    """Parse blocks that come from standard input until it ends; runs in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    with suppress(EOFError, BrokenPipeError):
        reader = _build_reader(*_receive(asked))
        while True:
            first, text = _receive(asked)
            _send(answers, _answer(reader, _SIZE.unpack(first)[0], text.decode(*_UTF8)))


def _answer(reader: JsonReader, first: int, text: str) -> list[bytes]:
    """Return the parts of what is sent back: documents, an error, or nothing."""
    reader.space = LabelSpace()
    try:
        parsed = parse(reader, (first, text.split("\n")))
    except DataError as error:
        return [str(error).encode(*_UTF8), json.dumps(error.line).encode()]
    return [] if reader.space.uris else _pack(parsed)


def _pack(parsed: Parsed) -> list[bytes]:
    letters, sizes = encode_texts(parsed.texts)
    return [
        letters,
        sizes.tobytes(),
        *(json.dumps(part).encode() for part in (parsed.ids, parsed.cells, parsed.names)),
        parsed.numbers.tobytes(),
        parsed.counts.tobytes(),
    ]


def _unpack(parts: Sequence[bytes]) -> Parsed:
    letters, sizes, ids, cells, names, numbers, counts = parts
    return Parsed(
        Texts.of_sizes(np.frombuffer(letters, np.uint8), np.frombuffer(sizes, np.int64)),
        json.loads(ids),
        json.loads(cells),
        json.loads(names),
        np.frombuffer(numbers, np.int32),
        np.frombuffer(counts, np.int32),
    )


def _describe(reader: JsonReader) -> bytes:
    columns, options = reader.columns, reader.options
    said = {"text": options.text, "labels": options.labels}
    found = {"text": columns.text, "labels": columns.labels, "id": columns.id}
    return json.dumps(
        {"path": str(reader.path), "said": said, "found": found, "has_cells": reader.has_cells}
    ).encode()


def _build_reader(description: bytes) -> JsonReader:
    held = json.loads(description)
    found = held["found"]
    columns = Columns(tuple(found["text"]), found["labels"], found["id"])
    options = ReadOptions(**held["said"])
    return JsonReader(Path(held["path"]), options, LabelSpace(), columns, held["has_cells"])


def _rebuild_error(path: Path, message: bytes, line: bytes) -> DataError:
    error = DataError(message.decode(*_UTF8))
    error.path, error.line = path, json.loads(line)
    return error


def _send(stream: IO[bytes] | None, parts: Sequence[bytes]) -> None:
    assert stream is not None
    stream.write(_SIZE.pack(len(parts)))
    for part in parts:
        stream.write(_SIZE.pack(len(part)))
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> list[bytes]:
    assert stream is not None

    def read(n: int) -> bytes:
        found = stream.read(n)
        if len(found) < n:
            raise EOFError
        return found

    def read_size() -> int:
        return int(_SIZE.unpack(read(_SIZE.size))[0])

    return [read(read_size()) for _ in range(read_size())]
