"""New labels of an update score so low that known labels keep their places."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from longtail import KNN, load_model
from longtail.models.restraint import Judgement, Restraint, choose_judges, widen
from longtail.progress import Progress
from longtail.topk import TopK


def top_of(rows):
    labels, scores = zip(*rows, strict=True)
    return TopK(np.array(labels, np.int32), np.array(scores, np.float32))


def everything(scores):
    """Return what ranks all labels by these scores, as many as it is asked for."""
    order = np.argsort(-scores, axis=1, kind="stable").astype(np.int32)
    return lambda depth: TopK(order[:, :depth], np.take_along_axis(scores, order, 1)[:, :depth])


NEW = np.array([False, False, True])


def test_new_labels_that_a_document_does_not_carry_are_rivals():
    """Label 2 is new: the second document carries it, so that it takes nothing there."""
    Y = sp.csr_matrix(np.array([[1, 0, 0], [0, 1, 1], [1, 0, 0]], np.float32))
    before = top_of([([0], [0.3]), ([1], [0.5]), ([1], [0.4])])
    known = top_of([([0, 1], [0.3, 0.1]), ([1, 0], [0.5, 0.1]), ([1, 0], [0.4, 0.2])])
    after = top_of([([2, 0], [0.6, 0.3]), ([2, 1], [0.9, 0.5]), ([1, -1], [0.4, 0])])
    judged = Judgement.of(before, known, after, Y, NEW)
    assert judged.before.tolist() == [[True], [True], [False]]
    assert judged.known.tolist() == [[True, False], [True, False], [False, True]]
    assert judged.rivals[:, 0] == pytest.approx([0.6, -1, -1])
    assert judged.hits(1).tolist() == [[False, False], [True, False], [False, True]]
    assert judged.hits(0.49)[0].tolist() == [True, False]


def test_documents_without_new_labels_are_judges_where_there_are_enough():
    Y = sp.csr_matrix(np.repeat([[1, 0], [1, 1], [0, 0]], [20, 30, 5], axis=0))
    assert choose_judges(Y, np.array([1])).tolist() == list(range(20))
    assert len(choose_judges(Y[1:], np.array([1]))) == 54


def judge(before, known, rivals, n=1000):
    """Judge n documents with one place, of which the first few are as given."""
    columns = [np.full((n, 1), fill) for fill in (True, True, 1.0)]
    rest = np.full((n, 1), -1.0)
    for column, given in zip([*columns[:2], rest], (before, known, rivals), strict=True):
        column[: len(given), 0] = given
    return Judgement(*columns[:2], columns[2].astype(np.float32), rest.astype(np.float32))


def test_few_documents_may_lose_their_first_label():
    """Of 1,000 documents 3 on average, so that 2 of those judged may be."""
    rivals = [10, 5, 2.5, 2, 1.25]
    factor = judge([], [], rivals).choose_factor()
    assert factor == pytest.approx(0.4, rel=0.02)
    assert judge([], [], rivals).hits(factor)[:, 0].sum() == 998
    assert judge([], [], []).choose_factor() == 1
    assert judge([], [], rivals[:1], n=30).choose_factor() == 0.2  # not silenced


def test_new_labels_may_take_what_known_labels_gain():
    rivals = np.full(20, 2.0)
    assert judge([], [], rivals).choose_factor() < 0.51
    assert judge([False] * 40, [], rivals).choose_factor() == 1
    assert judge([False] * 40, [True] * 40 + [False] * 40, rivals).choose_factor() < 0.51


def test_places_behind_the_first_are_kept_too():
    """Of 500 places among the first five, new labels may take 5."""
    known = np.ones((100, 5), np.bool_)
    scores = np.tile(np.array([1, 0.5, 0.4, 0.3, 0.2], np.float32), (100, 1))
    rivals = np.full((100, 5), -1, np.float32)
    rivals[:6, 0] = 0.8
    assert Judgement(known, known, scores, rivals).choose_factor() == pytest.approx(0.25, rel=0.02)
    rivals[0, 0] = -1
    assert Judgement(known, known, scores, rivals).choose_factor() == 1


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


class Said(Progress):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.mark.parametrize("spoils", [True, False])
def test_training_that_costs_known_labels_is_left_out(monkeypatch, spoils):
    asked, update_rows = [], KNN.update_rows

    def update(self, X, Y, train, progress):
        update_rows(self, X, Y, train, progress)
        asked.append(train)
        if train and spoils:
            votes = sp.csr_matrix(self.voters_.Y[:, ::-1])
            self.voters_ = replace(self.voters_, Y=votes)

    monkeypatch.setattr(KNN, "trains_on", True)
    monkeypatch.setattr(KNN, "update_rows", update)
    texts, labels = (
        [*texts_of(20, "apple"), *texts_of(20, "car")],
        [["food"]] * 20 + [["road"]] * 20,
    )
    model, said = KNN(n_neighbours=5).fit(texts, labels), Said()
    model.partial_fit(texts, labels, train=True, progress=said)
    assert asked[0] is True
    assert asked[-1] is not spoils
    assert any("without" in line for line in said.lines) is spoils
    assert model.predict(["apple", "car"], k=1).names == [["food"], ["road"]]
