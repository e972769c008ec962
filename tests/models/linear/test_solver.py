"""The solver against a slow optimizer and against what theory says about the optimum."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from longtail.models.linear import solver
from longtail.models.linear.solver import Settings
from longtail.models.linear.training import constant
from longtail.runtime.rows import gather_rows, scale_to_unit, view_rows

EXACT = {"tolerance": 1e-6, "max_passes": 3000, "prune": 0.0}


def settings(loss="squared-hinge", bias=1.0, tolerance=0.1, max_passes=20, prune=0.1):
    return Settings(loss == "logistic", bias, tolerance, max_passes, prune)


def descend(X, Y, *, C=1.0, begin=None, **parameters):
    """Train a classifier for each column of Y; return their weights."""
    W = np.zeros((X.shape[1] + 1, Y.shape[1]), np.float32) if begin is None else begin.copy()
    costs = np.broadcast_to(np.float32(C), Y.shape[1]).copy()
    solver.descend(view_rows(X), view_rows(Y), W, costs, settings(**parameters), 1)
    return W


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
    W = descend(X, Y, C=C, loss=loss, **EXACT)
    with_bias = np.hstack([X.toarray(), np.ones((X.shape[0], 1))]).astype(np.float64)
    for c in range(Y.shape[1]):
        y = 2 * Y.toarray()[:, c] - 1
        best = minimize(objective, np.zeros(with_bias.shape[1]), (with_bias, y, loss, C), tol=1e-10)
        ours = objective(W[:, c].astype(np.float64), with_bias, y, loss, C)
        assert ours == pytest.approx(best.fun, rel=1e-6)
        np.testing.assert_allclose(W[:, c], best.x, atol=0.002 * np.abs(best.x).max())


def test_classifiers_trained_together_equal_those_trained_alone():
    X, Y = random_problem(n_classifiers=7)
    C = np.linspace(0.3, 2, 7)
    together = descend(X, Y, C=C, **EXACT)
    for c in range(7):
        alone = descend(X, Y[:, c].tocsr(), C=C[c], **EXACT)
        np.testing.assert_allclose(together[:, c], alone[:, 0], atol=1e-4)


@pytest.mark.parametrize("loss", ["squared-hinge", "logistic"])
def test_columns_that_fill_up_vectors_change_nothing_and_stay_zero(loss):
    X, Y = random_problem(n_classifiers=6)
    alone = descend(X, Y, loss=loss)
    wider = np.zeros((X.shape[1] + 1, solver.LANES), np.float32)
    solver.descend(
        view_rows(X), view_rows(Y), wider, np.ones(6, np.float32), settings(loss=loss), 1
    )
    assert np.array_equal(wider[:, :6], alone)
    assert (wider[:, 6:] == 0).all()


def test_no_bias_means_no_constant():
    X, Y = random_problem()
    W = descend(X, Y, bias=0.0)
    assert (W[-1] == 0).all()


@pytest.mark.parametrize("loss", ["squared-hinge", "logistic"])
def test_with_weights_to_begin_with_the_distance_from_them_is_minimized(loss):
    X, Y = random_problem()
    begin = np.random.default_rng(3).normal(size=(X.shape[1] + 1, Y.shape[1])).astype(np.float32)
    W = descend(X, Y, begin=begin, loss=loss, **EXACT)
    with_bias = np.hstack([X.toarray(), np.ones((X.shape[0], 1))]).astype(np.float64)
    for c in range(Y.shape[1]):
        y, start = 2 * Y.toarray()[:, c] - 1, begin[:, c].astype(np.float64)

        def near(w, y=y, start=start):
            squares = 0.5 * (w - start) @ (w - start)
            return objective(w, with_bias, y, loss, 1.0) - 0.5 * w @ w + squares

        assert near(W[:, c].astype(np.float64)) == pytest.approx(
            minimize(near, start).fun, rel=1e-3
        )


def train(X, Y, documents, first, last, begin=None, **parameters):
    scratch = np.full(X.shape[1], -1, np.int32)
    rows = np.asarray(documents, np.int32)
    n = last - first
    begin = constant(n, 0) if begin is None else begin
    C = np.ones(n, np.float32)
    node = solver.train_node(
        view_rows(X), view_rows(Y), rows, first, begin, C, settings(**parameters), 3, scratch
    )
    assert (scratch == -1).all()
    return node


def as_dense(node, n_features):
    dense = np.zeros((n_features, len(node.bias)), np.float32)
    for row, feature in enumerate(node.features):
        cells = slice(node.start[row], node.start[row + 1])
        dense[feature, node.children[cells]] = node.weights[cells]
    return dense


def test_weights_of_features_that_do_not_occur_stay():
    X, Y = random_problem()
    begin = train(X, Y, np.arange(40), 0, 5, prune=0.0)
    some = np.flatnonzero(X.toarray()[:, 3] == 0)[:4]
    after = train(X, Y, some, 0, 5, begin=begin, prune=0.0)
    unseen = np.setdiff1d(np.arange(X.shape[1]), X[some].indices)
    assert 3 in unseen
    before, now = as_dense(begin, X.shape[1]), as_dense(after, X.shape[1])
    assert np.array_equal(before[unseen], now[unseen])
    assert not np.array_equal(before, now)
    assert (np.diff(after.features) > 0).all()


def test_a_node_sees_only_its_own_documents_and_children():
    X, Y = random_problem(n=60, n_classifiers=9)
    documents = np.arange(0, 60, 2)
    node = train(X, Y, documents, 3, 7, **EXACT)
    W = descend(X[documents], Y[documents][:, 3:7].tocsr(), **EXACT)
    np.testing.assert_allclose(as_dense(node, X.shape[1]), W[:-1], atol=1e-4)
    np.testing.assert_allclose(node.bias, W[-1], atol=1e-4)


def test_features_of_a_node_rise_and_small_weights_are_gone():
    X, Y = random_problem(n=80, n_features=30)
    node = train(X, Y, np.arange(80), 0, 5, prune=0.3)
    assert (np.diff(node.features) > 0).all()
    assert (np.diff(node.start) > 0).all()
    assert np.abs(node.weights).min() >= 0.3
    assert len(node.weights) < len(train(X, Y, np.arange(80), 0, 5, prune=0.0).weights)


def test_a_node_is_the_same_wherever_its_features_stand_among_others():
    X, Y = random_problem(n=80, n_features=30)
    spread = np.sort(np.random.default_rng(0).choice(10_000, 30, replace=False)).astype(np.int32)
    wide = sp.csr_matrix((X.data, spread[X.indices], X.indptr), shape=(80, 10_000))
    near, far = (train(each, Y, np.arange(80), 0, 5, prune=0.05) for each in (X, wide))
    assert np.array_equal(far.features, spread[near.features])
    assert np.array_equal(far.start, near.start)
    assert np.array_equal(far.children, near.children)
    assert np.array_equal(far.weights, near.weights)


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
