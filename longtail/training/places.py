"""Places: where a label stands among those of a batch, by a hash table of these alone.

A table of all labels would have to be made anew for each batch; with millions of labels that takes
longer than the batch itself, and no cache holds it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

ROOM = 4  # slots for each label, so that most are found at once
FACTOR = 2654435761  # spreads neighbours; odd, so that none are lost


class Places(NamedTuple):
    """Labels by their slots, −1 in empty ones, and the place of each."""

    labels: NDArray[np.int64]
    places: NDArray[np.int64]


@njit(nogil=True, cache=True)
def number_labels(labels: NDArray[np.int64]) -> Places:
    """Number distinct labels by their order."""
    size = 1
    while size < ROOM * len(labels):
        size *= 2
    slots, places = np.full(size, -1, np.int64), np.empty(size, np.int64)
    for place in range(len(labels)):
        slot = _first_slot(labels[place], size)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot], places[slot] = labels[place], place
    return Places(slots, places)


@njit(nogil=True, cache=True)
def find_place(places: Places, label: int) -> int:
    """Return the place of a label, −1 if it has none."""
    size = len(places.labels)
    slot = _first_slot(label, size)
    while places.labels[slot] >= 0:
        if places.labels[slot] == label:
            return int(places.places[slot])
        slot = (slot + 1) & (size - 1)
    return -1


@njit(nogil=True, cache=True)
def find_places(places: Places, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each label, −1 for those that have none, as −1 itself."""
    found = np.empty(len(labels), np.int64)
    for i in range(len(labels)):
        found[i] = find_place(places, labels[i])
    return found


@njit(nogil=True, cache=True)
def _first_slot(label: int, size: int) -> int:
    return int((np.int64(label) * FACTOR) >> 15) & (size - 1)
