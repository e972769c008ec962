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

BLOCK = 1 << 14  # cells
SPLIT_HERE = 1 << 16  # cells, if there are no more

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
    n = count_processes() if len(cells) > SPLIT_HERE else 1
    faults = [_add(rows, cells, separator)] if n == 1 else _add_blocks(rows, cells, separator, n)
    for fault in faults:
        if fault:
            raise DataError(f"document {len(rows) + 1}: {fault}", path=path)
    return rows


def _add(rows: LabelRows, cells: Labels, separator: str) -> str:
    """Add the labels of cells; return what is wrong with the first wrong one, or nothing."""
    for cell in cells:
        try:
            rows.add(split_cell(cell, separator) if isinstance(cell, str) else cell)
        except TypeError as error:
            return str(error)
    return ""


def _add_blocks(rows: LabelRows, cells: Labels, separator: str, n: int) -> Iterator[str]:
    """Do as `_add` does, block by block, with the help of n processes."""
    starts = range(0, len(cells), BLOCK)
    with ReadingProcesses("cell_readers", json.dumps(separator).encode(), n) as processes:
        for first, found in processes.each(partial(_ask, processes, cells), starts):
            if found is None:
                yield _add(rows, cells[first : first + BLOCK], separator)
                continue
            rows.add_numbered(found.names, found.numbers, found.counts)
            yield found.fault


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
    rows = LabelRows(Numbering())
    fault = _add(rows, Cells(Texts.of_sizes(letters, sizes)), separator)
    numbers, counts = rows.arrays()
    return [
        json.dumps(rows.numbering.names).encode(),
        numbers[: counts.sum()].tobytes(),  # without those of the wrong one
        counts.tobytes(),
        json.dumps(fault).encode(),
    ]
