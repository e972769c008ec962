"""Places: where a label stands among those of a batch, by a hash table of these alone.

A table of all labels would have to be made anew for each batch; with millions of labels that takes
longer than the batch itself, and no cache holds it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

ROOM = 4  # slots for each label, so that most are found at once
MARKS = 16  # bits for each slot: of labels without a place, 1 in 64 meets a mark at most
FACTOR = 2654435761  # spreads neighbours; odd, so that none are lost


class Places(NamedTuple):
    """Labels by their slots, −1 in empty ones, and the place of each.

    Most labels that are asked for have no place; `may_have` says so for nearly all of these by one
    bit of `marks`, which the processor's cache holds.
    """

    labels: NDArray[np.int64]
    places: NDArray[np.int64]
    marks: NDArray[np.uint8]


@njit(nogil=True, cache=True)
def number_labels(labels: NDArray[np.int64]) -> Places:
    """Number distinct labels by their order."""
    size = 1
    while size < ROOM * len(labels):
        size *= 2
    slots, places = np.full(size, -1, np.int64), np.empty(size, np.int64)
    marks = np.zeros(size * MARKS // 8, np.uint8)
    for place in range(len(labels)):
        mark = _first_slot(labels[place], size * MARKS)
        marks[mark >> 3] |= 1 << (mark & 7)
        slot = _first_slot(labels[place], size)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot], places[slot] = labels[place], place
    return Places(slots, places, marks)


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
def may_have(marks: NDArray[np.uint8], label: int) -> bool:
    """Whether a label meets a mark, as all that have a place do."""
    mark = _first_slot(label, 8 * len(marks))
    return bool((marks[mark >> 3] >> np.uint8(mark & 7)) & np.uint8(1))


@njit(nogil=True, cache=True)
def find_places(places: Places, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each label, −1 for those that have none, as −1 itself."""
    found, marks = np.full(len(labels), -1, np.int64), places.marks
    for i in range(len(labels)):
        if may_have(marks, labels[i]):
            found[i] = find_place(places, labels[i])
    return found


@njit(nogil=True, cache=True)
def list_distinct(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each label once, rising, without −1; numpy would keep other threads waiting."""
    rising = np.sort(labels)
    n = 0
    for label in rising:
        if label >= 0 and (n == 0 or rising[n - 1] != label):
            rising[n] = label
            n += 1
    return rising[:n].copy()


@njit(nogil=True, cache=True)
def keep_known(
    documents: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of documents and places whose place is not −1."""
    n = 0
    for place in places:
        n += place >= 0
    kept_documents, kept = np.empty(n, np.int64), np.empty(n, np.int64)
    at = 0
    for i in range(len(places)):
        if places[i] >= 0:
            kept_documents[at], kept[at] = documents[i], places[i]
            at += 1
    return kept_documents, kept


@njit(nogil=True, cache=True)
def _first_slot(label: int, size: int) -> int:
    return int((np.int64(label) * FACTOR) >> 15) & (size - 1)
