"""A batch's labels are found by a table of them alone."""

import numpy as np

from longtail.training.places import find_place, find_places, number_labels


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


def test_no_labels_have_no_places():
    places = number_labels(np.empty(0, np.int64))
    assert find_places(places, np.array([0, 7, -1])).tolist() == [-1, -1, -1]
