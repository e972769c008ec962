"""What users hold in memory, turned into a Dataset."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.data import Dataset, Splits, as_dataset
from longtail.data.coerce import as_documents
from longtail.errors import DataError

TEXTS = ["pale ale", "red wine", ""]


def test_a_dataset_stays_as_it_is():
    data = as_dataset(TEXTS, [["beer"], ["wine"], []])
    assert as_dataset(data) is data


def test_texts_with_label_names():
    data = as_dataset(TEXTS, [["beer", "drink"], ["wine", "drink"], []])
    assert list(data.label_names) == ["beer", "drink", "wine"]
    assert data.Y.toarray().tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert data.texts == TEXTS


def test_texts_from_any_iterable_and_numpy_strings():
    data = as_dataset(np.array(TEXTS), iter([("b",), {"a"}, np.array(["a", "b"])]))
    assert list(data.label_names) == ["a", "b"]
    assert data.Y.toarray().tolist() == [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array, sp.coo_matrix, np.asarray])
def test_rows_with_a_label_matrix(kind):
    X = kind(np.array([[0, 2.5], [1, 0]]))
    Y = kind(np.array([[1, 0, 3], [0, 0, 0]]))
    data = as_dataset(X, Y)
    assert isinstance(data.X, sp.csr_matrix)
    assert data.X.dtype == np.float32
    assert data.X.toarray().tolist() == [[0, 2.5], [1, 0]]
    assert data.Y.toarray().tolist() == [[1, 0, 1], [0, 0, 0]]
    assert list(data.label_names) == ["0", "1", "2"]


def test_rows_with_label_ids():
    data = as_dataset(sp.eye(3, format="csr"), [[4, 0, 4], [], np.array([1])])
    assert data.Y.toarray().tolist() == [[1, 0, 0, 0, 1], [0] * 5, [0, 1, 0, 0, 0]]


def test_without_labels_there_are_none():
    assert as_dataset(TEXTS).Y.shape == (3, 0)
    assert as_dataset([]).n_documents == 0


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.coo_array])
def test_zeros_that_rows_hold_are_left_out(kind):
    cells = (np.array([0, 2, 1e-60]), (np.array([0, 1, 2]), np.array([0, 1, 1])))
    X = kind(sp.coo_matrix(cells, shape=(3, 2)))
    assert X.nnz == 3
    for data in (as_dataset(X).X, as_documents(X)):
        assert data.indptr.tolist() == [0, 0, 1, 1]
        assert (data.indices.tolist(), data.data.tolist()) == ([1], [2])
    assert X.nnz == 3


def test_the_input_is_not_changed():
    X = sp.csr_matrix(
        (np.array([1, 2, 3], np.float32), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3)
    )
    Y = sp.csr_matrix(np.array([[5, 7]], dtype=np.float32))
    data = as_dataset(X, Y)
    assert data.X.toarray().tolist() == [[2, 0, 4]]
    assert X.indices.tolist() == [2, 0, 2]
    assert Y.data.tolist() == [5, 7]


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (["a"], [["x"], ["y"]], "1 texts but 2 rows of labels Y; both must have one row for "
         "each document"),
        (sp.eye(2), [["x"]], "2 rows of X but 1 rows of labels Y; both must have one row for "
         "each document"),
        ("a", None, "documents must be a list of texts or a matrix of rows; got str"),
        (3, None, "documents must be a list of texts or a matrix of rows; got int"),
        (["a", 3], None, "document 1 must be a string; got int"),
        (["a"], "x", "labels must be a list of label lists or a matrix; got str"),
        (["a"], [1.5], "the labels of document 0 must be a list, such as ['beer', 'wine'], or one "
         "label; got 1.5"),
        (["a"], [[1.5]], "the labels of document 0 must be names or whole numbers; got 1.5"),
        (["a"], [["x", None]], "the labels of document 0 must be names or whole numbers; got None"),
        (["a", "b"], [["x"], [""]], "the labels of document 1 must be names or whole numbers; "
         "got an empty string"),
        (["a"], [[-1]], "label id -1 of document 0 is outside 0 to 19999999"),
        (["a"], [[2**40]], "label id 1099511627776 of document 0 is outside 0 to 19999999"),
        (np.array([[1, np.nan]]), None, "X holds nan in row 0, column 1; every value must be a "
         "finite number"),
        (np.array([[0.0], [1e300]]), None, "X holds inf in row 1, column 0; every value must be a "
         "finite number"),
        (np.ones(3), None, "X has 1 dimensions; it must have 2: a row a document"),
        (["a"], np.array([[-1]]), "Y holds a negative or non-finite value; a label is 1, no label "
         "is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_says_why(data, labels, message):
    with pytest.raises(DataError) as caught:
        as_dataset(data, labels)
    assert str(caught.value) == message


def test_parts_and_labels_of_a_dataset_are_mistakes():
    data = as_dataset(TEXTS, [["a"], [], []])
    with pytest.raises(DataError, match=r"give one of them: splits\.train or splits\.test"):
        as_dataset(Splits(data, None))
    with pytest.raises(DataError, match="a Dataset has its labels already"):
        as_dataset(data, [["a"], [], []])
    assert isinstance(data, Dataset)
