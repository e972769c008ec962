"""Variable-length whole numbers: small ones, such as distances between neighbours, in one byte.

Seven bits a byte, the lowest first; the eighth says that more follow.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

Bytes = NDArray[np.uint8]

LARGEST = 2**31 - 1


@njit(nogil=True, cache=True)
def encode(values: NDArray[Any]) -> Bytes:
    """Return whole numbers from 0 to 2³¹ − 1 as bytes."""
    size = 0
    for value in values:
        left = np.int64(value)
        size += 1
        while left > 127:
            left >>= 7
            size += 1
    coded = np.empty(size, np.uint8)
    place = 0
    for value in values:
        left = np.int64(value)
        while left > 127:
            coded[place] = left & 127 | 128
            left >>= 7
            place += 1
        coded[place] = left
        place += 1
    return coded


def decode(coded: Bytes, n: int, name: str) -> NDArray[np.int32]:
    """Return the `n` numbers that were encoded; ValueError if there are others or more."""
    # A number takes a byte at least, so that no crafted count asks for more memory.
    if n > len(coded):
        raise ValueError(f"{name} has {len(coded)} bytes, too few for {n} numbers")
    values = np.empty(n, np.int32)
    if _decode(coded, values) != len(coded):
        raise ValueError(f"{name} does not hold {n} whole numbers up to {LARGEST}")
    return values


@njit(nogil=True, cache=True)
def _decode(coded: Bytes, values: NDArray[np.int32]) -> int:
    """Fill `values`; return how many bytes they took, -1 if they are damaged."""
    place = 0
    for i in range(len(values)):
        value, shift = np.int64(0), 0
        while True:
            if place == len(coded) or shift > 28:
                return -1
            byte = np.int64(coded[place])
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if value > LARGEST:
            return -1
        values[i] = value
    return place


@njit(nogil=True, cache=True)
def steps(values: NDArray[Any], start: NDArray[Any]) -> NDArray[np.int64]:
    """Return how far each value lies behind the one before; the first of each part as it is."""
    apart = values.astype(np.int64)
    for i in range(len(start) - 1):
        for place in range(start[i] + 1, start[i + 1]):
            apart[place] -= values[place - 1]
    return apart


@njit(nogil=True, cache=True)
def add_steps(apart: NDArray[np.int32], start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values that `steps` made steps of."""
    values = apart.astype(np.int64)
    for i in range(len(start) - 1):
        for place in range(start[i] + 1, start[i + 1]):
            values[place] += values[place - 1]
    return values
