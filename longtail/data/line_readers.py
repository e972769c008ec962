"""Lines of JSON or of tables read by several processes.

The first blocks are parsed here. If more follow, and there are cores, each further block goes to
one of some processes, whose documents come back in the order of the file, labels numbered within
their block. Numbered once more as the blocks come, they are the very numbers that one process
gives. A block whose labels are concepts (objects with a URI) is read here, as their names depend on
those before; so is one whose process died.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.data.columns import Columns
from longtail.data.json_lines import JsonReader
from longtail.data.labels import LabelRows, LabelSpace, Numbering
from longtail.data.reading_processes import (
    Parts,
    ReadingProcesses,
    answer_questions,
    count_processes,
)
from longtail.data.spool import Cells, store_cells
from longtail.data.table import Lines, TableReader, check_labels
from longtail.errors import DataError
from longtail.reading import ReadOptions
from longtail.runtime.mapped import Texts, encode_texts
from longtail.storage import as_place

READ_HERE = 3  # blocks of lines, before others are asked

Reader = JsonReader | TableReader
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


def parse_blocks(reader: Reader, blocks: Iterable[Lines], space: LabelSpace) -> Iterator[Parsed]:
    """Yield the documents of blocks of lines, in order; the URIs of labels go into `space`."""
    blocks = iter(blocks)
    reader.space = space
    for block in islice(blocks, READ_HERE):
        yield parse(reader, block)
    n = 1 if space.uris else count_processes()
    if n == 1:
        for block in blocks:
            yield parse(reader, block)
        return
    with ReadingProcesses("line_readers", _describe(reader), n) as processes:
        for block, found in processes.each(partial(_ask, processes, reader.path), blocks):
            yield parse(reader, block) if found is None else found


def parse(reader: Reader, block: Lines) -> Parsed:
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
            check_labels(labels or (), reader.path, line)
            raise
    return Parsed(texts, ids, cells, rows.numbering.names, *rows.arrays())


# -- questions and answers ------------------------------------------------------------------------


def _ask(processes: ReadingProcesses, path: Path, block: Lines) -> Parsed | None:
    """Let a process parse a block; None if it has to be read here."""
    first, lines = block
    answer = processes.ask([json.dumps(first).encode(), "\n".join(lines).encode(*_UTF8)])
    if answer is not None and len(answer) == 2:
        raise _rebuild_error(path, *answer)
    return _unpack(answer) if answer else None


def serve() -> None:
    """Parse blocks for another process."""
    answer_questions(_build_answer)


def _build_answer(description: bytes) -> Callable[[Parts], Parts]:
    return partial(_answer, _build_reader(description))


def _answer(reader: Reader, asked: Parts) -> Parts:
    """Return the parts of what is sent back: documents, an error, or nothing."""
    reader.space = LabelSpace()
    try:
        parsed = parse(reader, (json.loads(asked[0]), asked[1].decode(*_UTF8).split("\n")))
    except DataError as error:
        return [str(error).encode(*_UTF8), json.dumps(error.line).encode()]
    return [] if reader.space.uris else _pack(parsed)


def _pack(parsed: Parsed) -> Parts:
    letters, sizes = encode_texts(parsed.texts)
    cells, cell_sizes = encode_texts(store_cells(parsed.cells))
    return [
        letters,
        sizes.tobytes(),
        *(json.dumps(part).encode() for part in (parsed.ids, parsed.names)),
        cells,
        cell_sizes.tobytes(),
        parsed.numbers.tobytes(),
        parsed.counts.tobytes(),
    ]


def _unpack(parts: Parts) -> Parsed:
    letters, sizes, ids, names, cells, cell_sizes, numbers, counts = parts
    return Parsed(
        _unpack_texts(letters, sizes),
        json.loads(ids),
        Cells(_unpack_texts(cells, cell_sizes)),
        json.loads(names),
        np.frombuffer(numbers, np.int32),
        np.frombuffer(counts, np.int32),
    )


def _unpack_texts(letters: bytes, sizes: bytes) -> Texts:
    return Texts.of_sizes(np.frombuffer(letters, np.uint8), np.frombuffer(sizes, np.int64))


def _describe(reader: Reader) -> bytes:
    columns, options = reader.columns, reader.options
    said = {name: getattr(options, name) for name in ("text", "labels", "separator")}
    found = {"text": columns.text, "labels": columns.labels, "id": columns.id}
    own = (
        {"names": reader.names, "delimiter": reader.delimiter}
        if isinstance(reader, TableReader)
        else {"has_cells": reader.has_cells}
    )
    return json.dumps({"path": str(reader.path), "said": said, "found": found, "own": own}).encode()


def _build_reader(description: bytes) -> Reader:
    held = json.loads(description)
    found, own, path = held["found"], held["own"], as_place(held["path"])
    columns = Columns(tuple(found["text"]), found["labels"], found["id"])
    options = ReadOptions(**held["said"])
    if "delimiter" in own:
        return TableReader(path, options, columns, **own)
    return JsonReader(path, options, LabelSpace(), columns, **own)


def _rebuild_error(path: Path, message: bytes, line: bytes) -> DataError:
    error = DataError(message.decode(*_UTF8))
    error.path, error.line = path, json.loads(line)
    return error
