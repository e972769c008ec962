"""What several members of a fusion hold alike is kept once: label names, counts, labels of voters.

`share` takes the copies out of a fusion's files and lists them in the text `shared`, a line for
each: the copy, and what it is a copy of. `unshare` puts them back, as one array in memory.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.schema import Schema, Texts
from longtail.runtime.store import Files

SHARED = "shared"
LEAST_BYTES = 4096  # of what is worth a line

Part = TypeVar("Part")


def share(files: Files) -> None:
    """Take out what members hold alike, or alike with the fusion."""
    arrays = _find_copies(files.arrays, _array_key, np.array_equal)
    texts = _find_copies(files.texts, _text_key, lambda one, other: list(one) == list(other))
    for name in arrays:
        del files.arrays[name]
    for name in texts:
        del files.texts[name]
    files.texts[SHARED] = [f"{copy}\t{source}" for copy, source in (arrays | texts).items()]


def unshare(files: Files) -> Files:
    """Return the files with all copies; raise ValueError for a list that does not fit them."""
    arrays, texts = dict(files.arrays), dict(files.texts)
    for line in texts.pop(SHARED):
        copy, _, source = line.partition("\t")
        held: dict[str, Any] = arrays if source in files.arrays else texts
        if source not in held or copy in held or not copy.startswith("inner."):
            raise ValueError(f"'{copy}' cannot be a copy of '{source}'")
        held[copy] = held[source]
    return Files(files.config, arrays, texts)


def describe_shared() -> Schema:
    """Return the schema of the list of copies."""
    return Schema(texts={SHARED: Texts("n_shared", unique=True)})


def _find_copies(
    parts: Mapping[str, Part],
    key: Callable[[Part], Hashable | None],
    equal: Callable[[Part, Part], bool],
) -> dict[str, str]:
    """Return what each copy among the members' parts is a copy of."""
    known: dict[Hashable, str] = {}
    copies: dict[str, str] = {}
    for name in sorted(parts, key=lambda name: name.startswith("inner.")):  # the fusion's first
        found = key(parts[name])
        if found is None:
            continue
        source = known.setdefault(found, name)
        if source != name and name.startswith("inner.") and equal(parts[name], parts[source]):
            copies[name] = source
    return copies


def _array_key(array: NDArray[Any]) -> Hashable | None:
    if array.nbytes < LEAST_BYTES:
        return None
    return array.dtype.str, array.shape, crc32(np.ascontiguousarray(array).data)


def _text_key(lines: Sequence[str]) -> Hashable | None:
    return (len(lines), hash(tuple(lines))) if len(lines) > 1 else None
