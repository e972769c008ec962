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

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    second = (draw(6, hidden), draw(hidden)) if hidden else None
    embedder = Embedder.of(draw(30), draw(30, 6), draw(6), second, residual=bool(residual))
    check(embedder)
    assert embedder.dim == (hidden or 6)
    x = X.toarray() * embedder.feature_weight
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x = x @ embedder.weight.take(slice(None), 6) + embedder.bias
    if hidden:
        inner = embedder.second.take(slice(None), hidden)
        x = np.maximum(x, 0) @ inner + embedder.second_bias + (x if residual else 0)
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
    weight, second, *rest = zeros((30, 6), (6, 40), 30, 6)
    with pytest.raises(ValueError, match=r"embedder\.second are 64 wide, .* suit 4 columns"):
        check(Embedder.of(rest[0], weight, rest[1], (second, *zeros(4))))
    with pytest.raises(ValueError, match="6 neurons cannot be added to 40"):
        check(Embedder.of(rest[0], weight, rest[1], (second, *zeros(40)), residual=True))
    with pytest.raises(ValueError, match=r"embedder\.weight are 32 wide, .* suit 40 columns"):
        check(Embedder.of(rest[0], weight, *zeros(40)))
