"""Matrices whose arrays are broken are refused before compiled code reads them."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.data import Dataset, as_dataset, as_documents
from longtail.data.matrix import as_csr
from longtail.errors import DataError
from longtail.evaluation.metrics import evaluate
from longtail.topk import TopK

DENSE = np.array([[0, 2.5, 0], [1, 0, 3], [0, 0, 0]])


def spoil(form, **arrays):
    matrix = sp.csr_matrix(DENSE, dtype=np.float32).asformat(form)
    for name, array in arrays.items():
        setattr(matrix, name, array)
    return matrix


def ints(*numbers, dtype=np.int64):
    return np.array(numbers, dtype)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8, np.bool_, np.longdouble])
def test_every_format_becomes_rows(form, kind):
    matrix = sp.coo_matrix(DENSE.astype(kind)).asformat(form)
    rows = as_csr(matrix, "X")
    assert type(rows) is sp.csr_matrix
    assert rows.dtype == np.float32
    assert rows.toarray().tolist() == DENSE.astype(kind).tolist()


def test_a_sound_matrix_is_not_copied_and_an_unsound_flag_is_not_believed():
    sound = spoil("csr")
    assert as_csr(sound, "X") is sound
    liar = spoil("csr", indices=ints(1, 2, 0, dtype=np.int32))
    liar.has_canonical_format = True
    assert as_csr(liar, "X").indices.tolist() == [1, 0, 2]
    assert liar.indices.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("form", "arrays", "message"),
    [
        ("csr", {"indices": ints(1, 0, 3)}, "X has the index 3, outside 0 to 2"),
        ("csr", {"indices": ints(1, 0, -1)}, "X has the index -1, outside 0 to 2"),
        ("csr", {"indices": ints(1, 2**63 - 1, 0)}, "X has the index 9223372036854775807"),
        ("csr", {"indices": ints(1, 2**64 - 1, 0, dtype=np.uint64)}, "X has the index 18446744073"),
        ("csr", {"indices": ints(1, 0)}, "it ends at 3, but there are 2 indices and 3 values"),
        ("csr", {"data": np.ones(2)}, "it ends at 3, but there are 3 indices and 2 values"),
        ("csr", {"indptr": ints(0, 1, 9, 9)}, "it ends at 9"),
        ("csr", {"indptr": ints(0, 2, 1, 3)}, "must hold 4 numbers that rise from 0"),
        ("csr", {"indptr": ints(-1, 1, 3, 3)}, "must hold 4 numbers that rise from 0"),
        ("csr", {"indptr": ints(0, 2**62, -(2**62), 3)}, "must hold 4 numbers that rise from 0"),
        ("csr", {"indptr": ints(0, 1, 3)}, "must hold 4 numbers that rise from 0"),
        ("csr", {"indptr": np.array([0, np.nan, 3, 3])}, "indices of the type float64"),
        ("csr", {"indices": np.array([0, 1, None])}, "indices of the type object"),
        ("csr", {"indices": np.array([[0, 1, 2]])}, "in 2 dimensions"),
        ("csr", {"data": np.array(["a", "b", "c"], object)}, "values of the type object"),
        ("csr", {"data": np.ones(3, complex)}, "X holds complex numbers"),
        ("csr", {"data": np.array([1, np.inf, 1], np.float32)}, "X holds inf in row 1, column 0"),
        ("csr", {"_shape": (2**31, 3)}, "must hold 2147483649 numbers"),
        ("csr", {"_shape": (3, 1)}, "X has the index 2, outside 0 to 0"),
        ("csr", {"_shape": (3, None)}, "X is not a sound matrix"),
        ("csc", {"indices": ints(1, 0, 3)}, "X has the index 3, outside 0 to 2"),
        ("csc", {"indptr": ints(0, 3, 2, 3)}, "must hold 4 numbers that rise from 0"),
        ("bsr", {"indices": ints(1, 0, 3)}, "X has the index 3"),
        ("coo", {"coords": (ints(0, 1, 5), ints(0, 0, 0))}, "X has the index 5, outside 0 to 2"),
        ("coo", {"coords": (ints(0, 1), ints(0, 0, 0))}, "X has 2 rows for 3 columns of 3 cells"),
        ("coo", {"_shape": (2**31, 3)}, "X has 2147483648 rows, but only 3 values"),
        ("dia", {"offsets": ints(0)}, "X has 2 diagonals in 1 places"),
        ("lil", {"rows": np.array([[0], [9, 1], []], object)}, "X has the index 9, outside 0 to 2"),
        ("lil", {"rows": np.array([[0], [], []], object)}, "another number of values than of"),
    ],
)  # fmt: skip
def test_a_broken_matrix_says_where(form, arrays, message):
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        as_documents(spoil(form, **arrays))


def test_masked_values_are_not_taken_for_numbers():
    with pytest.raises(DataError, match="X is a masked array; fill it first"):
        as_documents(np.ma.masked_equal(DENSE, 1))


def test_the_matrices_of_a_dataset_are_looked_at_as_well():
    sound, broken = spoil("csr"), spoil("csr", indices=ints(1, 0, 2**31 - 1))
    names = ["a", "b", "c"]
    for data in (
        Dataset(broken, names, X=sound),
        Dataset(sound, names, X=broken),
        Dataset(sound, names, X=sound, exclude=broken),
    ):
        for use in (as_dataset, as_documents):
            with pytest.raises(DataError, match="has the index 2147483647, outside 0 to 2"):
                use(data)
    top = TopK(np.zeros((3, 1), np.int32), np.zeros((3, 1), np.float32))
    for wrong in (broken, Dataset(broken, names, X=sound)):
        with pytest.raises(DataError, match="has the index 2147483647, outside 0 to 2"):
            evaluate(top, wrong, train=as_dataset(sound, sound))


def test_a_dataset_whose_lengths_changed_is_compared_again():
    data = Dataset(spoil("csr"), ["a", "b", "c"], X=spoil("csr"))
    data.X._shape, data.X.indptr = (1, 3), ints(0, 1, dtype=np.int32)
    with pytest.raises(DataError, match="1 rows of X but 3 rows of labels Y"):
        as_dataset(data)


def test_labels_that_nobody_could_have():
    with pytest.raises(DataError, match="Y has 30000000 columns; at most 20000000 labels"):
        as_dataset(["a"], sp.csr_matrix((1, 30_000_000)))
    names = as_dataset(["a"], sp.csr_matrix((1, 20_000_000))).label_names
    assert (len(names), names[-1], names[3:5]) == (20_000_000, "19999999", ["3", "4"])
