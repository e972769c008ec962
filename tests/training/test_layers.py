"""Sparse layers against dense ones; lazy Adam against a literal one."""

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from longtail.runtime.parallel import set_threads  # noqa: E402
from longtail.runtime.rows import view_rows  # noqa: E402
from longtail.training import layers  # noqa: E402
from longtail.training.layers import (  # noqa: E402
    NormalizedLinear,
    RowAdam,
    SparseBatch,
    SparseLinear,
    drop_cells,
    multiply,
    read_once,
    take_rows,
)


def random_rows(n=20, n_features=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, n_features)) * (rng.random((n, n_features)) < 0.2)
    X[3] = 0  # a document without features
    X[:, 7] = 0  # a feature without documents
    return sp.csr_matrix(X.astype(np.float32))


def cells_of(X, chosen=None):
    chosen = np.arange(X.shape[0]) if chosen is None else np.array(chosen)
    return SparseBatch.of(view_rows(X), chosen, X.shape[1])


def test_cells_are_those_of_the_chosen_rows_in_both_orders():
    X = random_rows()
    chosen = [5, 3, 5, 0]
    cells = cells_of(X, chosen)
    part = X[chosen]
    assert cells.start.tolist() == part.indptr.tolist()
    assert cells.feature.tolist() == part.indices.tolist()
    assert cells.value.tolist() == part.data.tolist()
    assert cells.touched.tolist() == sorted(set(part.indices.tolist()))
    by_feature = sp.csr_matrix(
        (cells.value[cells.order].numpy(), cells.document.numpy(), cells.touched_start.numpy())
    )
    assert np.array_equal(by_feature.toarray(), part[:, cells.touched.numpy()].T.toarray())


def test_cells_of_empty_documents():
    cells = cells_of(random_rows(), [3, 3])
    assert cells.start.tolist() == [0, 0, 0]
    weight = torch.ones(30, 4, requires_grad=True)
    product = multiply(cells, weight)
    assert product.tolist() == [[0.0] * 4] * 2
    product.sum().backward()
    assert weight.grad._nnz() == 0


def test_the_product_and_its_gradient_equal_the_dense_ones():
    X = random_rows()
    weight = read_once(torch.nn.Parameter(torch.randn(30, 4)))
    target = torch.randn(20, 4)
    product = multiply(cells_of(X), weight)
    (product * target).sum().backward()
    found = weight.grad
    assert found.is_coalesced()
    assert 7 not in found.indices()[0].tolist()
    dense = torch.from_numpy(X.toarray())
    np.testing.assert_allclose(product.detach(), dense @ weight.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.to_dense(), dense.T @ target, rtol=1e-5, atol=1e-6)


def test_taken_rows_have_a_gradient_of_these_rows_only():
    weight = read_once(torch.nn.Parameter(torch.randn(9, 3)))
    rows = torch.tensor([1, 4])
    taken = take_rows(weight, rows)
    (2 * taken).sum().backward()
    assert torch.equal(taken, weight[rows])
    assert weight.grad.is_coalesced()
    assert weight.grad.indices()[0].tolist() == [1, 4]
    assert weight.grad.to_dense().sum() == 12


def test_input_dropout_drops_cells_and_keeps_the_mean():
    cells = cells_of(random_rows(n=2000))
    torch.manual_seed(0)
    dropped = drop_cells(cells, 0.8)
    kept = dropped.value != 0
    assert abs(kept.float().mean() - 0.8) < 0.02
    assert torch.allclose(dropped.value[kept], cells.value[kept] / 0.8)
    assert drop_cells(cells, 1.0) is cells


def test_the_sparse_layer_has_neurons_of_one_length():
    layer = SparseLinear(30, 4)
    X = random_rows()
    with torch.no_grad():
        layer.bias += torch.randn(4)
        layer.length.fill_(3.0)
        directions = layer.weight / layer.weight.norm(dim=0)
        expected = 3 * torch.from_numpy(X.toarray()) @ directions + layer.bias
        np.testing.assert_allclose(layer(cells_of(X)), expected, rtol=1e-4, atol=1e-5)


def test_the_dense_layer_has_neurons_of_one_length():
    layer = NormalizedLinear(5, 4)
    with torch.no_grad():
        layer.length.fill_(3.0)
        np.testing.assert_allclose(layer.weights().norm(dim=1), [3.0] * 4, rtol=1e-6)
        x = torch.randn(2, 5)
        np.testing.assert_allclose(layer(x), x @ layer.weights().T, rtol=1e-5, atol=1e-6)


def test_the_part_of_the_gradient_that_is_left_out_lies_along_the_weights():
    """So it would only change lengths that are divided away (see the module's docstring)."""
    layer, X, target = SparseLinear(30, 4), random_rows(), torch.randn(20, 4)
    (layer(cells_of(X)) * target).sum().backward()
    ours = layer.weight.grad.to_dense()
    weight = layer.weight.detach().clone().requires_grad_()
    full = layer.length.detach() * torch.from_numpy(X.toarray()) @ (weight / weight.norm(dim=0))
    (full * target).sum().backward()
    difference, direction = ours - weight.grad, weight.detach() / weight.detach().norm(dim=0)
    along = direction * (difference * direction).sum(0)
    np.testing.assert_allclose(difference, along, rtol=1e-3, atol=1e-3 * ours.abs().max())


def dense_steps(X_of, start, length, bias, targets, lr):
    """Train the same layer densely: torch's own weight normalization and Adam."""
    weight, length, bias = (
        torch.nn.Parameter(part.detach().clone()) for part in (start, length, bias)
    )
    optimizer = torch.optim.Adam([weight, length, bias], lr)
    for seed, target in enumerate(targets):
        optimizer.zero_grad()
        neurons = torch._weight_norm(weight.T, length.expand(weight.shape[1], 1), 0)
        x = torch.from_numpy(X_of(seed).toarray())
        (torch.nn.functional.linear(x, neurons, bias) - target).square().mean().backward()
        optimizer.step()
    return weight, length, bias


def test_the_exact_layer_under_adam_is_weight_normalization_under_adam():
    torch.manual_seed(0)
    layer = SparseLinear(30, 4, exact=True)
    start = [part.detach().clone() for part in (layer.weight, layer.length, layer.bias)]
    targets = torch.randn(12, 20, 4)
    optimizer = torch.optim.Adam(layer.parameters(), 0.003)
    for seed, target in enumerate(targets):
        optimizer.zero_grad()
        (layer(cells_of(random_rows(seed=seed))) - target).square().mean().backward()
        optimizer.step()
    expected = dense_steps(lambda seed: random_rows(seed=seed), *start, targets, 0.003)
    for found, wanted in zip((layer.weight, layer.length, layer.bias), expected, strict=True):
        np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=0, atol=1e-6)
    assert not torch.equal(layer.weight[7], start[0][7]), "features without documents move, too"


def literal_adam(weight, steps, betas=(0.9, 0.999), lr=0.1, eps=1e-8):
    """Adam for each row by itself; `steps` is a list of {row: gradient}."""
    weight = weight.copy()
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    count = np.zeros(len(weight))
    for gradients in steps:
        for row, g in gradients.items():
            count[row] += 1
            mean[row] = betas[0] * mean[row] + (1 - betas[0]) * g
            square[row] = betas[1] * square[row] + (1 - betas[1]) * g**2
            m = mean[row] / (1 - betas[0] ** count[row])
            s = square[row] / (1 - betas[1] ** count[row])
            weight[row] -= lr * m / (np.sqrt(s) + eps)
    return weight


@pytest.mark.parametrize("move", ["_move_on_cpu", "_move_on_gpu"])
def test_row_adam_is_adam_for_the_touched_rows(move, monkeypatch):
    """The code for GPUs runs on a CPU too, so both are tried."""
    monkeypatch.setattr(layers, "_move_on_cpu", getattr(layers, move))
    rng = np.random.default_rng(0)
    start = rng.normal(size=(8, 3)).astype(np.float32)
    steps = [
        {int(row): rng.normal(size=3) for row in rng.choice(7, size=3, replace=False)}
        for _ in range(20)
    ]
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = RowAdam(weight, lr=0.1)
    for gradients in steps:
        rows = torch.tensor([list(gradients)])
        values = torch.tensor(np.array(list(gradients.values())), dtype=torch.float32)
        weight.grad = torch.sparse_coo_tensor(rows, values, weight.shape, check_invariants=True)
        optimizer.step()
    np.testing.assert_allclose(
        weight.detach(), literal_adam(start, steps, lr=0.1), rtol=1e-4, atol=1e-5
    )
    assert np.array_equal(weight.detach()[7], start[7])


def test_row_adam_keeps_the_lengths_of_neurons(monkeypatch):
    monkeypatch.setattr(layers, "ROWS_PER_TASK", 4)
    weights = []
    for n_threads in (1, 2):
        set_threads(n_threads)
        torch.manual_seed(0)
        layer = SparseLinear(30, 4)
        optimizer = RowAdam(layer.weight, lr=0.01, layer=layer)
        for seed in range(10):
            optimizer.zero_grad()
            layer(cells_of(random_rows(seed=seed))).square().sum().backward()
            optimizer.step()
        kept = layer.squares.clone()
        layer.measure()
        np.testing.assert_allclose(kept, layer.squares, rtol=1e-5)
        weights.append((layer.weight.detach(), kept))
    set_threads(None)
    assert torch.equal(weights[0][0], weights[1][0])
    assert torch.equal(weights[0][1], weights[1][1])
