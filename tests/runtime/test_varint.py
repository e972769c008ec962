"""Whole numbers as bytes and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.runtime.varint import LARGEST, decode, decode_starts, decode_steps, encode, steps


@given(st.lists(st.integers(0, LARGEST)))
@settings(deadline=None)
def test_numbers_come_back(numbers) -> None:
    values = np.array(numbers, np.int64)
    coded = encode(values)
    np.testing.assert_array_equal(decode(coded, len(values), "them"), values)
    assert len(coded) == sum(max(1, -(-n.bit_length() // 7)) for n in numbers)


@pytest.mark.parametrize(
    ("coded", "n", "message"),
    [
        ([1, 2], 3, "them has 2 bytes, too few for 3 numbers"),
        ([1, 2, 3], 2, "them does not hold 2 whole numbers"),
        ([1, 200], 2, "them does not hold 2 whole numbers"),
        ([255, 255, 255, 255, 127], 1, "whole numbers up to 2147483647"),
        ([128, 128, 128, 128, 128, 1], 1, "whole numbers up to 2147483647"),
        ([], 1, "too few"),
    ],
)
def test_damaged_bytes_are_refused(coded, n, message) -> None:
    with pytest.raises(ValueError, match=message):
        decode(np.array(coded, np.uint8), n, "them")


@given(
    st.lists(st.lists(st.integers(0, 5000), min_size=1).map(sorted)),
    st.sampled_from([np.int32, np.uint16]),
)
@settings(deadline=None)
def test_values_and_where_parts_begin_come_back(parts, dtype) -> None:
    lengths = np.array([len(part) for part in parts], np.int64)
    values = np.array([value for part in parts for value in part], np.int64)
    start = decode_starts(encode(lengths), len(parts), len(values), "lengths")
    assert start.tolist() == [0, *np.cumsum(lengths).tolist()]
    again = decode_steps(encode(steps(values, start)), start, 5000, "values", dtype)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize(
    ("coded", "start", "message"),
    [
        ([1, 2, 9], [0, 2, 3], None),
        ([1, 9], [0, 2], "them must hold whole numbers up to 9"),
        ([255, 255, 255, 255, 7], [0, 1], "them must hold whole numbers up to 9"),
        ([255, 255, 255, 255, 255, 7], [0, 1], "them does not hold 1 whole numbers"),
        ([1, 2], [0, 3], "them has 2 bytes, too few for 3"),
        ([1, 2, 3], [0, 2], "them does not hold 2 whole numbers"),
        ([1, 200], [0, 2], "them does not hold 2 whole numbers"),
    ],
)
def test_damaged_steps_are_refused(coded, start, message) -> None:
    coded, start = np.array(coded, np.uint8), np.array(start)
    if message is None:
        assert decode_steps(coded, start, 9, "them").tolist() == [1, 3, 9]
        return
    with pytest.raises(ValueError, match=message):
        decode_steps(coded, start, 9, "them")


def test_lengths_that_add_up_to_too_much_are_refused() -> None:
    with pytest.raises(ValueError, match="them must hold lengths that add up to 4 at most"):
        decode_starts(np.array([2, 3], np.uint8), 2, 4, "them")
