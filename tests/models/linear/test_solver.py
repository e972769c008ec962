"""The solver against a slow optimizer and against what theory says about the optimum."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from longtail.models.linear.solver import Settings, descend, train_node
from longtail.runtime.rows import gather_rows, scale_to_unit, view_rows

EXACT = {"tolerance": 1e-6, "max_passes": 3000, "prune": 0.0}


def settings(loss="squared-hinge", C=1.0, bias=1.0, tolerance=0.1, max_passes=20, prune=0.1):
    return Settings(loss == "logistic", C, bias, tolerance, max_passes, prune)


def random_problem(n=40, n_features=12, n_classifiers=5, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.random(n, n_features, 0.4, format="csr", dtype=np.float32, random_state=rng)
    Y = sp.csr_matrix((rng.random((n, n_classifiers)) < 0.3).astype(np.float32))
    return scale_to_unit(X), Y


def objective(w, X, y, loss, C):
    margin = y * (X @ w)
    losses = np.logaddexp(0, -margin) if loss == "logistic" else np.maximum(0, 1 - margin) ** 2
    return 0.5 * w @ w + C * losses.sum()


@pytest.mark.parametrize("loss", ["squared-hinge", "logistic"])
@pytest.mark.parametrize("C", [0.1, 1.0, 20.0])
def test_the_optimum_is_that_of_a_general_optimizer(loss, C):
    X, Y = random_problem()
    W = descend(view_rows(X), X.shape[1], view_rows(Y), Y.shape[1], settings(loss, C, **EXACT), 1)
    with_bias = np.hstack([X.toarray(), np.ones((X.shape[0], 1))]).astype(np.float64)
    for c in range(Y.shape[1]):
        y = 2 * Y.toarray()[:, c] - 1
        best = minimize(objective, np.zeros(with_bias.shape[1]), (with_bias, y, loss, C), tol=1e-10)
        ours = objective(W[:, c].astype(np.float64), with_bias, y, loss, C)
        assert ours == pytest.approx(best.fun, rel=1e-3)
        np.testing.assert_allclose(W[:, c], best.x, atol=0.02 * np.abs(best.x).max())


def test_classifiers_trained_together_equal_those_trained_alone():
    X, Y = random_problem(n_classifiers=7)
    together = descend(view_rows(X), X.shape[1], view_rows(Y), 7, settings(**EXACT), 1)
    for c in range(7):
        alone = descend(
            view_rows(X), X.shape[1], view_rows(Y[:, c].tocsr()), 1, settings(**EXACT), 1
        )
        np.testing.assert_allclose(together[:, c], alone[:, 0], atol=1e-4)


def test_no_bias_means_no_constant():
    X, Y = random_problem()
    W = descend(view_rows(X), X.shape[1], view_rows(Y), Y.shape[1], settings(bias=0.0), 1)
    assert (W[-1] == 0).all()


def train(X, Y, documents, first, last, **parameters):
    scratch = np.full(X.shape[1], -1, np.int32)
    rows = np.asarray(documents, np.int32)
    node = train_node(
        view_rows(X), view_rows(Y), rows, first, last, settings(**parameters), 3, scratch
    )
    assert (scratch == -1).all()
    return node


def test_a_node_sees_only_its_own_documents_and_children():
    X, Y = random_problem(n=60, n_classifiers=9)
    documents = np.arange(0, 60, 2)
    node = train(X, Y, documents, 3, 7, **EXACT)
    W = descend(
        view_rows(X[documents]), X.shape[1], view_rows(Y[documents][:, 3:7].tocsr()), 4,
        settings(**EXACT), 3,
    )  # fmt: skip
    dense = np.zeros((X.shape[1], 4), np.float32)
    for row, feature in enumerate(node.features):
        cells = slice(node.start[row], node.start[row + 1])
        dense[feature, node.children[cells]] = node.weights[cells]
    np.testing.assert_allclose(dense, W[:-1], atol=1e-4)
    np.testing.assert_allclose(node.bias, W[-1], atol=1e-4)


def test_features_of_a_node_rise_and_small_weights_are_gone():
    X, Y = random_problem(n=80, n_features=30)
    node = train(X, Y, np.arange(80), 0, 5, prune=0.3)
    assert (np.diff(node.features) > 0).all()
    assert (np.diff(node.start) > 0).all()
    assert np.abs(node.weights).min() >= 0.3
    assert len(node.weights) < len(train(X, Y, np.arange(80), 0, 5, prune=0.0).weights)


def test_a_node_without_documents_says_nothing():
    X, Y = random_problem()
    node = train(X, Y, [], 0, 5)
    assert len(node.weights) == 0
    assert node.bias.tolist() == [0.0] * 5


def test_gathered_rows_hold_the_same_values():
    X, _ = random_problem()
    chosen = np.array([5, 3, 30], np.int32)
    own, columns = gather_rows(view_rows(X), chosen, np.full(X.shape[1], -1, np.int32))
    dense = np.zeros((3, X.shape[1]), np.float32)
    for i in range(3):
        cells = slice(own.start[i], own.start[i + 1])
        dense[i, columns[own.columns[cells]]] = own.values[cells]
    assert np.array_equal(dense, X[chosen].toarray())
    assert len(columns) == len(set(columns.tolist()))


def test_scaling_leaves_empty_and_zero_rows_alone():
    X = sp.csr_matrix(np.array([[3, 4], [0, 0], [0, 2]], np.float32))
    X = sp.vstack([X, sp.csr_matrix(([0.0], [0], [0, 1]), shape=(1, 2), dtype=np.float32)]).tocsr()
    scaled = scale_to_unit(X)
    expected = [[0.6, 0.8], [0, 0], [0, 1], [0, 0]]
    np.testing.assert_allclose(scaled.toarray(), expected, rtol=1e-6)
