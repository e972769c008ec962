"""A batch's labels are found by a table of them alone."""

import numpy as np

from longtail.training.places import (
    find_place,
    find_places,
    keep_known,
    list_distinct,
    may_have,
    number_labels,
)


def test_every_label_has_its_place_and_no_other_label_has_one():
    rng = np.random.default_rng(0)
    # neighbours, and labels that a table of any size would put into one slot
    labels = np.unique(np.concatenate([np.arange(50), rng.integers(3_000_000, size=900)]))
    labels = np.concatenate([rng.permutation(labels), np.arange(1, 20) << 32])
    places = number_labels(labels)
    assert find_places(places, labels).tolist() == list(range(len(labels)))
    others = np.setdiff1d(np.arange(-1, 5_000), labels)
    assert (find_places(places, others) == -1).all()
    assert find_place(places, -1) == -1


def test_few_labels_without_a_place_are_looked_for():
    rng = np.random.default_rng(1)
    labels = np.unique(rng.integers(3_000_000, size=1000))
    places = number_labels(labels)
    assert all(may_have(places.marks, label) for label in labels)
    others = np.setdiff1d(rng.integers(3_000_000, size=20_000), labels)
    assert np.mean([may_have(places.marks, label) for label in others]) < 1 / 50


def test_no_labels_have_no_places():
    places = number_labels(np.empty(0, np.int64))
    assert find_places(places, np.array([0, 7, -1])).tolist() == [-1, -1, -1]


def test_labels_once_each_and_pairs_that_are_known():
    labels = np.array([5, -1, 3, 5, 3, 0, -1, 9])
    assert list_distinct(labels).tolist() == [0, 3, 5, 9]
    assert list_distinct(labels[:0]).tolist() == []
    documents, places = keep_known(np.array([0, 0, 1, 2]), np.array([4, -1, -1, 0]))
    assert documents.tolist() == [0, 2]
    assert places.tolist() == [4, 0]
