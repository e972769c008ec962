"""Rows as int8, against the float32 rows that they come from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.runtime.quantized import QuantizedRows, add_row, multiply_row
from longtail.runtime.store import Files


def random_rows(n: int = 40, dim: int = 50, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.integers(-44, 14))
@settings(deadline=None)
def test_values_are_off_by_a_code_at_most_and_lengths_stay(seed: int, dim: int, power: int) -> None:
    rows = random_rows(5, dim, seed) * np.float32(10.0**power)
    found = QuantizedRows.of(rows)
    assert found.codes.shape == (5, -(-dim // 32) * 32)
    assert not found.codes[:, dim:].any()
    values = found.codes[:, :dim] * found.scale[:, None].astype(np.float64)
    most = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    assert (np.abs(values - rows) <= most / 127 + 127 * 1.5e-45).all()
    if power > -30:  # where float32 has all of its digits
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
        np.testing.assert_allclose(np.linalg.norm(values, axis=1), lengths, rtol=2e-5)
        again = QuantizedRows.of(found.take(np.arange(5), dim))
        np.testing.assert_array_equal(again.codes, found.codes)
        np.testing.assert_array_equal(again.scale, found.scale)


def test_compiled_code_reads_what_take_returns() -> None:
    rows, rng = QuantizedRows.of(random_rows()), np.random.default_rng(1)
    query, sums = rng.standard_normal((2, 50)).astype(np.float32)
    plain = rows.take(np.arange(40), 50)
    for i in range(40):
        expected = sums + np.float32(0.3) * plain[i]
        found = sums.copy()
        add_row(rows, i, np.float32(0.3), found)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        exact = plain[i].astype(np.float64) @ query
        np.testing.assert_allclose(multiply_row(rows, i, query), exact, rtol=1e-4, atol=1e-4)


def test_some_rows_in_another_order() -> None:
    matrix, order = random_rows(), np.array([7, 3, 3])
    rows = QuantizedRows.of(matrix)
    for found in (QuantizedRows.of(matrix, order), rows.select(order)):
        np.testing.assert_array_equal(found.take(slice(None), 50), rows.take(order, 50))
    joined = rows.join(rows.select(order))
    np.testing.assert_array_equal(joined.take(slice(40, None), 50), rows.take(order, 50))
    assert rows.n_bytes == 40 * (64 + 4)


def check(files: Files) -> None:
    QuantizedRows.describe("rows", "n", "dim").check(files, {"dim": 50})


def test_damaged_rows_are_refused() -> None:
    files = Files()
    QuantizedRows.of(random_rows()).add_to_files(files, "rows")
    check(files)
    np.testing.assert_array_equal(
        QuantizedRows.from_files(files, "rows").codes, files.arrays["rows.codes"]
    )
    for name, value, message in [
        ("codes", np.full((40, 64), -128, np.int8), "rows.codes must hold numbers from -127"),
        ("codes", np.zeros((40, 32), np.int8), "rows are 32 wide, which does not suit 50 columns"),
        ("codes", np.zeros((39, 64), np.int8), "has 40 for n, which is 39 elsewhere"),
        ("codes", np.zeros((40, 64), np.float32), "rows.codes must be of type int8"),
        ("scale", np.full(40, np.nan, np.float32), "rows.scale must hold numbers from 0 to"),
        ("scale", np.full(40, -1, np.float32), "rows.scale must hold numbers from 0 to"),
    ]:
        damaged = Files(arrays={**files.arrays, f"rows.{name}": value})
        with pytest.raises(ValueError, match=message):
            check(damaged)
