"""Whole numbers as bytes and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.runtime.varint import LARGEST, decode, encode


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
