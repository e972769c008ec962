"""Hierarchical metrics, on numbers worked by hand."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import DataError
from longtail.evaluation.hierarchical import AboveCounts, link_above
from longtail.topk import TopK

# concepts: 0 food > 1 drinks > 2 beer; 1 drinks > 3 wine; 4 chess
PAIRS = np.array([[1, 0], [2, 1], [3, 1]])
# labels: 0 beer, 1 wine, 2 food, 3 chess, 4 in no hierarchy; drinks is no label
CONCEPTS = np.array([2, 3, 0, 4, -1])
ABOVE = link_above(PAIRS, CONCEPTS, 5)


def top(*rows):
    labels = np.array(rows, np.int32)
    return TopK(labels, np.ones(labels.shape, np.float32))


def evaluate_above(predicted, Y, above, k):
    counts = AboveCounts(above, k)
    for row in range(max(len(predicted), 1)):  # one by one, which must not matter
        last = row == len(predicted) - 1
        counts.add(predicted.take(slice(row, row + 1)), Y[row:] if last else Y[row])
    return counts.report()


def test_steps_go_through_concepts_that_are_no_labels():
    one, two, three = (sorted(zip(*each.nonzero(), strict=True)) for each in ABOVE)
    assert one == []
    assert two == [(0, 2), (1, 2)]
    assert three == []


def test_what_is_above_a_true_label_counts_in_part():
    Y = sp.csr_matrix(np.array([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], np.float32))
    predicted = top([2, 3], [0, 4], [0, 1])
    found = evaluate_above(predicted, Y, ABOVE, (1, 2))
    # food stands two steps above beer: a quarter; chess is right. Beer is below food: nothing.
    assert found["hP@1"] == pytest.approx(100 * (1 / 4) / 3)
    assert found["hP@2"] == pytest.approx(100 * (1 / 4 + 1) / 2 / 3)
    assert found["hrecall@2"] == pytest.approx(100 * (1 / 4 + 1) / 2 / 3)


def test_a_label_that_is_right_counts_once():
    Y = sp.csr_matrix(np.array([[1, 1, 1, 0, 0]], np.float32))
    found = evaluate_above(top([2, 0, 1]), Y, ABOVE, (1, 3))
    assert found == {
        "hP@1": pytest.approx(100),  # it is true itself, whatever it is above
        "hrecall@1": pytest.approx(100 * (1 + 1 / 4 + 1 / 4) / 3),
        "hP@3": pytest.approx(100),
        "hrecall@3": pytest.approx(100),
    }


def test_direct_parents_count_half_and_cycles_end():
    above = link_above(np.array([[0, 1], [1, 0]]), np.array([0, 1]), 2)
    Y = sp.csr_matrix(np.array([[1, 0]], np.float32))
    assert evaluate_above(top([1]), Y, above, (1,))["hP@1"] == 50


def test_missing_predictions_and_unknown_labels():
    Y = sp.csr_matrix(np.array([[1, 0, 0, 0, 0, 1]], np.float32))  # the sixth is unknown
    found = evaluate_above(top([0, -1]), Y, ABOVE, (2,))
    assert found == {"hP@2": pytest.approx(50), "hrecall@2": pytest.approx(50)}


def test_as_many_predictions_as_documents():
    with pytest.raises(DataError, match="1 predictions for 2 documents"):
        evaluate_above(top([0]), sp.csr_matrix((2, 5)), ABOVE, (1,))
