"""Arrays as safetensors bytes, and back.

The format is read and written here and not by its library: a save has to hash and sync what it
writes in one pass and to see a full disk as such, and a load has to parse the very bytes that it
has hashed, without a second copy of them.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ModelFileError

MAX_HEADER_BYTES = 100_000_000  # the limit that the safetensors format sets

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode_arrays(arrays: dict[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield the safetensors form of `arrays`: the header's length, the header, the values.

    Wide types come first, so that every array starts at a multiple of its own width.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        array = arrays[name]
        dtype = DTYPE_NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise TypeError(f"the array '{name}' has a type that is not stored: {array.dtype}")
        start, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C", copy=False)
        yield little.reshape(-1).view(np.uint8).data


def parse_arrays(block: NDArray[np.uint8], path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file as views of the block of bytes that it is."""
    try:
        n_header = int.from_bytes(bytes(block[:8]), "little")
        if n_header > min(MAX_HEADER_BYTES, len(block) - 8):
            raise ValueError("the header is longer than the file")
        header = json.loads(bytes(block[8 : 8 + n_header]))
        if not isinstance(header, dict):
            raise ValueError("the header is not a JSON object")
        header.pop("__metadata__", None)
        values = block[8 + n_header :]
        arrays = {name: _array(values, **facts) for name, facts in header.items()}
        if sum(array.nbytes for array in arrays.values()) != len(values):
            raise ValueError("its arrays overlap or leave something over")
        return arrays
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not a valid safetensors file: {error}") from error


def _array(
    values: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    """Return an array that lies in memory as compiled code expects it."""
    start, end = data_offsets
    if any(type(extent) is not int for extent in (*shape, start, end)):
        raise ValueError(f"offsets {data_offsets} or shape {shape} are no whole numbers")
    # No extent is larger than the file, not even beside a 0, so that none asks for more memory.
    if not 0 <= start <= end <= len(values) or any(not 0 <= n <= len(values) for n in shape):
        raise ValueError(f"offsets {data_offsets} and shape {shape} do not fit the file")
    if math.prod(shape) * DTYPES[dtype].itemsize != end - start:
        raise ValueError(f"shape {shape} of {dtype} does not take {end - start} bytes")
    array = values[start:end].view(DTYPES[dtype]).reshape(shape)
    return array if array.flags.aligned else array.copy()
