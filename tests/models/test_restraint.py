"""New labels of an update score so low that known labels keep their places."""

from copy import copy

import numpy as np
import pytest
import scipy.sparse as sp

from longtail import KNN, load_model
from longtail.models.restraint import Restraint, choose_factor, find_margins, widen
from longtail.topk import TopK


def top_of(rows):
    labels, scores = zip(*rows, strict=True)
    return TopK(np.array(labels, np.int32), np.array(scores, np.float32))


def everything(scores):
    """Return what ranks all labels by these scores, as many as it is asked for."""
    order = np.argsort(-scores, axis=1, kind="stable").astype(np.int32)
    return lambda depth: TopK(order[:, :depth], np.take_along_axis(scores, order, 1)[:, :depth])


NEW = np.array([False, False, True])


def test_a_new_label_before_a_right_one_is_a_mistake():
    """Label 2 is new: it comes first for the first document, which carries label 0 alone."""
    Y = sp.csr_matrix(np.array([[1, 0, 0], [0, 1, 1], [1, 0, 0], [1, 0, 0]], np.float32))
    before = top_of([([0], [0.3]), ([1], [0.5]), ([1], [0.4]), ([0], [0.7])])
    after = top_of(
        [([2, 0], [0.6, 0.3]), ([2, 1], [0.9, 0.5]), ([2, 1], [0.8, 0.4]), ([0, 2], [0.7, 0.6])]
    )
    # The second carries it, for the third nothing was right, and the fourth keeps what it had.
    assert find_margins(before, after, Y, NEW) == pytest.approx([0.5, 1, 1, 1])


def test_few_documents_may_lose_their_first_label():
    margins = np.ones(1000, np.float32)
    margins[:4] = 0.1, 0.2, 0.3, 0.4
    assert choose_factor(margins) == pytest.approx(0.3)  # 2 of 1,000 are allowed
    assert choose_factor(margins) < np.float32(0.3)
    assert choose_factor(np.ones(30, np.float32)) == 1
    assert choose_factor(np.ones(0, np.float32)) == 1


def test_new_labels_are_not_silenced():
    margins = np.ones(100, np.float32)
    margins[0] = 0.01
    assert choose_factor(margins) == 1
    margins[:9] = 0.01
    assert choose_factor(margins) == 0.2


def test_labels_are_ranked_by_what_is_left_of_their_scores():
    """However deep the list must be: 40 labels that are held back stand before all others."""
    rng = np.random.default_rng(0)
    scores = rng.random((5, 60)).astype(np.float32)
    scores[:, :40] += 1
    factors = np.where(np.arange(60) < 40, 0.1, 1).astype(np.float32)
    top = Restraint(factors).rank(everything(scores), 5)
    best = np.argsort(-(scores * factors), axis=1, kind="stable")[:, :5]
    assert np.array_equal(top.labels, best)
    assert np.array_equal(top.scores, np.take_along_axis(scores * factors, best, 1))


def test_labels_that_come_later_are_not_held_back():
    factors = widen(Restraint(np.array([1, 0.5], np.float32)), 3)
    assert factors.tolist() == [1, 0.5, 1]
    assert widen(None, 2).tolist() == [1, 1]


def texts_of(n, words):
    return [f"{words} w{i % 7} v{i % 5}" for i in range(n)]


@pytest.fixture(scope="module")
def updated():
    """Return a model whose new label is on most of the documents that are like all others."""
    old, new = texts_of(12, "apple pie"), texts_of(40, "apple pie tart")
    model = KNN(n_neighbours=30, temperature=10).fit(
        [*old, "car road"], [["food"]] * 12 + [["car"]]
    )
    labels = [["food"] if i % 4 == 0 else ["new"] for i in range(40)]
    return model.partial_fit([*new, "car"], [*labels, ["car"]])


def test_an_update_holds_new_labels_back(updated):
    documents, plain = texts_of(8, "apple pie tart"), copy(updated)
    plain.restraint_ = None
    food, new = (updated.label_names_.index(name) for name in ("food", "new"))
    asked = np.tile(np.array([food, new], np.int32), (8, 1))
    held, free = updated.score(documents, asked), plain.score(documents, asked)
    assert np.array_equal(held[:, 0], free[:, 0])
    assert (held[:, 1] < free[:, 1]).all()


def test_scores_are_those_of_predict_also_of_what_was_saved(updated, tmp_path):
    documents = [*texts_of(5, "apple pie"), "car", "unknown"]
    top = updated.predict(documents, k=3)
    assert np.array_equal(updated.score(documents, top.labels), top.scores)
    updated.save(tmp_path / "model")
    again = load_model(tmp_path / "model").predict(documents, k=3)
    assert np.array_equal(again.labels, top.labels)
    assert np.array_equal(again.scores, top.scores)


def test_a_new_training_forgets_the_restraint(updated):
    model = KNN().fit(texts_of(4, "a"), [["x"]] * 4)
    model.restraint_ = updated.restraint_
    assert model.fit(texts_of(4, "a"), [["x"]] * 4).restraint_ is None


def test_labels_that_no_document_carries_are_not_held_back():
    Y = sp.csr_matrix(([1.0] * 12, ([*range(12)], [0] * 12)), shape=(12, 2))
    X = sp.csr_matrix(np.ones((12, 1), np.float32))
    model = KNN(n_neighbours=30, temperature=10).fit(X, Y)
    more = sp.csr_matrix(np.repeat([[0, 0, 1], [1, 0, 0]], [30, 10], axis=0).astype(np.float32))
    model.partial_fit(sp.csr_matrix(np.ones((40, 1), np.float32)), more)
    assert model.restraint_ is not None
    assert model.restraint_.factors[:2].tolist() == [1, 1]
    assert model.restraint_.factors[2] < 1
