"""Settings: the parameters of a class, each declared once with its default, its range and its help.

    @configurable
    class Nearest(Model):
        radius: float = setting(0.5, "how far to look", above(0))

makes a constructor with keyword arguments that only assigns. What reads a parameter elsewhere
derives from this declaration: `--set`, config files, range checks, `longtail models NAME`, the
tables of the documentation, and the check of a saved model.

A subclass changes an inherited default by a plain assignment, `radius: float = 0.7`; range and help
stay as declared. Attributes that are no parameters, such as what a model learns, are `learned()`.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from longtail.errors import ParameterError, suggest

Configured = TypeVar("Configured", bound=type)

_DECLARED = "declared"
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


# -- ranges -----------------------------------------------------------------------------------


class Range(NamedTuple):
    """Which values are allowed: the range in words, and the test. Compare with NaN is false."""

    text: str
    holds: Callable[[Any], bool]


INFINITE = float("inf")


def at_least(least: float) -> Range:
    """Allow `least` and all that is larger, but for infinity."""
    return Range(f"at least {least}", lambda value: least <= value < INFINITE)


def zero_or_at_least(least: float) -> Range:
    """Allow 0, `least` and all that is larger, but for infinity."""
    return Range(f"0 or at least {least}", lambda value: value == 0 or least <= value < INFINITE)


def above(least: float, at_most: float | None = None) -> Range:
    """Allow what is larger than `least`, and not larger than `at_most`."""
    if at_most is None:
        return Range(f"above {least}", lambda value: least < value < INFINITE)
    return Range(f"above {least} and at most {at_most}", lambda value: least < value <= at_most)


def between(least: float, most: float) -> Range:
    """Allow both ends and what lies between them."""
    return Range(f"from {least} to {most}", lambda value: least <= value <= most)


def seeds() -> Range:
    """Allow what every random generator takes as a seed."""
    return between(0, 2**32 - 1)


def share() -> Range:
    """Allow a share that leaves something: from 0 to below 1."""
    return Range("from 0 to below 1", lambda value: 0 <= value < 1)


# -- declaring --------------------------------------------------------------------------------


class Declared(NamedTuple):
    """What a declaration says of a parameter beside its name, its type and its default."""

    allowed: Range | None
    help: str


def setting(default: Any, help: str, allowed: Range | None = None) -> Any:
    """Declare a parameter; `help` begins with a small letter and has no full stop.

    Without a range, the type alone says what is allowed.
    """
    return dataclasses.field(default=default, metadata={_DECLARED: Declared(allowed, help)})


def learned(*, default: Any = dataclasses.MISSING, init: Literal[False] = False) -> Any:
    """Declare an attribute that is no parameter; without a default it is absent until it is set."""
    return dataclasses.field(default=default, init=init)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(learned,))
def configurable(cls: Configured) -> Configured:
    """Give a class its constructor, its repr, and a docstring that describes the parameters."""
    dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
    if not any("__repr__" in vars(base) for base in cls.__mro__[:-1]):
        setattr(cls, "__repr__", show_settings)  # noqa: B010 - mypy refuses to assign a method
    parameters = settings_of(cls)
    if parameters and cls.__doc__:
        lines = [f"    {each.name}: {each.describe()}" for each in parameters.values()]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__), "", "Args:", *lines, ""])
    return cls


class Setting(NamedTuple):
    """A parameter of a class.

    Attributes:
        name: of the keyword argument.
        type: its annotation.
        default: what it is unless given.
        allowed: its range; None if its type says it all.
        help: what it means.
    """

    name: str
    type: Any
    default: Any
    allowed: Range | None
    help: str

    @property
    def types(self) -> tuple[Any, ...]:
        """The alternatives of the annotation."""
        is_union = get_origin(self.type) in (Union, UnionType)
        return get_args(self.type) if is_union else (self.type,)

    @property
    def choices(self) -> list[str]:
        """The values to choose from; empty if it is not a choice."""
        return [str(c) for one in self.types if get_origin(one) is Literal for c in get_args(one)]

    def describe(self) -> str:
        """Return help and choices as one line."""
        chosen = f"; one of {', '.join(self.choices)}" if self.choices else ""
        return f"{self.help}{chosen}."

    def check(self, owner: str, value: Any) -> None:
        """Raise ParameterError unless the value has the right type and lies in the range."""
        expected = self.find_fault(value)
        if expected is not None:
            raise self._refuse(owner, value, expected)
        if dataclasses.is_dataclass(value):  # it has parameters of its own
            check_settings(value)

    def find_fault(self, value: Any) -> str | None:
        """Return what the value must be, None if it is that: of this type, and in the range."""
        if value is None and NoneType in self.types:
            return None
        if not any(_is_of(value, one) for one in self.types):
            return _join_types(self.types)
        if self.allowed is not None and not self.allowed.holds(value):
            return f"{self.allowed.text}{', or none' if NoneType in self.types else ''}"
        return None

    def parse(self, owner: str, value: Any) -> Any:
        """Return the value that a text such as "3" or "none" stands for."""
        for one in sorted(self.types, key=lambda one: one is not NoneType):  # "none" is no name
            found = _parse(value, one)
            if found is not _NOT:
                return found
        raise self._refuse(owner, value, _join_types(self.types))

    def _refuse(self, owner: str, value: Any, expected: str) -> ParameterError:
        return ParameterError(
            f"The '{self.name}' parameter of {owner} must be {expected}. Got {value!r} instead."
        )


def settings_of(cls: type) -> Mapping[str, Setting]:
    """Return the parameters of a configurable class: its own first, then the inherited ones."""
    return _find_settings(cls)


@cache
def _find_settings(cls: Any) -> Mapping[str, Setting]:
    fields = [each for each in dataclasses.fields(cls) if each.init]
    own = [each for each in fields if each.name in vars(cls).get("__annotations__", {})]
    inherited = [each for each in fields if each not in own]
    found = {}
    for each in (*own, *inherited):
        declared = _find_declaration(cls, each.name)
        found[each.name] = Setting(each.name, each.type, each.default, *declared)
    return found


def _find_declaration(cls: type, name: str) -> Declared:
    """Return range and help, from the nearest class that declares them."""
    for base in cls.__mro__:
        field = vars(base).get("__dataclass_fields__", {}).get(name)
        if field is not None and _DECLARED in field.metadata:
            declared: Declared = field.metadata[_DECLARED]
            return declared
    raise TypeError(f"{cls.__name__}.{name} is declared without setting() or learned()")


# -- using ------------------------------------------------------------------------------------


def check_settings(target: Any) -> None:
    """Raise ParameterError for the first parameter whose value is not allowed."""
    for each in settings_of(type(target)).values():
        each.check(type(target).__name__, getattr(target, each.name))


def show_settings(target: Any) -> str:
    """Return the class with the parameters that differ from their defaults."""
    known = settings_of(type(target)).values()
    values = ((each, getattr(target, each.name)) for each in known)
    given = [f"{each.name}={value!r}" for each, value in values if value != each.default]
    return f"{type(target).__name__}({', '.join(given)})"


def parse_settings(
    cls: type, values: Mapping[str, Any], also: Sequence[str] = ()
) -> dict[str, Any]:
    """Turn texts, such as those of `--set`, into what the constructor takes.

    `also` are names that the caller knows beside the parameters, for the suggestion of an error.
    """
    check_names(cls, values, also)
    known = settings_of(cls)
    return {name: known[name].parse(cls.__name__, value) for name, value in values.items()}


def check_names(cls: type, names: Iterable[str], also: Sequence[str] = ()) -> None:
    """Raise ParameterError for the first name that is no parameter of the class."""
    known = settings_of(cls)
    for name in names:
        if name not in known:
            hint = suggest(name, [*known, *also])
            raise ParameterError(f"{cls.__name__} has no parameter '{name}'{hint}")


_NOT = object()  # what cannot be parsed


def parse_time(text: str, what: str) -> float:
    """Return the seconds of 90s, 10m or 2h; `what` they are for is named in the error."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", text)
    if found is None or not float(found[1]):
        raise ParameterError(
            f"The {what} must be a time such as 90s, 10m or 2h. Got {text!r} instead."
        )
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _parse(value: Any, to: Any) -> Any:
    """Return `value` as the type `to`, _NOT if it cannot be that."""
    if to is NoneType:
        return None if value is None or str(value).lower() == "none" else _NOT
    if get_origin(to) is Literal:
        return value if value in get_args(to) else _NOT
    if to is bool:
        return _WORDS.get(str(value).lower(), _NOT)
    if to not in (int, float, str) or isinstance(value, bool):
        return _NOT
    try:
        return to(str(value))
    except ValueError:
        return _NOT


def _is_of(value: Any, one: Any) -> bool:
    """Whether a value has this type; whole numbers are numbers, but True is no number."""
    if get_origin(one) is Literal:
        return isinstance(value, str) and value in get_args(one)
    if one in (int, float):
        numbers = Integral if one is int else Real
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, one)


def _join_types(types: Sequence[Any]) -> str:
    return " or ".join(_name_type(one) for one in types)


def _name_type(one: Any) -> str:
    if get_origin(one) is Literal:
        return " or ".join(repr(choice) for choice in get_args(one))
    if one is NoneType:
        return "none"
    return _TYPE_NAMES.get(one, f"a {getattr(one, '__name__', one)}")
