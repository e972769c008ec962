"""QuantizedRows: a matrix as int8 with one scale a row, kept and used as it is.

A row takes a quarter of what it takes as float32, on disk, in memory and on the way to the
processor. Its values are off by about 1/254 of its largest one at most; what is summed over many of
them is off by far less, as the errors have either sign. Its length is kept, so that cosines are
what they were. Compiled code reads rows by `add_row` and `multiply_row`; nothing makes a float32
copy of the whole matrix.
"""

from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.schema import (
    LARGEST_WEIGHT,
    Extent,
    Schema,
    Sizes,
    floats,
    length_of,
)
from longtail.runtime.store import Files

Floats = NDArray[np.float32]

WIDTH = 32  # rows are padded with zeros to a multiple of this, so that vector code has no rest
MOST_CODE = 127  # and −127 the least
DIGITS = 16  # of a scale, so that float32 holds its multiples and rounding again changes nothing


class QuantizedRows(NamedTuple):
    """Row i is `scale[i] · codes[i]`.

    Attributes:
        codes: (n, width) whole numbers from −127 to 127; zeros beyond the last column.
        scale: (n,) what each row is multiplied by.
    """

    codes: NDArray[np.int8]
    scale: Floats

    @classmethod
    def of(cls, matrix: NDArray[Any], order: NDArray[Any] | None = None) -> Self:
        """Quantize the rows of a matrix (n, dim), all as they are or those that `order` lists."""
        source = np.ascontiguousarray(matrix, np.float32)
        places = np.arange(len(source)) if order is None else order
        n = len(places)
        rows = cls(np.zeros((n, padded(source.shape[1])), np.int8), np.zeros(n, np.float32))
        cuts = pairwise(cut(n, 4 * n_threads()))
        in_threads(_quantize, [(source, places, a, b, rows) for a, b in cuts])
        return rows._replace(scale=round_digits(rows.scale.astype(np.float64), np.rint))

    @property
    def n_bytes(self) -> int:
        """What they take, in memory and on disk."""
        return self.codes.nbytes + self.scale.nbytes

    def take(self, which: Any, dim: int) -> Floats:
        """Return some rows as float32: their first `dim` columns."""
        return np.asarray(self.codes[which, :dim] * self.scale[which, None], np.float32)

    def select(self, which: NDArray[Any]) -> Self:
        """Return some rows, in this order."""
        return type(self)(self.codes[which], self.scale[which])

    def join(self, more: Self) -> Self:
        """Return these rows and more."""
        codes = np.concatenate([self.codes, more.codes])
        return type(self)(codes, np.concatenate([self.scale, more.scale]))

    def add_to_files(self, files: Files, name: str) -> None:
        """Add the rows to a model's files, as `name.codes` and `name.scale`."""
        files.arrays[f"{name}.codes"], files.arrays[f"{name}.scale"] = self

    @classmethod
    def describe(cls, name: str, n: Extent, dim: Extent, most: float = LARGEST_WEIGHT) -> Schema:
        """Return the schema of what `add_to_files` adds.

        Args:
            name: what the arrays are called.
            n: how many rows there are.
            dim: how many columns they have without padding, a size that something else sets.
            most: the largest absolute value.
        """
        width = f"{name}.width"

        def check_width(files: Files, sizes: Sizes) -> None:
            if sizes[width] != padded(length_of(dim, sizes)):
                raise ValueError(
                    f"the rows of {name} are {sizes[width]} wide, "
                    f"which does not suit {length_of(dim, sizes)} columns"
                )

        arrays = {
            f"{name}.codes": floats(n, width, most=MOST_CODE, dtypes=(np.int8,), empty=True),
            f"{name}.scale": floats(n, least=0, most=most / MOST_CODE, empty=True),
        }
        return Schema(arrays=arrays, rules=[check_width])

    @classmethod
    def from_files(cls, files: Files, name: str) -> Self:
        """Take back what `add_to_files` wrote."""
        return cls(files.arrays[f"{name}.codes"], files.arrays[f"{name}.scale"])


def padded(dim: int) -> int:
    """Return how many bytes a quantized row of `dim` columns takes."""
    return -(-dim // WIDTH) * WIDTH


def find_units(largest: Floats) -> Floats:
    """Return 1/127 of the largest values, rounded up to 16 binary digits.

    Values that are whole multiples of such a unit come back from one byte each with the same bits.
    """
    return round_digits(largest.astype(np.float64) / MOST_CODE, np.ceil)


def round_digits(numbers: NDArray[np.float64], how: np.ufunc) -> Floats:
    """Round numbers to 16 binary digits."""
    digits, power = np.frexp(numbers)
    return np.asarray(np.ldexp(how(np.ldexp(digits, DIGITS)), power - DIGITS), np.float32)


@njit(nogil=True, cache=True)
def _quantize(
    matrix: Floats, order: NDArray[Any], first: int, last: int, rows: QuantizedRows
) -> None:
    """Quantize the rows order[first] … order[last - 1] of a matrix."""
    for i in range(first, last):
        row, codes = matrix[order[i]], rows.codes[i]
        largest = np.float32(0)
        for j in range(len(row)):
            largest = max(largest, abs(row[j]))
        scale = np.float64(np.float32(largest / MOST_CODE))
        length, coded = 0.0, 0.0
        if scale > 0:
            for j in range(len(row)):
                value = np.float64(row[j])
                code = min(max(np.rint(value / scale), -MOST_CODE), MOST_CODE)
                codes[j] = np.int8(code)
                length += value * value
                coded += code * code
            rows.scale[i] = np.sqrt(length / coded)


@njit(nogil=True, cache=True)
def add_row(rows: QuantizedRows, i: int, factor: np.float32, sums: Floats) -> None:
    """Add `factor` times row i to the sums."""
    scaled, codes = np.float32(factor * rows.scale[i]), rows.codes[i]
    for j in range(len(sums)):
        sums[j] += scaled * np.float32(codes[j])


@njit(nogil=True, cache=True)
def multiply_row(rows: QuantizedRows, i: int, query: Floats) -> np.float32:
    """Return the product of row i and a query, summed in float64 in one fixed order."""
    codes, n = rows.codes[i], len(query)
    s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(0, n - 7, 8):  # eight sums, as each would have to wait for its last addition
        s0 += np.float64(codes[j]) * np.float64(query[j])
        s1 += np.float64(codes[j + 1]) * np.float64(query[j + 1])
        s2 += np.float64(codes[j + 2]) * np.float64(query[j + 2])
        s3 += np.float64(codes[j + 3]) * np.float64(query[j + 3])
        s4 += np.float64(codes[j + 4]) * np.float64(query[j + 4])
        s5 += np.float64(codes[j + 5]) * np.float64(query[j + 5])
        s6 += np.float64(codes[j + 6]) * np.float64(query[j + 6])
        s7 += np.float64(codes[j + 7]) * np.float64(query[j + 7])
    for j in range(n - n % 8, n):
        s0 += np.float64(codes[j]) * np.float64(query[j])
    total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    return np.float32(total * np.float64(rows.scale[i]))
