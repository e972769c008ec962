"""Which documents to look at first, against a slow and literal choice."""

import numpy as np
import pytest

from longtail.errors import ParameterError
from longtail.evaluation.metrics import TrainingCounts
from longtail.evaluation.ordering import order_documents
from longtail.topk import NO_LABEL, TopK


def drawn(n=40, k=4, n_labels=15, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(n_labels)[:k] for _ in range(n)], np.int32)
    scores = -np.sort(-rng.random((n, k)).astype(np.float32), axis=1)
    labels[rng.random((n, k)) < 0.1] = NO_LABEL
    return TopK(labels, scores), TrainingCounts(500, rng.integers(0, 300, n_labels))


def entropy(p):
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def doubts(top, i):
    pairs = zip(top.labels[i].tolist(), top.scores[i].astype(float).tolist(), strict=True)
    return {label: entropy(score) for label, score in pairs if label != NO_LABEL}


def test_the_least_sure_come_first():
    top, counts = drawn()
    order, values = order_documents(top, counts)
    expected = [np.mean(list(doubts(top, i).values()) or [0]) for i in order]
    assert values == pytest.approx(expected)
    assert (np.diff(values) <= 0).all()
    assert sorted(order.tolist()) == list(range(len(top)))


@pytest.mark.parametrize("seed", range(5))
def test_the_most_useful_are_the_greedy_choice(seed):
    top, counts = drawn(seed=seed)
    order, values = order_documents(top, counts, "useful")
    left = np.log2(1 + 500 / np.maximum(counts.label_counts, 1))
    waiting = set(range(len(top)))
    for document, value in zip(order.tolist(), values.tolist(), strict=True):

        def worth(i):
            return sum(doubt * left[label] for label, doubt in doubts(top, i).items())

        assert value == pytest.approx(worth(document))
        assert value == pytest.approx(max(worth(i) for i in waiting))
        waiting.remove(document)
        for label in doubts(top, document):
            left[label] /= 2
    assert not waiting


def test_the_same_document_again_comes_late():
    top = TopK(np.array([[0, 1], [0, 1], [2, 3]], np.int32), np.full((3, 2), 0.5, np.float32))
    order, values = order_documents(top, TrainingCounts(10, np.array([5, 5, 6, 6])), "useful")
    assert order.tolist() == [0, 2, 1]
    assert values[2] == values[0] / 2


def test_no_documents_and_no_such_order():
    none = TopK(np.empty((0, 3), np.int32), np.empty((0, 3), np.float32))
    counts = TrainingCounts(1, np.ones(3, np.int64))
    for by in ("unsure", "useful"):
        assert len(order_documents(none, counts, by)[0]) == 0
    with pytest.raises(ParameterError, match=r"did you mean 'useful'"):
        order_documents(none, counts, "usefull")
