"""What is random in a step: as much as was asked for, and the same for any number of processes."""

import pytest

torch = pytest.importorskip("torch")

from longtail.training.draws import Part, drawing_for, dropout  # noqa: E402


@pytest.mark.parametrize("share", [0.001, 0.3, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(share):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(2000, 7, 31), share, training=True)
    error = 5 * (share * (1 - share) / dropped.numel()) ** 0.5
    assert (dropped == 0).float().mean().item() == pytest.approx(share, abs=error + 1e-5)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - share)], rel=1e-4)


def test_neighbouring_places_are_dropped_independently():
    torch.manual_seed(1)
    kept = (dropout(torch.ones(100_000, 8), 0.5, training=True) > 0).float()
    assert torch.corrcoef(kept.T).fill_diagonal_(0).abs().max().item() < 0.02


def test_gradients_pass_where_values_did():
    torch.manual_seed(2)
    x = torch.randn(50, 3, requires_grad=True)
    dropped = dropout(x, 0.4, training=True)
    dropped.sum().backward()
    assert torch.equal(x.grad * x.detach(), dropped.detach())


def test_a_process_drops_what_one_process_drops_of_its_documents():
    x = torch.randn(9, 5)
    torch.manual_seed(3)
    whole = dropout(x, 0.4, training=True)
    torch.manual_seed(3)
    with drawing_for(Part(slice(2, 6), 9)):
        part = dropout(x[2:6], 0.4, training=True)
    assert torch.equal(part, whole[2:6])


@pytest.mark.parametrize(("share", "training"), [(0.0, True), (0.5, False)])
def test_nothing_is_dropped(share, training):
    x = torch.randn(4, 2)
    assert dropout(x, share, training) is x
