"""The Dataset itself, and label matrices from lists of names."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from longtail.data import Dataset, Splits, as_dataset, build_label_matrix
from longtail.errors import DataError


@pytest.fixture
def data():
    Y, names = build_label_matrix([["b"], ["a", "c"], [], ["c"]])
    return Dataset(Y, names, texts=["zero", "one", "two", "three"], exclude=Y.copy())


def test_label_matrix_by_hand():
    Y, names = build_label_matrix([["b", "a", "b"], [], ["c"]])
    assert names == ["a", "b", "c"]
    assert Y.toarray().tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert Y.dtype == np.float32
    assert Y.indices.dtype == np.int32


def test_fixed_names_come_first_and_others_follow():
    Y, names = build_label_matrix([["x", "b"], ["y"]], ["y", "never", "b"])
    assert names == ["y", "never", "b", "x"]
    assert Y.toarray().tolist() == [[0, 0, 1, 1], [1, 0, 0, 0]]


@given(st.lists(st.lists(st.sampled_from("abcdefg"))))
def test_label_matrix_holds_exactly_what_was_given(rows):
    Y, names = build_label_matrix(rows)
    assert [{names[i] for i in Y[r].indices} for r in range(len(rows))] == [set(r) for r in rows]
    assert names == sorted(set().union(*rows))
    assert Y.has_canonical_format


def test_parts_must_agree(data):
    with pytest.raises(DataError, match="either feature rows X or texts, and not both"):
        Dataset(data.Y, data.label_names)
    with pytest.raises(DataError, match="3 texts but 4 rows of labels Y"):
        Dataset(data.Y, data.label_names, texts=["a", "b", "c"])
    with pytest.raises(DataError, match="2 label names for 3 labels"):
        Dataset(data.Y, ["a", "b"], texts=data.texts)
    with pytest.raises(DataError, match="exclude has the shape"):
        Dataset(data.Y, data.label_names, texts=data.texts, exclude=data.Y[:2])


def test_take_keeps_everything_in_order(data):
    taken = data.take(np.array([3, 0]))
    assert taken.texts == ["three", "zero"]
    assert taken.Y.toarray().tolist() == [[0, 0, 1], [0, 1, 0]]
    assert taken.exclude.toarray().tolist() == taken.Y.toarray().tolist()
    assert data.take([3, 0]).texts == data.take(range(3, -1, -3)).texts == taken.texts


def test_split_is_a_partition_and_repeats(data):
    first, second = data.split(0.25, seed=3)
    assert (len(first), len(second)) == (3, 1)
    assert sorted([*first.texts, *second.texts]) == sorted(data.texts)
    assert data.split(0.25, seed=3)[1].texts == second.texts


def test_align_renumbers_and_keeps_unknown_labels(data):
    aligned = data.align(["c", "new", "a"])
    assert list(aligned.label_names) == ["c", "new", "a", "b"]
    assert aligned.Y.toarray().tolist() == [[0, 0, 0, 1], [1, 0, 1, 0], [0] * 4, [1, 0, 0, 0]]
    assert (aligned.exclude != aligned.Y).nnz == 0
    assert data.align(["a", "b", "c"]) is data


def test_align_of_a_dataset_without_labels():
    empty = Dataset(sp.csr_matrix((2, 0), dtype=np.float32), [], texts=["a", "b"])
    assert empty.align(["x", "y"]).Y.shape == (2, 2)


def test_names_of_features_are_those_of_the_columns():
    Y = sp.csr_matrix(np.ones((2, 1), np.float32))
    X = sp.csr_matrix(np.ones((2, 3), np.float32))
    data = Dataset(Y, ["a"], X=X, feature_names=["x", "y", "z"])
    assert data.take(np.array([1])).feature_names == ["x", "y", "z"]
    with pytest.raises(DataError, match="2 feature names for 3 columns of X"):
        Dataset(Y, ["a"], X=X, feature_names=["x", "y"])
    with pytest.raises(DataError, match="but there are only texts"):
        Dataset(Y, ["a"], texts=["x", "y"], feature_names=["x", "y"])


def test_ids_and_columns_travel_with_their_documents():
    data = replace(
        as_dataset(["a", "b", "c"], [["x"], [], ["y"]]),
        ids=["1", "2", "3"],
        columns={"n": [10, 20, 30]},
        label_uris={"x": "http://x"},
    )
    some = data.take(np.array([2, 0])).align(["y", "x"])
    assert (some.ids, some.columns, some.label_uris) == (
        ["3", "1"],
        {"n": [30, 10]},
        {"x": "http://x"},
    )
    with pytest.raises(DataError, match="1 ids for 3 documents"):
        replace(data, ids=["1"])
    with pytest.raises(DataError, match="2 values in the column 'n' for 3 documents"):
        replace(data, columns={"n": [1, 2]})


def test_a_dataset_shows_counts_and_its_first_documents():
    texts = ["two\nlines <b>", "long " * 1000, *["z"] * 100_000]
    data = as_dataset(texts, [["beer", "ale"], [], *[["x"]] * 100_000])
    first, second, third, *_, last = repr(data).splitlines()
    assert first == "Dataset of 100,002 documents as texts, 3 labels, 1.00 a document"
    assert second == "  two lines <b> → ale, beer"
    assert third.endswith("… → no labels")
    assert (len(third) < 100, last) == (True, "  …")
    assert "two lines &lt;b&gt;</td><td>ale, beer" in data._repr_html_()
    assert len(data._repr_html_()) < 1000


def test_rows_and_splits_show_themselves():
    data = as_dataset(sp.eye(2, format="csr"), [[f"l{i}" for i in range(9)], []])
    splits = Splits(data, None)
    assert repr(splits).splitlines() == [
        "train: Dataset of 2 documents as rows of 2 features, 9 labels, 4.50 a document",
        "  1 features → l0, l1, l2, l3, l4, …",
        "  1 features → no labels",
        "test: none",
    ]
    assert splits._repr_html_().startswith("<h4>train</h4><p>Dataset of 2 documents")


def test_a_label_is_not_renamed_to_nothing():
    data = as_dataset(["a", "b"], [["x"], ["y"]])
    expected = "the new name of the label 'y' is empty; None takes a label away"
    with pytest.raises(DataError, match=f"^{expected}$"):
        data.rename(["x", ""])
    assert data.rename(["x", None]).label_names == ["x"]
