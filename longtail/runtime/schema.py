"""Schema: what a model folder must hold, declared in one place and checked before it is used.

A folder may come from a stranger, with hashes that match whatever is in it. So every config value
has a type and a range, every array a type, a shape and a range, every list of texts a length; what
is not declared is refused. Shapes are given in named sizes, such as "n_labels". A size is set by
what first has it and must be the same wherever it stands. What this has passed, compiled code takes
as it is:

    Schema(
        config={"bias": Value(float, between(-10, 10))},
        arrays={
            "rows.start": starts("n_rows", of="n_entries"),
            "rows.columns": indices("n_entries", into="n_features"),
            "vectors": floats("n_labels", "dim"),
        },
    )

Numbers are compared, never subtracted, as differences of crafted integers wrap around.
"""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ModelFileError
from longtail.runtime.parallel import in_threads
from longtail.runtime.settings import Range, Setting, at_least, between, settings_of
from longtail.runtime.store import Files

Sizes = dict[str, int]
Extent = int | str  # a number, a size, or a size with "+1"
Rule = Callable[[Files, Sizes], None]

LARGEST_SIZE = 2**31 - 1  # of what arrays of int32 count
LARGEST_WEIGHT = 1e6  # no layer after it leaves the range of float32
LARGEST_FLOAT = float(np.finfo(np.float32).max)  # as large as a feature may be
PIECE = 1 << 16  # numbers looked at together, as many as a cache holds
SHARE = 1 << 22  # numbers that a thread looks at


# -- config values --------------------------------------------------------------------------------


class Value(NamedTuple):
    """A value of config.json.

    Attributes:
        type: as of a parameter: int, float, bool, str, Literal, or a union with None.
        allowed: its range; None if its type says it all.
        size: the size that it sets.
        at_most: the size that it may not exceed.
        optional: whether it may be absent.
    """

    type: Any
    allowed: Range | None = None
    size: str | None = None
    at_most: str | None = None
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless type and range are right; sizes are compared later."""
        expected = Setting(name, self.type, None, self.allowed, "").find_fault(value)
        if expected is not None:
            raise ValueError(f"{name} must be {expected}. Got {reprlib.repr(value)} instead.")


class ListOf(NamedTuple):
    """A list in config.json: what each of its values is, and how many there may be."""

    value: Value
    least: int
    most: int


Config = Mapping[str, "Value | ListOf | Config"]


def size(name: str, least: int = 1) -> Value:
    """Declare a whole number that is a size."""
    return Value(int, between(least, LARGEST_SIZE), size=name)


def whole(least: int = 1, *, at_most: str | None = None) -> Value:
    """Declare a whole number."""
    return Value(int, at_least(least), at_most=at_most)


def number(least: float = -LARGEST_WEIGHT, most: float = LARGEST_WEIGHT) -> Value:
    """Declare a finite number."""
    return Value(float, between(least, most))


def parameters_of(cls: type, *, without: Sequence[str] = ()) -> Config:
    """Declare the parameters of a configurable class; an absent one has its default."""
    return {
        name: Value(each.type, each.allowed, optional=True)
        for name, each in settings_of(cls).items()
        if name not in without
    }


# -- arrays ---------------------------------------------------------------------------------------


class Content(NamedTuple):
    """What the numbers of an array must be, in words, and the test."""

    text: str
    holds: Callable[[NDArray[Any], Sizes], bool]


class Array(NamedTuple):
    """An array of weights.safetensors.

    Attributes:
        dtypes: the types that it may have.
        shape: its extents.
        content: what its numbers must be.
        empty: whether it may hold nothing.
        optional: whether it may be absent.
    """

    dtypes: tuple[type[np.generic], ...]
    shape: tuple[Extent, ...]
    content: Content
    empty: bool = False
    optional: bool = False


def floats(
    *shape: Extent,
    most: float = LARGEST_WEIGHT,
    least: float | None = None,
    dtypes: tuple[type[np.generic], ...] = (np.float32,),
    empty: bool = False,
    optional: bool = False,
) -> Array:
    """Declare finite numbers from `least`, or else from −most, to `most`."""
    least = -most if least is None else least
    content = Content(
        f"numbers from {least:g} to {most:g}",
        lambda array, sizes: _lies_between(array, least, most),
    )
    return Array(dtypes, shape, content, empty, optional)


def indices(
    *shape: Extent,
    into: Extent,
    dtypes: tuple[type[np.generic], ...] = (np.int32,),
    rising: bool = False,
) -> Array:
    """Declare numbers from 0 to below a size; `rising` means that each is above the one before."""
    order = ", each above the one before" if rising else ""
    content = Content(
        f"whole numbers from 0 to below {into}{order}",
        lambda array, sizes: (
            _is_index(array, into if isinstance(into, int) else sizes[into])
            and not (rising and (array[1:] <= array[:-1]).any())
        ),
    )
    return Array(dtypes, shape, content, empty=True)


def starts(
    n: Extent,
    *,
    of: str,
    dtypes: tuple[type[np.generic], ...] = (np.int64,),
    first: int = 0,
    empty_parts: bool = True,
) -> Array:
    """Declare where each of `n` parts begins and the last one ends, in a row of the size `of`.

    Args:
        n: how many parts there are.
        of: how many entries there are.
        dtypes: the types that the array may have.
        first: where the first part begins.
        empty_parts: whether a part may be empty.
    """

    def holds(array: NDArray[Any], sizes: Sizes) -> bool:
        falls = (array[1:] < array[:-1]) if empty_parts else (array[1:] <= array[:-1])
        return int(array[0]) == first and int(array[-1]) == sizes[of] and not falls.any()

    extent = n + 1 if isinstance(n, int) else f"{n}+1"
    return Array(dtypes, (extent,), Content(f"rising whole numbers from {first} to {of}", holds))


def permutation(n: str) -> Array:
    """Declare all whole numbers from 0 to below a size, in any order."""

    def holds(array: NDArray[Any], sizes: Sizes) -> bool:
        return _is_index(array, sizes[n]) and bool(np.bincount(array, minlength=1).max() == 1)

    return Array((np.int32,), (n,), Content(f"all whole numbers below {n}, each once", holds))


def counts(n: str, *, most: str) -> Array:
    """Declare whole numbers from 0 to a size."""
    content = Content(
        f"whole numbers from 0 to {most}",
        lambda array, sizes: _is_index(array, sizes[most] + 1),
    )
    return Array((np.int64,), (n,), content)


def _is_index(array: NDArray[Any], end: int) -> bool:
    return _lies_between(array, 0, end - 1)


def _lies_between(array: NDArray[Any], least: float, most: float) -> bool:
    """Whether all numbers lie there, looked at on all cores."""
    flat = array.reshape(-1)
    parts = [(flat[first : first + SHARE], least, most) for first in range(0, len(flat), SHARE)]
    return all(in_threads(_lie_between, parts))


def _lie_between(flat: NDArray[Any], least: float, most: float) -> bool:
    """Look at parts that a cache holds; half precision as floats that compare fast."""
    for first in range(0, len(flat), PIECE):
        part = flat[first : first + PIECE]
        if part.dtype == np.float16:
            part = part.astype(np.float32)
        if not (part.min() >= least and part.max() <= most):
            return False
    return True


# -- the whole ------------------------------------------------------------------------------------


class Texts(NamedTuple):
    """A list of texts.

    Attributes:
        n: how many there are.
        unique: whether no two may be the same.
        empty: whether there may be none in place of `n`.
        optional: whether they may be absent, which is as if there were none.
    """

    n: Extent
    unique: bool = False
    empty: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Schema:
    """All that a folder holds.

    Attributes:
        config: the values of config.json, in groups as there.
        arrays: the arrays of weights.safetensors.
        texts: the text files.
        rules: what else must hold; each raises ValueError, and sees only what has passed the rest.
        members: the models inside, which are checked when they are built.
    """

    config: Config = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    texts: Mapping[str, Texts] = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    members: Sequence[str] = ()

    def __or__(self, other: "Schema") -> "Schema":
        """Return what holds all that both hold."""
        return Schema.join([self, other])

    @classmethod
    def join(cls, schemas: Sequence["Schema"]) -> "Schema":
        """Return what holds all that each of them holds."""
        return cls(
            {key: value for each in schemas for key, value in each.config.items()},
            {name: array for each in schemas for name, array in each.arrays.items()},
            {name: texts for each in schemas for name, texts in each.texts.items()},
            [rule for each in schemas for rule in each.rules],
            [member for each in schemas for member in each.members],
        )

    def check(self, files: Files, sizes: Sizes) -> None:
        """Raise ValueError unless the files are as declared; note the sizes that they set."""
        _check_config(self.config, files.config, sizes, "")
        for name, texts in self.texts.items():
            held = files.texts.get(name, []) if texts.optional else _find(files.texts, name)
            _check_texts(name, texts, held, sizes)
        for name, array in self.arrays.items():
            if not (array.optional and name not in files.arrays):
                _check_layout(name, array, _find(files.arrays, name), sizes)
        _check_at_most(self.config, files.config, sizes, "")
        for name, array in self.arrays.items():
            found = files.arrays.get(name)
            if found is not None and found.size and not array.content.holds(found, sizes):
                raise ValueError(f"{name} must hold {array.content.text}")
        for rule in self.rules:
            rule(files, sizes)

    def check_names(self, files: Files) -> None:
        """Raise ValueError for the first thing that is not declared."""
        inside = tuple(f"inner.{member}." for member in self.members)
        for what, declared, held in (
            ("array", self.arrays, files.arrays),
            ("text file", self.texts, files.texts),
        ):
            for name in held:
                if name not in declared and not name.startswith(inside):
                    raise ValueError(f"there is no {what} '{name}' in such a model")
        _check_keys(self.config, files.config.keys() - ({"inner"} if inside else set()), "")


def look_up(held: Any, *names: str) -> Any:
    """Return config[name][name]…; ValueError if there is no such value."""
    for name in names:
        if not isinstance(held, dict) or name not in held:
            raise ValueError(f"config.json has no {'.'.join(names)}")
        held = held[name]
    return held


def refuse(path: object, problem: object) -> ModelFileError:
    """Return the error for a folder that is whole but holds what no model would have saved."""
    return ModelFileError(
        f"{path}: the files are whole but do not fit together: {problem}; train the model again"
    )


def _find(held: Mapping[str, Any], name: str) -> Any:
    if name not in held:
        raise ValueError(f"{name} is missing")
    return held[name]


def _check_config(declared: Config, held: Any, sizes: Sizes, prefix: str) -> None:
    if not isinstance(held, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'config.json'} must be a group of values")
    if prefix:  # what else is at the top, other schemas may declare
        _check_keys(declared, held, prefix)
    for key, each in declared.items():
        name = prefix + key
        if isinstance(each, Value) and each.optional and key not in held:
            continue
        value = look_up(held, key)
        if isinstance(each, ListOf):
            _check_list(name, each, value)
        elif isinstance(each, Value):
            each.check(name, value)
            if each.size is not None:
                _fit(each.size, value, sizes, name)
        else:
            _check_config(each, value, sizes, f"{name}.")


def _check_list(name: str, declared: ListOf, value: Any) -> None:
    if not isinstance(value, list) or not declared.least <= len(value) <= declared.most:
        raise ValueError(f"{name} must be a list of {declared.least} to {declared.most} values")
    for each in value:
        declared.value.check(name, each)


def _check_at_most(declared: Config, held: Any, sizes: Sizes, prefix: str) -> None:
    for key, each in declared.items():
        if isinstance(each, Value):
            if each.at_most is not None and held[key] > sizes[each.at_most]:
                raise ValueError(f"{prefix}{key} must be at most {sizes[each.at_most]}")
        elif isinstance(each, Mapping):
            _check_at_most(each, held[key], sizes, f"{prefix}{key}.")


def _check_keys(declared: Config, held: Iterable[str], prefix: str) -> None:
    for key in held:
        if key not in declared:
            raise ValueError(f"config.json must not have {prefix}{key}")


def _check_texts(name: str, declared: Texts, found: Sequence[str], sizes: Sizes) -> None:
    if not (declared.empty and not found):
        _fit(declared.n, len(found), sizes, f"the number of {name}")
    if declared.unique and not _are_unique(found):
        raise ValueError(f"two of the {name} are the same")


def _are_unique(texts: Sequence[str]) -> bool:
    """Return whether no text stands there twice; a set of millions would take gigabytes."""
    hashes = np.fromiter(map(hash, texts), np.int64, len(texts))
    hashes.sort()
    return not (hashes[1:] == hashes[:-1]).any() or len(set(texts)) == len(texts)


def _check_layout(name: str, declared: Array, found: NDArray[Any], sizes: Sizes) -> None:
    """Check type and shape of an array."""
    if found.dtype not in declared.dtypes:
        known = " or ".join(np.dtype(dtype).name for dtype in declared.dtypes)
        raise ValueError(f"{name} must be of type {known}. Got {found.dtype} instead.")
    if found.ndim != len(declared.shape):
        raise ValueError(f"{name} must have {len(declared.shape)} dimensions. Got {found.ndim}.")
    for extent, length in zip(declared.shape, found.shape, strict=True):
        _fit(extent, length, sizes, f"the shape {found.shape} of {name}")
    if not found.size and not declared.empty:
        raise ValueError(f"{name} is empty")


def _fit(extent: Extent, length: int, sizes: Sizes, where: str) -> None:
    """Compare a length with what it must be, or take it as the size that it names."""
    more = 0
    if isinstance(extent, str):
        extent, more = extent.removesuffix("+1"), int(extent.endswith("+1"))
        _set(sizes, extent, length - more, where)
    elif length != extent:
        raise ValueError(f"{where} must have {extent} where it has {length}")


def length_of(extent: Extent, sizes: Sizes) -> int:
    """Return the length that an extent stands for, once its size is set."""
    if isinstance(extent, int):
        return extent
    return sizes[extent.removesuffix("+1")] + int(extent.endswith("+1"))


def _set(sizes: Sizes, name: str, length: int, where: str) -> None:
    if length < 0:
        raise ValueError(f"{where} leaves nothing for {name}")
    if sizes.setdefault(name, length) != length:
        raise ValueError(f"{where} has {length} for {name}, which is {sizes[name]} elsewhere")
