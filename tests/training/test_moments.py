"""What Adam remembers may be coarse; what it does stays near, and goes on exactly."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from longtail.training.checkpoint import (  # noqa: E402
    _pack,
    _unpack,
    optimizer_state,
    restore_optimizer,
)
from longtail.training.layers import RowAdam, _sparse_rows  # noqa: E402
from longtail.training.moments import (  # noqa: E402
    M_POWER,
    M_TOP,
    V_POWER,
    V_TOP,
    Moments,
    _from_bytes,
    _from_half,
    _to_bytes,
    _to_half,
)

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
COARSE = ("bfloat16", "int8")
WIDTH = 200  # no multiple of a block


@pytest.fixture(autouse=True)
def _seeded():
    unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)
    with torch.random.fork_rng(), unchecked:
        torch.manual_seed(0)
        yield


def train(form, n_steps=60, *, dense=False, optimizer=None, first=0, device="cpu"):
    """Move a table towards another, by noisy gradients of some of its rows."""
    wanted = torch.from_numpy(np.random.default_rng(1).normal(size=(30, WIDTH)))
    wanted = wanted.float().to(device)
    if optimizer is None:
        weight = torch.nn.Parameter(torch.zeros(30, WIDTH, device=device))
        optimizer = RowAdam(weight, 0.02, form=form)
    weight = optimizer.param_groups[0]["params"][0]
    for step in range(first, n_steps):
        torch.manual_seed(step)
        rows = torch.randperm(30)[: 30 if dense else 12].sort().values.to(device)
        noise = torch.randn(len(rows), WIDTH).to(device)
        gradient = (weight.detach() - wanted)[rows] + 0.1 * noise
        weight.grad = gradient if dense else _sparse_rows(rows, gradient, weight.shape)
        optimizer.step()
    return optimizer, (weight.detach() - wanted).square().mean().item()


@pytest.mark.parametrize(("top", "power"), [(M_TOP, M_POWER), (V_TOP, V_POWER)])
def test_bytes_are_right_in_the_mean_and_exact_once_rounded(top, power):
    x = torch.randn(4, WIDTH) * torch.tensor([1e-12, 1.0, 3.0, 0.0])[:, None]
    if power == V_POWER:
        x = x.square()
    found = [_from_bytes(*_to_bytes(x, top, power), top, power) for _ in range(200)]
    mean = torch.stack(found).mean(0)
    largest = x.abs().amax(1, keepdim=True)
    assert ((mean - x).abs() <= 0.006 * largest).all()
    again = _from_bytes(*_to_bytes(found[0], top, power), top, power)
    torch.testing.assert_close(again, found[0], rtol=1e-3, atol=0)


def test_halves_are_right_in_the_mean_and_exact_once_rounded():
    x = torch.randn(3, WIDTH)
    found = [_from_half(_to_half(x)) for _ in range(200)]
    torch.testing.assert_close(torch.stack(found).mean(0), x, rtol=3e-3, atol=0)
    assert ((found[0] - x).abs() <= x.abs() / 128).all()
    assert torch.equal(_from_half(_to_half(found[0])), found[0])


def test_a_square_above_0_stays_above_0():
    weight = torch.zeros(1, WIDTH)
    moments = Moments(weight, "int8")
    state, rows = moments.begin(weight), torch.tensor([0])
    square = torch.full((1, WIDTH), 1e-30)
    square[0, 0] = 1.0
    moved = {"mean": torch.zeros(1, WIDTH), "square": square, "steps": torch.ones(1)}
    moments.keep(state, rows, moved)
    assert (moments.fetch(state, rows)["square"] > 0).all()


@pytest.mark.parametrize("form", COARSE)
@pytest.mark.parametrize("dense", [False, True])
def test_coarse_memory_learns_as_well(form, dense):
    _, exact = train("float32", dense=dense)
    _, coarse = train(form, dense=dense)
    assert coarse == pytest.approx(exact, rel=0.05)


def test_a_dense_gradient_moves_as_adam_does():
    gradients = torch.randn(5, 3, 4)
    ours, theirs = (torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    both = [(ours, RowAdam(ours, 0.1)), (theirs, torch.optim.Adam([theirs], 0.1))]
    for gradient in gradients:
        for weight, optimizer in both:
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("form", COARSE)
def test_a_run_goes_on_to_the_bit(form):
    whole, _ = train(form)
    half, _ = train(form, 30)
    arrays = {}
    packed = _pack(optimizer_state(half), "state", arrays)
    other = RowAdam(torch.nn.Parameter(half.param_groups[0]["params"][0].detach()), 0.02, form=form)
    restore_optimizer(other, _unpack(packed, arrays))
    train(form, optimizer=other, first=30)
    for one, two in zip(*(each.param_groups[0]["params"] for each in (whole, other)), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("form", "per_weight"), [("float32", 8), ("bfloat16", 4), ("int8", 2.016)])
def test_bytes_a_weight(form, per_weight):
    weight = torch.zeros(10, 1024)
    state = Moments(weight, form).begin(weight)
    held = sum(value.nbytes for name, value in state.items() if name != "steps")
    assert held == pytest.approx(per_weight * weight.numel(), rel=0.01)


def test_on_a_cpu_the_host_is_where_it_is():
    moments = Moments(torch.zeros(2, 2), "host")
    assert moments.is_plain
    assert not moments.is_on_host


@ON_GPU
@pytest.mark.parametrize("form", COARSE)
def test_coarse_memory_learns_as_well_on_a_gpu(form):
    _, exact = train("float32", device="cuda")
    _, coarse = train(form, device="cuda")
    assert coarse == pytest.approx(exact, rel=0.05)


@ON_GPU
def test_the_host_remembers_what_a_gpu_would():
    on_gpu, _ = train("float32", device="cuda")
    half, _ = train("host", 30, device="cuda")
    arrays = {}
    packed = _pack(optimizer_state(half), "state", arrays)
    weight = torch.nn.Parameter(half.param_groups[0]["params"][0].detach())
    other = RowAdam(weight, 0.02, form="host")
    restore_optimizer(other, _unpack(packed, arrays))
    train("host", optimizer=other, first=30, device="cuda")
    assert other.state[weight]["mean"].device.type == "cpu"
    assert torch.equal(weight, on_gpu.param_groups[0]["params"][0])
