"""Documents embedded one by one, against matrix products."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.models import embedder as module
from longtail.models.embedder import Embedder, embed_rows
from longtail.runtime.quantized import QuantizedRows
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


def test_features_of_one_document_are_dropped_where_documents_are_long(monkeypatch):
    monkeypatch.setattr(module, "WORTH_DROPPING", 1)
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.random((20, 60)).astype(np.float32))
    X = sp.csr_matrix(sp.hstack([X, sp.identity(20)]), dtype=np.float32)  # each document's own
    whole = Embedder.of(
        np.ones(80, np.float32), rng.normal(size=(80, 6)), rng.normal(size=6).astype(np.float32)
    )
    smaller = whole.without_rare(X)
    assert smaller.row.tolist() == [*range(60), *[-1] * 20]
    assert len(smaller.weight.codes) == 60
    files = Files()
    smaller.add_to_files(files)
    Embedder.describe(files).check(files, {"n_features": 80})
    codes = whole.weight.codes.copy()
    codes[60:] = 0
    silent = whole._replace(weight=QuantizedRows(codes, whole.weight.scale))
    for embedder in (smaller, Embedder.from_files(files)):
        found = embed_rows(embedder, view_rows(X), True)
        np.testing.assert_array_equal(found, embed_rows(silent, view_rows(X), True))
    files.arrays["embedder.row"][3] = 60
    with pytest.raises(ValueError, match="row must hold whole numbers from -1 to below"):
        Embedder.describe(files).check(files, {"n_features": 80})
    short = sp.csr_matrix(sp.identity(80, dtype=np.float32))
    assert whole.without_rare(short).row.tolist() == list(range(80))
    often = sp.csr_matrix(sp.vstack([short[:70], short[:60], short[:50]]))
    assert whole.without_rare(often, beside_others=True).row.tolist() == list(range(80))
    monkeypatch.setattr(module, "MANY", 1)
    beside = whole.without_rare(often, beside_others=True)
    assert (beside.row >= 0).sum() == 60  # those in two documents
    monkeypatch.setattr(module, "LARGE", 1)
    assert whole.without_rare(often).row.tolist() == list(range(80))
    beside = whole.without_rare(often, beside_others=True)
    assert (beside.row >= 0).sum() == 50  # those in three documents
