"""Documents with very many labels, and the size of products that nobody computes."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.labels.pairs import MOST_LABELS, estimate_product, thin_labels
from longtail.progress import SILENT, Silent


class Said(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def draw(n, n_columns, each, seed=0):
    """Return a matrix of ones, small columns the most frequent."""
    rng = np.random.default_rng(seed)
    columns = (rng.random((n, each)) ** 3 * n_columns).astype(np.int32).ravel()
    matrix = sp.csr_matrix((np.ones(n * each, np.float32), columns, np.arange(n + 1) * each))
    matrix.resize(n, n_columns)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def test_usual_documents_stay_as_they_are():
    Y, said = draw(50, 200, 5), Said()
    assert thin_labels(Y, 0, said) is Y
    assert said.lines == []


def test_a_crowded_document_keeps_some_labels_by_the_seed():
    crowded = sp.csr_matrix(np.ones((2, 5000), np.float32))
    Y, said = sp.csr_matrix(sp.vstack([draw(50, 5000, 5), crowded])), Said()
    thinned = thin_labels(Y, 3, said)
    assert np.diff(thinned.indptr)[-2:].tolist() == [MOST_LABELS, MOST_LABELS]
    assert (thinned[:50] != Y[:50]).nnz == 0
    assert (thinned > Y).nnz == 0
    assert (thin_labels(Y, 3, SILENT) != thinned).nnz == 0
    assert (thin_labels(Y, 4, SILENT) != thinned).nnz > 0
    assert said.lines == [
        "Note: 2 documents carry more than 1,000 labels, up to 5,000; which labels go together is "
        "learned from 1,000 of each"
    ]


@pytest.mark.parametrize(("n", "n_labels", "each"), [(2000, 300, 3), (500, 5000, 40), (50, 20, 1)])
def test_the_size_of_a_product_is_estimated(n, n_labels, each):
    Y, X = draw(n, n_labels, each), draw(n, 2000, 15, seed=1)
    for other in (Y, X):
        assert estimate_product(Y, other) == pytest.approx((Y.T @ other).nnz, rel=0.15)


def test_the_product_with_nothing_is_empty():
    assert estimate_product(sp.csr_matrix((3, 4)), sp.csr_matrix((3, 5))) == 0
