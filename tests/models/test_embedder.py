"""Documents embedded one by one, against matrix products."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.models.embedder import Embedder, embed_rows
from longtail.runtime.rows import view_rows
from longtail.runtime.store import Files


def random_rows(n=20, n_features=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, n_features)) * (rng.random((n, n_features)) < 0.2)
    X[3] = 0  # a document without features
    X[:, 7] = 0  # a feature without documents
    return sp.csr_matrix(X.astype(np.float32))


@pytest.mark.parametrize(("hidden", "residual"), [(0, 0), (5, 0), (6, 1)])
def test_rows_are_embedded_as_the_layers_would(hidden, residual):
    rng = np.random.default_rng(0)
    X = random_rows()
    shapes = [(30,), (30, 6), (6,), *([(6, hidden), (hidden,)] if hidden else [(0, 0), (0,)])]
    embedder = Embedder(
        *(rng.normal(size=shape).astype(np.float32) for shape in shapes),
        np.array([residual], np.float32),
    )
    check(embedder)
    assert embedder.dim == (hidden or 6)
    x = X.toarray() * embedder.feature_weight
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x = x @ embedder.weight + embedder.bias
    if hidden:
        x = np.maximum(x, 0) @ embedder.second + embedder.second_bias + (x if residual else 0)
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = embed_rows(embedder, view_rows(X), True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    alone = np.concatenate([embed_rows(embedder, view_rows(X[i]), True) for i in range(20)])
    assert np.array_equal(alone, found)


def check(embedder):
    files = Files()
    embedder.add_to_files(files)
    Embedder.describe(files).check(files, {"n_features": 30})


def zeros(*shapes):
    return (np.zeros(shape, np.float32) for shape in shapes)


def test_arrays_of_an_embedder_that_do_not_fit():
    with pytest.raises(ValueError, match=r"embedder\.second_bias has 4 for dim, which is 5"):
        check(Embedder(*zeros(30, (30, 6), 6, (6, 5), 4, 1)))
    with pytest.raises(ValueError, match="6 neurons cannot be added to 5"):
        check(Embedder(*zeros(30, (30, 6), 6, (6, 5), 5), np.ones(1, np.float32)))
