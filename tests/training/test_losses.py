"""Every loss against a slow, literal version in numpy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from longtail.training import losses  # noqa: E402


@pytest.fixture
def planted():
    """Scores of 6 documents for 9 labels; document 2 carries no label."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(6, 9))
    relevant = rng.random((6, 9)) < 0.3
    relevant[2] = False
    relevant[4, 5] = True
    return scores, relevant


def as_tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def literal_softmax(scores, relevant):
    total = 0.0
    for h, carried in zip(scores, relevant, strict=True):
        logs = np.log(np.exp(h) / np.exp(h).sum())
        total -= logs[carried].mean() if carried.any() else 0.0
    return total / len(scores)


def literal_bce(scores, relevant):
    p = 1 / (1 + np.exp(-scores))
    return -np.where(relevant, np.log(p), np.log(1 - p)).sum() / len(scores)


def test_softmax_and_bce(planted):
    scores, relevant = planted
    tensors = as_tensors(scores, relevant)
    np.testing.assert_allclose(losses.softmax(*tensors), literal_softmax(scores, relevant))
    np.testing.assert_allclose(losses.bce(*tensors), literal_bce(scores, relevant))


@pytest.mark.parametrize("n_biases", [1, 9])
@pytest.mark.parametrize("piece", [1 << 20, 20])
@pytest.mark.parametrize("align", [1, 16])
@pytest.mark.parametrize("name", ["bce", "softmax"])
def test_losses_over_all_labels_equal_the_plain_ones(
    planted, monkeypatch, name, align, piece, n_biases
):
    """Value and all gradients, in one piece and in pieces of one or two documents."""
    monkeypatch.setitem(losses.PIECE, "cpu", piece)
    monkeypatch.setitem(losses.ALIGN, "cpu", align)
    _, relevant = planted
    rng = np.random.default_rng(1)
    start = [rng.normal(size=shape) for shape in ((6, 4), (9, 4), (n_biases,))]
    pairs = [torch.from_numpy(part) for part in np.nonzero(relevant)]
    results = []
    for over_all in (True, False):
        phi, V, bias = (torch.tensor(part, requires_grad=True) for part in start)
        if over_all:
            loss = getattr(losses, f"{name}_over_all")(phi, V, bias, *pairs)
        else:
            loss = getattr(losses, name)(phi @ V.T + bias, torch.from_numpy(relevant))
        (3 * loss).backward()
        results.append([loss.detach(), phi.grad, V.grad, bias.grad])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_losses_over_all_labels_in_bf16_are_near(planted):
    _, relevant = planted
    rng = np.random.default_rng(1)
    phi, V = (torch.tensor(rng.normal(size=(n, 8)), dtype=torch.float32) for n in (6, 9))
    phi.requires_grad_()
    pairs = [torch.from_numpy(part) for part in np.nonzero(relevant)]
    for over_all in (losses.bce_over_all, losses.softmax_over_all):
        gradients = []
        for enabled in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = over_all(phi, V, torch.zeros(1), *pairs)
            gradients.append(torch.autograd.grad(loss, phi)[0])
        assert gradients[1].dtype == torch.float32
        np.testing.assert_allclose(gradients[1], gradients[0], atol=0.02)


def test_documents_without_labels_do_not_count_in_softmax():
    phi, V = torch.randn(3, 4), torch.randn(5, 4)
    none = torch.empty(0, dtype=torch.int64)
    assert losses.softmax_over_all(phi, V, torch.zeros(1), none, none) == 0
