"""Cells of labels split by several processes, which gives the numbers that one process gives."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.data.labels import LabelRows, LabelSpace, Numbering, split_cell
from longtail.data.reading_processes import (
    Parts,
    ReadingProcesses,
    answer_questions,
    count_processes,
)
from longtail.data.spool import Cells, store_cells
from longtail.errors import DataError
from longtail.reading import NEVER
from longtail.runtime.mapped import Texts, encode_texts

BLOCK = 1 << 16  # cells
SPLIT_HERE = 3  # blocks, if there are no more

Labels = Sequence[str | list[Any]]


class _Split(NamedTuple):
    """The labels of some cells, as places in `names`; what is wrong with the one behind them."""

    names: Sequence[str]
    numbers: NDArray[np.int32]
    counts: NDArray[np.int32]
    fault: str


def split_cells(
    space: LabelSpace, cells: Labels, path: Path | None, in_doubt: str = NEVER
) -> LabelRows:
    """Split each cell into labels; a cell that is a list already stays as it is."""
    separator = space.choose(cells, in_doubt)
    rows = space.new_rows(space.numbering)
    for part in _split_blocks(cells, separator):
        rows.add_numbered(part.names, part.numbers, part.counts)
        if part.fault:
            raise DataError(f"document {len(rows) + 1}: {part.fault}", path=path)
    return rows


def _split_blocks(cells: Labels, separator: str) -> Iterator[_Split]:
    starts = range(0, len(cells), BLOCK)
    n = count_processes() if len(starts) > SPLIT_HERE else 1
    if n == 1:
        for first in starts:
            yield _split(cells[first : first + BLOCK], separator)
        return
    with ReadingProcesses("cell_readers", json.dumps(separator).encode(), n) as processes:
        for first, found in processes.each(partial(_ask, processes, cells), starts):
            yield _split(cells[first : first + BLOCK], separator) if found is None else found


def _split(cells: Labels, separator: str) -> _Split:
    rows, fault = LabelRows(Numbering()), ""
    for cell in cells:
        try:
            rows.add(split_cell(cell, separator) if isinstance(cell, str) else cell)
        except TypeError as error:
            fault = str(error)
            break
    numbers, counts = rows.arrays()
    return _Split(rows.numbering.names, numbers[: counts.sum()], counts, fault)


# -- questions and answers ------------------------------------------------------------------------


def _ask(processes: ReadingProcesses, cells: Labels, first: int) -> _Split | None:
    answer = processes.ask(_store(cells, first, min(first + BLOCK, len(cells))))
    if answer is None:
        return None
    names, numbers, counts, fault = answer
    return _Split(
        json.loads(names),
        np.frombuffer(numbers, np.int32),
        np.frombuffer(counts, np.int32),
        json.loads(fault),
    )


def _store(cells: Labels, first: int, last: int) -> Parts:
    if isinstance(cells, Cells):  # whose bytes need not be read
        start = cells.stored.start[first : last + 1]
        return [cells.stored.letters[start[0] : start[-1]].tobytes(), np.diff(start).tobytes()]
    letters, sizes = encode_texts(store_cells(cells[first:last]))
    return [letters, sizes.tobytes()]


def serve() -> None:
    """Split cells for another process."""
    answer_questions(_build_answer)


def _build_answer(description: bytes) -> Callable[[Parts], Parts]:
    return partial(_answer, json.loads(description))


def _answer(separator: str, asked: Parts) -> Parts:
    letters, sizes = np.frombuffer(asked[0], np.uint8), np.frombuffer(asked[1], np.int64)
    found = _split(Cells(Texts.of_sizes(letters, sizes)), separator)
    return [
        json.dumps(found.names).encode(),
        found.numbers.tobytes(),
        found.counts.tobytes(),
        json.dumps(found.fault).encode(),
    ]
