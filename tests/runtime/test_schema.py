"""What a model folder must hold: every declaration accepts what fits and refuses what does not."""

from typing import Literal

import numpy as np
import pytest

from longtail.runtime.schema import (
    ListOf,
    Schema,
    Texts,
    Value,
    counts,
    floats,
    indices,
    look_up,
    number,
    permutation,
    size,
    starts,
    whole,
)
from longtail.runtime.settings import between
from longtail.runtime.store import Files

WRAPS = np.array([0, 2**63 - 1, -(2**63), 4])  # every difference is positive modulo 2^64


def check_array(declared, array, **sizes):
    Schema(arrays={"a": declared}).check(Files(arrays={"a": np.asarray(array)}), dict(sizes))


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (starts("n", of="m"), [0, 2, 2, 4], [0, 3, 2, 4]),
        (starts("n", of="m"), [0, 2, 2, 4], [1, 2, 2, 4]),
        (starts("n", of="m"), [0, 2, 2, 4], [0, 2, 2, 3]),
        (starts("n", of="m"), [0, 2, 2, 4], WRAPS),
        (starts("n", of="m", empty_parts=False), [0, 1, 2, 4], [0, 2, 2, 4]),
        (starts("n", of="m", first=1), [1, 1, 2, 4], [0, 1, 2, 4]),
        (indices(4, into="m", dtypes=(np.int64,)), [3, 0, 0, 1], [3, 0, 0, 4]),
        (indices(4, into=4, dtypes=(np.int64,)), [3, 0, 0, 1], [3, 0, 0, -1]),
        (indices(4, into="m", dtypes=(np.int64,), rising=True), [0, 1, 2, 3], [0, 1, 1, 3]),
        (counts("k", most="m"), [4, 0, 0], [5, 0, 0]),
        (counts("k", most="m"), [4, 0, 0], [-1, 0, 0]),
    ],
)
def test_whole_numbers(declared, good, bad):
    check_array(declared, good, m=4)
    with pytest.raises(ValueError, match=r"a must hold .*whole numbers"):
        check_array(declared, bad, m=4)


def test_a_permutation():
    check_array(permutation("n"), np.array([2, 0, 1], np.int32))
    for bad in ([0, 0, 1], [0, 1, 3], [-1, 0, 1]):
        with pytest.raises(ValueError, match="all whole numbers below n, each once"):
            check_array(permutation("n"), np.array(bad, np.int32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.5, -1.5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_in_a_range(bad, dtype):
    declared = floats("n", most=1, dtypes=(np.float16, np.float32))
    array = np.zeros((1 << 18) + 9, dtype)
    check_array(declared, array)
    array[-1] = bad  # in the last piece
    with pytest.raises(ValueError, match="a must hold numbers from -1 to 1"):
        check_array(declared, array)


def test_numbers_have_a_lower_end_of_their_own():
    check_array(floats(2, least=0), np.array([0, 5], np.float32))
    with pytest.raises(ValueError, match="numbers from 0 to"):
        check_array(floats(2, least=0), np.array([-1, 5], np.float32))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3)), "a must be of type float32. Got float64 instead"),
        (np.zeros((2, 3), ">f4"), "a must be of type float32. Got >f4 instead"),
        (np.zeros(3, np.float32), "a must have 2 dimensions. Got 1"),
        (np.zeros((3, 3), np.float32), r"shape \(3, 3\) of a has 3 for n, which is 2 elsewhere"),
        (np.zeros((2, 0), np.float32), "a is empty"),
    ],
)
def test_types_and_shapes(array, message):
    check_array(floats("n", "m"), np.zeros((2, 3), np.float32), n=2)
    with pytest.raises(ValueError, match=message):
        check_array(floats("n", "m"), array, n=2)


def test_a_size_is_the_same_wherever_it_stands():
    schema = Schema(
        config={"n": size("n"), "k": whole(at_most="n")},
        arrays={"a": floats("n"), "b": floats("n+1", "m"), "c": floats("m")},
        texts={"names": Texts("m", unique=True), "notes": Texts("n", empty=True)},
    )
    ones = np.ones((4, 2), np.float32)
    files = Files(
        {"n": 3, "k": 3}, {"a": ones[:3, 0], "b": ones, "c": ones[0]}, {"names": ["x", "y"]}
    )
    files.texts["notes"] = []
    sizes = {}
    schema.check(files, sizes)
    assert sizes == {"n": 3, "m": 2}
    for change, message in (
        ({"n": 4}, "the shape .* of a has 3 for n, which is 4 elsewhere"),
        ({"k": 4}, "k must be at most 3"),
        ({"n": 0}, "n must be from 1 to 2147483647. Got 0 instead"),
    ):
        with pytest.raises(ValueError, match=message):
            schema.check(Files({**files.config, **change}, files.arrays, files.texts), {})
    for texts, message in (
        ({"names": ["x", "x"]}, "two of the names are the same"),
        ({"names": ["x"]}, "the number of names|shape"),
        ({"notes": ["a"]}, "the number of notes"),
    ):
        with pytest.raises(ValueError, match=message):
            schema.check(Files(files.config, files.arrays, {**files.texts, **texts}), {})


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (whole(), 1, 0),
        (whole(), 1, True),
        (whole(), 1, 1.0),
        (whole(), 1, "1"),
        (number(0, 1), 1, float("nan")),
        (number(), 1.5, float("inf")),
        (number(), 1.5, 10**400),
        (Value(bool), True, 1),
        (Value(str), "", None),
        (Value(Literal["a", "b"]), "a", "c"),
        (Value(Literal["a", "b"]), "a", ["a"]),
        (Value(int | None, between(1, 3)), None, 4),
        (ListOf(whole(), 1, 2), [1, 2], []),
        (ListOf(whole(), 1, 2), [1, 2], [1, 2, 3]),
        (ListOf(whole(), 1, 2), [1, 2], [0]),
        (ListOf(whole(), 1, 2), [1, 2], {"1": 1}),
        ({"x": whole()}, {"x": 1}, {"x": 0}),
        ({"x": whole()}, {"x": 1}, {"x": 1, "y": 1}),
        ({"x": whole()}, {"x": 1}, {}),
        ({"x": whole()}, {"x": 1}, [1]),
        ({"x": Value(int, optional=True)}, {}, {"x": None}),
    ],
)
def test_config_values(declared, good, bad):
    schema = Schema(config={"v": declared})
    schema.check(Files({"v": good}), {})
    with pytest.raises(ValueError, match=r"\bv\b|x"):
        schema.check(Files({"v": bad}), {})


def test_what_is_not_declared_is_refused():
    schema = Schema({"v": whole()}, {"a": floats(1)}, {"t": Texts("n")})
    one = np.ones(1, np.float32)
    whole_files = Files({"v": 1}, {"a": one}, {"t": ["x"]})
    schema.check_names(whole_files)
    for files, message in (
        (Files({"v": 1, "w": 1}), "config.json must not have w"),
        (Files({"v": 1}, {"b": one}), "no array 'b'"),
        (Files({"v": 1}, {}, {"u": []}), "no text file 'u'"),
        (Files({"v": 1}, {"inner.x.a": one}), "no array 'inner.x.a'"),
    ):
        with pytest.raises(ValueError, match=message):
            schema.check_names(files)
    members = schema | Schema(members=["x"])
    members.check_names(Files({"v": 1, "inner": {}}, {"inner.x.a": one}))


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="a is missing"):
        Schema(arrays={"a": floats(1)}).check(Files(), {})
    Schema(arrays={"a": floats(1, optional=True)}).check(Files(), {})
    with pytest.raises(ValueError, match=r"config\.json has no x\.y"):
        look_up({"x": 1}, "x", "y")


def test_rules_see_only_what_has_passed():
    def rule(files, sizes):
        assert files.arrays["a"][0] < sizes["m"]
        raise ValueError("the rule is broken")

    schema = Schema(arrays={"a": indices("n", into="m")}, rules=[rule])
    with pytest.raises(ValueError, match="must hold"):
        schema.check(Files(arrays={"a": np.array([7], np.int32)}), {"m": 5})
    with pytest.raises(ValueError, match="the rule is broken"):
        schema.check(Files(arrays={"a": np.array([4], np.int32)}), {"m": 5})
