"""Sparse matrices in a model's files: what is saved comes back, what is damaged is refused."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.runtime.rows import add_matrix, describe_matrix, take_matrix
from longtail.runtime.store import Files, read_folder, write_folder


def saved(matrix):
    files = Files()
    add_matrix(files, "m", matrix)
    return files


def a_matrix(seed=0):
    rng = np.random.default_rng(seed)
    matrix = sp.random(6, 5, 0.4, "csr", np.float32, rng)
    matrix.sort_indices()
    return matrix


def test_a_matrix_comes_back_from_the_disk(tmp_path):
    matrix = a_matrix()
    write_folder(tmp_path / "m", saved(matrix))
    back = take_matrix(read_folder(tmp_path / "m"), "m", 5)
    assert back.dtype == np.float32
    assert back.shape == matrix.shape
    np.testing.assert_array_equal(back.indices, matrix.indices)
    np.testing.assert_array_equal(back.indptr, matrix.indptr)
    np.testing.assert_array_equal(back.data, matrix.data)


def test_a_matrix_of_ones_needs_no_values():
    ones = sp.csr_matrix(np.eye(3, dtype=np.float32))
    assert sorted(saved(ones).arrays) == ["m.columns", "m.start"]
    np.testing.assert_array_equal(take_matrix(saved(ones), "m", 3).toarray(), np.eye(3))


@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (4, 5)])
def test_an_empty_matrix_comes_back(shape):
    files = saved(sp.csr_matrix(shape, dtype=np.float32))
    describe_matrix("m", "n", "m").check(files, {"m": shape[1]})
    assert take_matrix(files, "m", shape[1]).shape == shape


def with_array(name, change):
    files = saved(a_matrix())
    files.arrays[name] = change(files.arrays[name].copy())
    return files


def wrap_around(start):
    """Bounds whose differences are positive in int64 although they fall."""
    start[1], start[2] = 2**62, -(2**63) + 10
    return start


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("m.start", lambda a: a[:-1], "has 5 for n, which is 6"),
        ("m.start", lambda a: a[:0], "leaves nothing for n"),
        ("m.start", lambda a: a.astype(np.int32), "must be of type int64. Got int32"),
        ("m.start", lambda a: a.reshape(-1, 1), "must have 1 dimensions"),
        ("m.start", lambda a: a + 1, "must hold rising whole numbers"),
        ("m.start", lambda a: a[::-1], "must hold rising whole numbers"),
        ("m.start", wrap_around, "must hold rising whole numbers"),
        ("m.columns", lambda a: a[:-1], "for m.n_entries, which is"),
        ("m.columns", lambda a: a + 3, "must hold whole numbers from 0 to below m"),
        ("m.columns", lambda a: a - 5, "must hold whole numbers from 0 to below m"),
        ("m.columns", lambda a: a.astype(np.int64), "must be of type int32"),
        ("m.values", lambda a: a[:-1], "for m.n_entries, which is"),
        ("m.values", lambda a: a * np.float32(np.nan), "must hold numbers from"),
        ("m.values", lambda a: a.astype(np.float64), "must be of type float32"),
    ],
)
def test_a_damaged_matrix_is_refused(name, change, message):
    schema, sizes = describe_matrix("m", "n", "m"), {"n": 6, "m": 5}
    schema.check(saved(a_matrix()), dict(sizes))
    with pytest.raises(ValueError, match=message):
        schema.check(with_array(name, change), dict(sizes))
