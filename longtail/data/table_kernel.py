"""Where the rows of a table end: a line break in a quoted cell ends none."""

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

ROW, CELL, QUOTED, CLOSED = range(4)  # before a cell, in one, in quotes, behind a second quote
_LF, _QUOTE = 10, 34


@njit(cache=True, nogil=True)
def follow_rows(letters: NDArray[np.uint32], delimiter: int, state: int) -> tuple[int, int]:
    """Return how many of the lines belong to whole rows, and the state behind the last one.

    Quotes count as they do for Python's csv: a cell that begins with one ends with another.
    """
    n_lines = n_whole = 0
    for letter in letters:
        if letter == _LF:
            n_lines += 1
            if state != QUOTED:
                n_whole, state = n_lines, ROW
        elif letter == _QUOTE:
            if state == QUOTED:
                state = CLOSED
            elif state != CELL:  # behind a second quote, it is one quote within the cell
                state = QUOTED
        elif state != QUOTED:
            state = ROW if letter == delimiter else CELL
    return n_whole, state
