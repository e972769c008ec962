import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

from longtail.models import get_model_class
from longtail.models.fusion.candidates import (
    COMMON,
    LEAST,
    PER_VOICE,
    Said,
    ask,
    choose_proposers,
    describe_candidates,
    join_voices,
    list_voices,
    spread,
    unite,
)
from longtail.topk import NO_LABEL, TopK

SHARES = np.array([0.5, 0.25, 0.1, 0.0], np.float32)


def ids(*rows):
    return np.array(rows, np.int32)


def test_labels_of_all_lists_are_united():
    one, other = ids([3, 1], [0, NO_LABEL]), ids([1, 2], [0, 3])
    assert unite([one, other], 4).tolist() == [[3, 1, 2], [0, 3, -1]]


def test_a_list_is_spread_over_labels():
    labels = ids([2, 0, -1, 3])
    scores, missing = spread(ids([3, 2]), np.array([[0.9, 0.5]], np.float32), labels, 4)
    np.testing.assert_allclose(scores, [[0.5, 0, 0, 0.9]])
    assert missing.tolist() == [[-1, 0, -1, -1]]


def test_a_label_is_described_by_scores_and_places_among_what_was_proposed():
    labels = ids([0, 1, 3, -1])
    scores = np.array([[[0.8, 0.5, 0.5, 0]], [[0.0, 0.9, 0.2, 0]]], np.float32)
    found = describe_candidates(Said(labels, 4, scores), SHARES)
    assert found.start.tolist() == [0, 3]
    assert found.labels.tolist() == [0, 1, 3]
    assert found.inputs.shape == (3, 2 * PER_VOICE + COMMON)
    # label 1: one label is above it for the first member, none for the second
    expected = [np.log(0.5), -np.log(0.5), 1 / 2, np.log(0.9), -np.log(0.1), 1, np.log(0.25)]
    np.testing.assert_allclose(found.inputs[1], expected, rtol=1e-5)
    # label 3 has the same place for the first member, as their scores are equal
    expected = [np.log(0.5), -np.log(0.5), 1 / 2, np.log(0.2), -np.log(0.8), 1 / 2, np.log(1e-6)]
    np.testing.assert_allclose(found.inputs[2], expected, rtol=1e-5)
    # the second member says nothing for label 0, so that it has no place there
    np.testing.assert_allclose(found.inputs[0, 3:6], [np.log(LEAST), 0, 0], atol=1e-4)


def test_seeds_of_one_model_speak_with_one_voice():
    names = ["linear", "attention-xml", "glas-fast", "attention-xml-3", "mnn-2"]
    voices = list_voices(names)
    assert voices == {"linear": [0], "attention-xml": [1, 3], "glas-fast": [2], "mnn": [4]}
    scores = np.arange(10, dtype=np.float32).reshape(5, 1, 2)
    joined = join_voices(names, scores)
    assert joined.dtype == np.float32
    assert joined.tolist() == [[[0, 1]], [[4, 5]], [[4, 5]], [[8, 9]]]


def test_what_is_asked_for_beside_changes_no_description():
    labels, scores = ids([0, 1, 2]), np.array([[[0.3, 0.6, 0.9]]], np.float32)
    alone = describe_candidates(Said(labels[:, :2], 2, scores[:, :, :2]), SHARES)
    beside = describe_candidates(Said(labels, 2, scores), SHARES)
    assert np.array_equal(beside.inputs[:2], alone.inputs)
    assert beside.inputs[2, 2] == 1  # nothing that was proposed is above it


def test_a_silent_member_scores_nothing():
    said = Said(ids([0, 1]), 2, np.full((2, 1, 2), 0.5, np.float32))
    assert said.without(1).scores.tolist() == [[[0.5, 0.5]], [[0, 0]]]
    assert said.scores.min() == 0.5


def listed(n, right, k=50):
    """Return lists for n documents that carry label 0 each: it stands at these places, or not."""
    labels = np.tile(np.arange(1, k + 1, dtype=np.int32), (n, 1))
    for i, place in enumerate(right):
        if place is not None:
            labels[i, place] = 0
    return TopK(labels, np.zeros((n, k), np.float32))


def test_members_propose_as_long_as_they_find_enough_right_labels():
    Y = sp.csr_matrix((np.ones(100, np.float32), (np.arange(100), np.zeros(100, int))), (100, 60))
    strong = listed(100, [3] * 60 + [25] * 10 + [45] * 5)  # nothing new from 30 to 40
    lists = {"strong": strong, "same": strong, "slow": listed(100, [None] * 97 + [0] * 3)}
    assert choose_proposers(lists, Y, {"strong": 0.5, "same": 0.6}) == {"strong": 30, "slow": 10}
    costs = {"strong": 0.5, "same": 0.6, "slow": 4.0}
    assert choose_proposers(lists, Y, costs) == {"strong": 30}


def test_a_slow_member_proposes_only_what_quick_ones_do_not_find():
    Y = sp.csr_matrix((np.ones(100, np.float32), (np.arange(100), np.zeros(100, int))), (100, 60))
    lists = {
        "first": listed(100, [0] * 70),
        "quick": listed(100, [None] * 70 + [0] * 8),
        "slow": listed(100, [None] * 70 + [0] * 10),
    }
    assert set(choose_proposers(lists, Y, {"first": 0.1})) == {"first", "slow"}
    costs = {"first": 0.1, "quick": 0.3, "slow": 4.0}
    assert set(choose_proposers(lists, Y, costs)) == {"first", "quick"}


def test_no_member_proposes_more_than_a_saved_model_may():
    """Of documents with eight labels 24 are proposed first, which is no multiple of the step."""
    Y = sp.csr_matrix(np.hstack([np.ones((10, 8)), np.zeros((10, 60))]), dtype=np.float32)
    labels = np.tile(np.arange(8, 58, dtype=np.int32), (10, 1))
    labels[:, [0, 5, 15, 22, 30, 40, 48]] = np.arange(7)  # the eighth is not found
    lists = {"one": TopK(labels, np.zeros((10, 50), np.float32))}
    assert choose_proposers(lists, Y, {}) == {"one": 50}


def test_without_any_right_label_one_member_proposes():
    Y = sp.csr_matrix((5, 60), dtype=np.float32)
    lists = {"one": listed(5, [0] * 5), "other": listed(5, [0] * 5)}
    assert len(choose_proposers(lists, Y, {})) == 1


@pytest.fixture(scope="module")
def members():
    data = planted_dataset(n_labels=12)
    settings = {"linear": {"flat": 0, "branching": 3, "max_leaf": 4}, "knn": {}}
    return {name: get_model_class(name)(**own).fit(data) for name, own in settings.items()}


def test_all_members_score_what_some_propose(members):
    X = planted_dataset(n=40, seed=1).X
    said = ask(members, {"linear": 3}, X, X, 12)
    assert said.labels.shape == (40, 3)
    assert said.n_proposed == 3
    top = members["linear"].predict_documents(X, 3)
    assert np.array_equal(said.labels, top.labels)
    assert np.array_equal(said.scores[0], top.scores)
    assert np.array_equal(said.scores[1], members["knn"].score_documents(X, top.labels))


def test_more_labels_than_are_proposed_are_asked_for_beside(members):
    X = planted_dataset(n=40, seed=1).X
    few, many = (ask(members, {"linear": 3, "knn": 2}, X, X, 12, k=k) for k in (1, 8))
    assert few.n_proposed == many.n_proposed
    assert np.array_equal(few.labels, many.labels[:, : few.n_proposed])
    assert np.array_equal(few.scores, many.scores[:, :, : few.n_proposed])
    assert all(len(set(row[row >= 0])) >= 8 for row in many.labels)
    for name, own in zip(members, many.scores, strict=True):
        assert np.array_equal(own, members[name].score_documents(X, many.labels))


def test_one_document_is_asked_about_as_many_are(members):
    X = planted_dataset(n=40, seed=1).X
    together = ask(members, {"linear": 3, "knn": 2}, X, X, 12)
    for i in range(5):
        alone = ask(members, {"linear": 3, "knn": 2}, X[i], X[i], 12)
        width = alone.labels.shape[1]
        assert np.array_equal(alone.labels[0], together.labels[i, :width])
        assert np.array_equal(alone.scores[:, 0], together.scores[:, i, :width])
