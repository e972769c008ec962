"""Sparse matrices in a model's files: what is saved comes back, what is damaged is refused."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.runtime.rows import add_matrix, describe_matrix, round_values, take_matrix
from longtail.runtime.store import Files, read_folder, write_folder


def saved(matrix, **options):
    files = Files()
    add_matrix(files, "m", matrix, **options)
    return files


def a_matrix(seed=0):
    rng = np.random.default_rng(seed)
    matrix = sp.random(6, 5, 0.4, "csr", np.float32, rng)
    matrix.sort_indices()
    return matrix


@pytest.mark.parametrize("rounded", [False, True])
def test_a_matrix_comes_back_from_the_disk(tmp_path, rounded):
    matrix = round_values(a_matrix()) if rounded else a_matrix()
    write_folder(tmp_path / "m", saved(matrix, rounded=rounded))
    back = take_matrix(read_folder(tmp_path / "m"), "m", 6, 5)
    assert back.dtype == np.float32
    assert back.shape == matrix.shape
    np.testing.assert_array_equal(back.indices, matrix.indices)
    np.testing.assert_array_equal(back.indptr, matrix.indptr)
    np.testing.assert_array_equal(back.data, matrix.data)


def test_rounded_values_are_near_and_rows_keep_their_length():
    rng = np.random.default_rng(0)
    matrix = sp.csr_matrix(rng.standard_normal((20, 30)).astype(np.float32))
    rounded = round_values(matrix)
    most = np.abs(matrix.toarray()).max(axis=1, keepdims=True) / 127
    assert (np.abs((rounded - matrix).toarray()) <= most).all()
    lengths = sp.linalg.norm(matrix, axis=1)
    np.testing.assert_allclose(sp.linalg.norm(rounded, axis=1), lengths, rtol=2e-5)
    np.testing.assert_array_equal(round_values(rounded).data, rounded.data)


def test_columns_out_of_order_are_saved_in_order():
    matrix = sp.csr_matrix((np.float32([1, 2, 3]), [4, 0, 2], [0, 2, 3]), shape=(2, 5))
    back = take_matrix(saved(matrix), "m", 2, 5)
    np.testing.assert_array_equal(back.toarray(), matrix.toarray())


def test_a_matrix_of_ones_needs_no_values():
    ones = sp.csr_matrix(np.eye(3, dtype=np.float32))
    assert sorted(saved(ones).arrays) == ["m.columns", "m.lengths"]
    np.testing.assert_array_equal(take_matrix(saved(ones), "m", 3, 3).toarray(), np.eye(3))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (4, 5)])
def test_an_empty_matrix_comes_back(shape, rounded):
    files = saved(sp.csr_matrix(shape, dtype=np.float32), rounded=rounded)
    describe_matrix("m", "n", rounded=rounded).check(files, {"n": shape[0]})
    assert take_matrix(files, "m", *shape).shape == shape


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("lengths", lambda a: a[:-1], "m.lengths has 5 bytes, too few for 6 numbers"),
        ("lengths", lambda a: a.astype(np.int32), "must be of type uint8. Got int32"),
        ("lengths", lambda a: a.reshape(-1, 1), "must have 1 dimensions"),
        (
            "lengths",
            lambda a: a + np.uint8(100),
            "m.lengths must hold lengths that add up to 12 at most",
        ),
        ("lengths", lambda a: a | np.uint8(128), "m.lengths does not hold 6 whole numbers"),
        ("columns", lambda a: a[:-1], "m.lengths must hold lengths that add up to 11 at most"),
        ("columns", lambda a: a + np.uint8(3), "must hold whole numbers up to 4"),
        ("columns", lambda a: np.append(a, a[:1]), "m.columns does not hold"),
        ("unit", lambda a: a[:-1], "has 5 for n, which is 6"),
        ("unit", lambda a: a * np.float32(np.nan), "must hold numbers from"),
        ("codes", lambda a: a[:-1], "m has .* values for .* columns"),
        ("codes", lambda a: a.astype(np.float64), "must be of type int8"),
        ("values", lambda a: a[:-1], "m has .* values for .* columns"),
        ("values", lambda a: a * np.float32(np.nan), "must hold numbers from"),
        ("values", lambda a: a.astype(np.float64), "must be of type float32"),
    ],
)
def test_a_damaged_matrix_is_refused(name, change, message):
    rounded = name != "values"
    schema, files = describe_matrix("m", "n", rounded=rounded), saved(a_matrix(), rounded=rounded)
    schema.check(files, {"n": 6})
    files.arrays[f"m.{name}"] = change(files.arrays[f"m.{name}"].copy())
    with pytest.raises(ValueError, match=message):
        check_and_take(schema, files)


def check_and_take(schema, files):
    schema.check(files, {"n": 6})
    take_matrix(files, "m", 6, 5)
