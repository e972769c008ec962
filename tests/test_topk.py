import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import LongtailError, MissingExtraError
from longtail.topk import NO_LABEL, TopK

NAMES = ["beer", "wine", "tea"]


def make_top() -> TopK:
    labels = np.array([[2, 0, 1], [1, NO_LABEL, NO_LABEL]], dtype=np.int32)
    scores = np.array([[0.9, 0.25, 0.1234567], [0.5, 0, 0]], dtype=np.float32)
    return TopK(labels, scores, NAMES)


def test_length_is_the_number_of_documents():
    assert len(make_top()) == 2


def test_k_is_the_number_of_columns():
    assert make_top().k == 3


def test_first_keeps_the_best_labels_and_their_scores():
    best = make_top().first(1)
    assert best.k == 1
    assert best.labels.tolist() == [[2], [1]]
    np.testing.assert_array_equal(best.scores, np.array([[0.9], [0.5]], dtype=np.float32))


def test_first_beyond_k_changes_nothing():
    assert make_top().first(9).labels.tolist() == make_top().labels.tolist()


def test_names_and_lists_leave_missing_labels_out():
    assert make_top().names == [["tea", "beer", "wine"], ["wine"]]
    assert make_top().to_list() == [
        [
            {"label": "tea", "score": 0.9},
            {"label": "beer", "score": 0.25},
            {"label": "wine", "score": 0.123457},
        ],
        [{"label": "wine", "score": 0.5}],
    ]


def test_the_list_of_no_documents_is_empty():
    empty = TopK(np.empty((0, 5), np.int32), np.empty((0, 5), np.float32), ["beer"])
    assert empty.to_list() == []
    assert empty.to_table(long=True).num_rows == empty.to_table().num_rows == 0
    assert repr(empty) == "TopK: 0 documents, up to 5 labels each"


def test_without_names_there_is_an_error_that_says_so():
    with pytest.raises(LongtailError, match="does not know the names of its labels; set label_na"):
        replace(make_top(), label_names=None).to_list()


def test_the_table_has_a_row_for_each_document():
    assert make_top().to_table(ids=["x", "y"]).to_pylist() == [
        {"id": "x", "labels": ["tea", "beer", "wine"], "scores": [0.9, 0.25, 0.123457]},
        {"id": "y", "labels": ["wine"], "scores": [0.5]},
    ]


def test_the_long_table_has_a_row_for_each_label():
    assert make_top().above(0.2).to_table(long=True).to_pylist() == [
        {"id": 0, "rank": 1, "label": "tea", "score": 0.9},
        {"id": 0, "rank": 2, "label": "beer", "score": 0.25},
        {"id": 1, "rank": 1, "label": "wine", "score": 0.5},
    ]


def test_uris_have_one_type_whether_or_not_there_are_any():
    top = replace(make_top(), label_uris=["http://beer", None, None])
    for some in (top, top.take(slice(1, 2))):  # the second document's label has none
        assert str(some.to_table().schema.field("uris").type) == "list<item: string>"
        assert str(some.to_table(long=True).schema.field("uri").type) == "string"


def test_a_table_needs_an_id_for_each_document():
    with pytest.raises(LongtailError, match=r"^3 ids for 2 documents; give one for each$"):
        make_top().to_table(ids=range(3))


def test_a_frame_is_the_same_table():
    pytest.importorskip("pandas")
    frame = make_top().to_frame(ids=[7, 8], long=True)
    assert frame["id"].tolist() == [7, 7, 7, 8]
    assert frame["label"].tolist() == ["tea", "beer", "wine", "wine"]


def test_a_frame_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingExtraError, match="to_frame needs pandas: pip install pandas; to_tab"
    ):
        make_top().to_frame()


def test_it_is_printed_in_few_lines():
    assert repr(make_top()) == (
        "TopK: 2 documents, up to 3 labels each\n"
        "  0: tea 0.90, beer 0.25, wine 0.12\n"
        "  1: wine 0.50"
    )
    many = TopK(np.zeros((90, 30), np.int32), np.ones((90, 30), np.float32))
    assert repr(many).splitlines()[1:] == [
        *(f"  {i}: 0 1.00, 0 1.00, 0 1.00, 0 1.00, 0 1.00, …" for i in range(5)),
        "  …",
    ]


def test_notebooks_show_a_table_in_which_labels_are_text():
    names = ["<b>beer</b>", "wine\u202e", "tea"]
    html = replace(make_top(), label_names=names)._repr_html_()
    assert "&lt;b&gt;beer&lt;/b&gt; 0.25" in html
    assert "wine\\u202e 0.50" in html
    assert html.count("<tr>") == 3
    assert "(the first of them)" in TopK.concatenate([make_top()] * 9)._repr_html_()


def test_names_stay_with_what_is_made_of_it():
    top, pairs = make_top(), sp.csr_matrix((2, 3), dtype=np.float32)
    others = [top.first(1), top.above(0.5), top.without(pairs, 2), top.take(np.array([1]))]
    assert all(other.label_names is top.label_names for other in others)
    assert TopK.concatenate([top, top]).label_names is top.label_names
    assert top.take(np.array([1])).names == [["wine"]]


def test_above_drops_labels_below_the_threshold():
    kept = make_top().above(0.25)
    assert kept.labels.tolist() == [[2, 0, NO_LABEL], [1, NO_LABEL, NO_LABEL]]
    np.testing.assert_allclose(kept.scores, [[0.9, 0.25, 0], [0.5, 0, 0]])
    assert make_top().above(0.95).to_list() == [[], []]


def test_without_removes_pairs_and_the_labels_below_move_up():
    pairs = sp.csr_matrix(np.array([[0, 0, 1], [0, 0, 1]], dtype=np.float32))
    left = make_top().without(pairs, 3)
    assert left.labels.tolist() == [[0, 1, NO_LABEL], [1, NO_LABEL, NO_LABEL]]
    np.testing.assert_allclose(left.scores, [[0.25, 0.1234567, 0], [0.5, 0, 0]])
    assert (left.labels.dtype, left.scores.dtype) == (np.int32, np.float32)
    assert make_top().without(pairs, 1).labels.tolist() == [[0], [1]]


def test_without_leaves_labels_alone_that_the_pairs_do_not_cover():
    pairs = sp.csr_matrix(np.array([[0, 0], [1, 0]], dtype=np.float32))  # key of (0, 2) is (1, 0)
    assert make_top().without(pairs, 3).labels.tolist() == make_top().labels.tolist()


def test_concatenate_puts_groups_one_after_the_other():
    both = TopK.concatenate([make_top(), make_top().above(0.5)])
    assert len(both) == 4
    assert both.labels[:2].tolist() == make_top().labels.tolist()
    assert both.labels[2:].tolist() == [[2, NO_LABEL, NO_LABEL], [1, NO_LABEL, NO_LABEL]]
    np.testing.assert_array_equal(both.scores[:2], make_top().scores)
    assert (both.labels.dtype, both.scores.dtype) == (np.int32, np.float32)


def test_concatenate_of_one_group_does_not_copy():
    alone = make_top()
    assert TopK.concatenate([alone]) is alone


def test_without_everything_leaves_no_label():
    pairs = sp.csr_matrix(np.ones((2, 3), dtype=np.float32))
    left = make_top().without(pairs, 2)
    assert (left.labels == NO_LABEL).all()
    assert (left.scores == 0).all()


def test_without_nothing_is_the_first_k():
    left = make_top().without(sp.csr_matrix((2, 3), dtype=np.float32), 2)
    assert left.labels.tolist() == make_top().first(2).labels.tolist()
