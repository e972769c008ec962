"""Variable-length whole numbers: small ones, such as distances between neighbours, in one byte.

Seven bits a byte, the lowest first; the eighth says that more follow.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

Bytes = NDArray[np.uint8]

LARGEST = 2**31 - 1
TOO_LARGE = -2


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


def decode_steps(
    coded: Bytes, start: NDArray[Any], most: int, name: str, dtype: Any = np.int32
) -> NDArray[Any]:
    """Return the values, 0 to `most`, whose steps were encoded; ValueError if there are others.

    Args:
        coded: what `encode` made of what `steps` returned.
        start: where each part begins, as `steps` was told.
        most: no value may be larger.
        name: what errors call them.
        dtype: of the values.
    """
    values = _room_for(int(start[-1]), coded, name, dtype)[1:]
    if not _fill(values, coded, start, most, name):
        raise ValueError(f"{name} must hold whole numbers up to {most}")
    return values


def decode_starts(
    coded: Bytes, n: int, most: int, name: str, dtype: Any = np.int64
) -> NDArray[Any]:
    """Return where `n` parts begin and the last one ends, by their encoded lengths.

    ValueError if there are other lengths or more, or if all together are above `most`.
    """
    values = _room_for(n, coded, name, dtype)
    values[0] = 0
    if not _fill(values[1:], coded, np.array([0, n]), most, name):
        raise ValueError(f"{name} must hold lengths that add up to {most} at most")
    return values


def _room_for(n: int, coded: Bytes, name: str, dtype: Any) -> NDArray[Any]:
    """Return room for `n` values and a 0 before; no crafted count gets more than bytes allow."""
    if n > len(coded):
        raise ValueError(f"{name} has {len(coded)} bytes, too few for {n} numbers")
    return np.empty(n + 1, dtype)


def _fill(values: NDArray[Any], coded: Bytes, start: NDArray[Any], most: int, name: str) -> bool:
    """Fill `values`; return whether none is above `most`, raise ValueError if bytes are damaged."""
    read = _decode_steps(coded, start, most, values)
    if read not in (TOO_LARGE, len(coded)):
        raise ValueError(f"{name} does not hold {len(values)} whole numbers up to {LARGEST}")
    return bool(read != TOO_LARGE)


@njit(nogil=True, cache=True)
def _decode_steps(coded: Bytes, start: NDArray[Any], most: int, values: NDArray[Any]) -> int:
    """Fill `values`; return how many bytes they took, -1 if damaged, TOO_LARGE if above `most`."""
    place = 0
    for part in range(len(start) - 1):
        value = np.int64(0)
        for i in range(start[part], start[part + 1]):
            step, shift = np.int64(0), 0
            while True:
                if place == len(coded) or shift > 28:
                    return -1
                byte = np.int64(coded[place])
                place += 1
                step |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            value += step
            if value > most:
                return TOO_LARGE
            values[i] = value
    return place
