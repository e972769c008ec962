import numpy as np
import scipy.sparse as sp

from longtail.topk import NO_LABEL, TopK


def make_top() -> TopK:
    labels = np.array([[2, 0, 1], [1, NO_LABEL, NO_LABEL]], dtype=np.int32)
    scores = np.array([[0.9, 0.25, 0.1234567], [0.5, 0, 0]], dtype=np.float32)
    return TopK(labels, scores)


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


def test_named_gives_names_and_leaves_missing_labels_out():
    assert list(make_top().named(["beer", "wine", "tea"])) == [
        [
            {"label": "tea", "score": 0.9},
            {"label": "beer", "score": 0.25},
            {"label": "wine", "score": 0.123457},
        ],
        [{"label": "wine", "score": 0.5}],
    ]


def test_named_of_no_documents_is_empty():
    empty = TopK(np.empty((0, 5), dtype=np.int32), np.empty((0, 5), dtype=np.float32))
    assert list(empty.named(["beer"])) == []


def test_above_drops_labels_below_the_threshold():
    kept = make_top().above(0.25)
    assert kept.labels.tolist() == [[2, 0, NO_LABEL], [1, NO_LABEL, NO_LABEL]]
    np.testing.assert_allclose(kept.scores, [[0.9, 0.25, 0], [0.5, 0, 0]])
    assert list(make_top().above(0.95).named(["beer", "wine", "tea"])) == [[], []]


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
