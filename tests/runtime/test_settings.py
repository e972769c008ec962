"""Declared parameters: constructor, docstring, ranges, types, texts that are parsed."""

import inspect
from typing import Literal

import numpy as np
import pytest

from longtail.errors import ParameterError
from longtail.runtime.settings import (
    above,
    at_least,
    between,
    check_settings,
    configurable,
    learned,
    parse_settings,
    seeds,
    setting,
    settings_of,
    share,
    zero_or_at_least,
)


@configurable
class Base:
    """Something with a seed."""

    seed: int = setting(0, "fixes everything that is random", seeds())
    radius: float = setting(0.5, "how far to look", above(0))
    fitted_: list[int] = learned()
    steps_: int = learned(default=3)


@configurable
class Nearest(Base):
    """Looks near by."""

    k: int | None = setting(None, "how many to find", at_least(1))
    metric: Literal["cosine", "dot"] = setting("cosine", "how to compare")
    exact: bool = setting(False, "compare with all")
    path: str | None = setting(None, "where to read")
    radius: float = 0.7


# -- declaring ----------------------------------------------------------------------------------


def test_the_constructor_takes_keywords_and_only_assigns():
    made = Nearest(k=-3, metric="cosine")
    assert (made.k, made.metric, made.seed) == (-3, "cosine", 0)
    kinds = {each.kind for each in list(inspect.signature(Nearest).parameters.values())}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    with pytest.raises(TypeError, match="nothing"):
        Nearest(nothing=1)


def test_own_parameters_come_first_and_learned_attributes_are_no_parameters():
    assert list(settings_of(Nearest)) == ["radius", "k", "metric", "exact", "path", "seed"]
    assert not hasattr(Nearest(), "fitted_")
    assert Nearest().steps_ == 3
    with pytest.raises(TypeError, match="steps_"):
        Nearest(steps_=4)


def test_a_subclass_changes_a_default_and_keeps_range_and_help():
    inherited, changed = settings_of(Base)["radius"], settings_of(Nearest)["radius"]
    assert (inherited.default, changed.default) == (0.5, 0.7)
    assert changed.help == inherited.help
    assert changed.allowed is inherited.allowed
    assert (Base().radius, Nearest().radius) == (0.5, 0.7)
    with pytest.raises(ParameterError, match="'radius' parameter of Nearest must be above 0"):
        check_settings(Nearest(radius=0.0))


def test_a_parameter_without_a_declaration_is_a_mistake_of_the_programmer():
    with pytest.raises(TypeError, match=r"Bare\.size is declared without setting\(\) or learned"):

        @configurable
        class Bare:
            """Forgets to declare."""

            size: int = 3


def test_the_docstring_describes_the_parameters():
    lines = Nearest.__doc__.splitlines()
    assert lines[:3] == ["Looks near by.", "", "Args:"]
    assert "    metric: how to compare; one of cosine, dot." in lines
    assert "    seed: fixes everything that is random." in lines


# -- checking -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (at_least(2), [2, 3, 1e300], [1, -1, np.inf, np.nan]),
        (zero_or_at_least(0.1), [0, 0.0, 0.1, 5], [1e-40, -1, np.inf, np.nan]),
        (above(0), [1e-9, 5], [0, -1, np.inf, np.nan]),
        (above(0, at_most=1), [1e-9, 1], [0, 1.1, np.inf, np.nan]),
        (between(0, 1), [0, 0.5, 1], [-0.1, 1.1, np.inf, np.nan]),
        (share(), [0, 0.99], [1, -0.1, np.nan]),
        (seeds(), [0, 2**32 - 1], [-1, 2**32]),
    ],
    ids=lambda value: getattr(value, "text", ""),
)
def test_ranges(allowed, inside, outside):
    assert [value for value in inside if not allowed.holds(value)] == []
    assert [value for value in outside if allowed.holds(value)] == []


@pytest.mark.parametrize(
    "values",
    [
        {"k": 3},
        {"k": np.int64(3)},
        {"radius": 1},
        {"radius": np.float32(0.5)},
        {"k": None},
        {"exact": True},
        {"path": "a"},
        {"metric": "dot"},
    ],
    ids=str,
)
def test_values_that_are_allowed(values):
    check_settings(Nearest(**values))
    name, value = next(iter(values.items()))
    assert getattr(Nearest(**values), name) is value


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"seed": True}, "'seed' parameter of Nearest must be a whole number. Got True instead."),
        ({"seed": "3"}, "'seed' parameter of Nearest must be a whole number. Got '3' instead."),
        ({"seed": 3.0}, "'seed' parameter of Nearest must be a whole number. Got 3.0 instead."),
        ({"seed": None}, "'seed' parameter of Nearest must be a whole number. Got None instead."),
        ({"seed": -1}, "'seed' parameter of Nearest must be from 0 to 4294967295. Got -1"),
        ({"k": 0}, "'k' parameter of Nearest must be at least 1, or none. Got 0 instead."),
        ({"k": "x"}, "'k' parameter of Nearest must be a whole number or none. Got 'x' instead."),
        ({"radius": True}, "'radius' parameter of Nearest must be a number. Got True instead."),
        ({"radius": float("nan")}, "'radius' parameter of Nearest must be above 0. Got nan"),
        ({"radius": float("inf")}, "'radius' parameter of Nearest must be above 0. Got inf"),
        ({"exact": 1}, "'exact' parameter of Nearest must be true or false. Got 1 instead."),
        ({"metric": "l2"}, "'metric' parameter of Nearest must be 'cosine' or 'dot'. Got 'l2'"),
        ({"metric": ["dot"]}, "'metric' parameter of Nearest must be 'cosine' or 'dot'. Got"),
        ({"path": 3}, "'path' parameter of Nearest must be a string or none. Got 3 instead."),
    ],
    ids=str,
)
def test_values_that_are_refused(values, expected):
    with pytest.raises(ParameterError) as caught:
        check_settings(Nearest(**values))
    assert expected in str(caught.value)


def test_a_value_with_parameters_of_its_own_is_checked_too():
    @configurable
    class Outer:
        """Holds another."""

        inner: Nearest | None = setting(None, "what to hold")

    check_settings(Outer(inner=Nearest(k=2)))
    with pytest.raises(ParameterError, match="'k' parameter of Nearest must be at least 1"):
        check_settings(Outer(inner=Nearest(k=0)))


# -- parsing ------------------------------------------------------------------------------------


def test_texts_become_values():
    given = {"k": "7", "radius": "0.25", "exact": "yes", "metric": "dot", "path": "a b"}
    found = parse_settings(Nearest, given)
    assert found == {"k": 7, "radius": 0.25, "exact": True, "metric": "dot", "path": "a b"}
    assert type(found["radius"]) is float


@pytest.mark.parametrize("text", ["none", "None", "NONE", None])
def test_none_is_a_word(text):
    assert parse_settings(Nearest, {"k": text}) == {"k": None}
    assert parse_settings(Nearest, {"path": text}) == {"path": None}


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("No", False), ("1", True), ("0", False), (False, False)]
)
def test_words_for_true_and_false(text, value):
    assert parse_settings(Nearest, {"exact": text})["exact"] is value


def test_values_that_are_no_texts_stay_as_they_are():
    given = {"k": 3, "radius": 2, "exact": False}
    assert parse_settings(Nearest, given) == given


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("seed", "x", "a whole number"),
        ("seed", "1.5", "a whole number"),
        ("seed", "none", "a whole number"),
        ("seed", True, "a whole number"),
        ("k", "", "a whole number or none"),
        ("radius", "wide", "a number"),
        ("exact", "maybe", "true or false"),
        ("metric", "cosin", "'cosine' or 'dot'"),
    ],
)
def test_texts_that_stand_for_nothing(name, text, expected):
    with pytest.raises(ParameterError) as caught:
        parse_settings(Nearest, {name: text})
    message = f"The '{name}' parameter of Nearest must be {expected}. Got {text!r} instead."
    assert str(caught.value) == message


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ParameterError, match="Nearest has no parameter 'sede'; did you mean 'seed"):
        parse_settings(Nearest, {"sede": "1"})
    with pytest.raises(ParameterError, match="did you mean 'preset'"):
        parse_settings(Nearest, {"presett": "1"}, also=("preset",))
