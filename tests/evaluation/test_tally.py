"""Metrics counted block by block, against those of all documents at once."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import DataError
from longtail.evaluation.bands import evaluate_bands
from longtail.evaluation.metrics import TrainingCounts, evaluate
from longtail.evaluation.reliability import error_of_first
from longtail.evaluation.sums import ExactSum, exact_sum
from longtail.evaluation.tally import Tally
from longtail.topk import NO_LABEL, TopK

N_LABELS, N = 40, 500


@pytest.fixture(scope="module")
def made_up():
    """Predictions of 40 labels, some missing, for documents that also carry 5 unknown ones."""
    rng = np.random.default_rng(0)
    labels = np.array([rng.permutation(N_LABELS)[:6] for _ in range(N)], np.int32)
    labels[rng.random(labels.shape) < 0.1] = NO_LABEL
    scores = -np.sort(-rng.random(labels.shape).astype(np.float32), axis=1)
    Y = sp.random(N, N_LABELS + 5, 0.08, "csr", random_state=1, dtype=np.float32)
    Y.data[:] = 1
    counts = TrainingCounts(300, rng.integers(0, 60, N_LABELS).astype(np.int64))
    return TopK(labels, scores), Y, counts


@pytest.mark.parametrize("size", [1, 7, 100, N])
def test_blocks_of_any_size_give_the_very_same_figures(made_up, size):
    top, Y, counts = made_up
    tally = Tally(counts, (1, 3, 5), "amazon", threshold=0.5)
    for start in range(0, N, size):
        rows = slice(start, start + size)
        carried = Y[rows].indices.max(initial=0) + 1  # blocks know the labels so far
        tally.add(top.take(rows), Y[rows][:, : max(carried, N_LABELS)])
    whole = evaluate(top, Y, train=counts, propensity="amazon", threshold=0.5)
    report = tally.report()
    assert {name: report[name] for name in whole} == whole
    assert report["ECE"] == round(error_of_first(top, Y), 5)
    assert tally.bands() == evaluate_bands(top, Y, counts)
    assert tally.true_counts.tolist() == np.bincount(Y.indices).tolist()


def test_no_documents(made_up):
    with pytest.raises(DataError, match="there are no documents to evaluate"):
        Tally(made_up[2]).report()


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e200])
def test_sums_are_exact(scale):
    values = np.random.default_rng(2).lognormal(0, 12, 3000) * scale
    values[::7] = 0
    exact = float(sum(map(Fraction, values.tolist())))
    assert exact_sum(values) == exact
    parts = ExactSum()
    for part in np.array_split(np.random.default_rng(3).permutation(values), 11):
        parts.add(part)
    assert parts.value == exact
    assert exact_sum(np.zeros(0)) == 0


def test_long_lists_count_the_same_in_blocks():
    """A product of matrices rounds by how many rows it has."""
    rng = np.random.default_rng(0)
    k, n_labels = 17, 60
    for n in range(330, 346):
        labels = np.argsort(rng.random((n, n_labels)), axis=1)[:, :k].astype(np.int32)
        top = TopK(labels, -np.sort(-rng.random((n, k)), axis=1).astype(np.float32))
        Y = sp.csr_matrix((rng.random((n, n_labels)) < 0.15).astype(np.float32))
        tally = Tally(TrainingCounts(5000, rng.integers(0, 900, n_labels)), (k,))
        for first in range(0, n, 7):
            tally.add(top.take(slice(first, first + 7)), Y[first : first + 7])
        found = tally.report()
        expected = evaluate(top, Y, train=tally.train, k=k)
        assert {name: found[name] for name in expected} == expected
