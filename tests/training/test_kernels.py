"""Kernels on a GPU do what plain torch does; without a GPU nobody asks for them."""

import pytest

torch = pytest.importorskip("torch")

from longtail.training.kernels import has_triton, works  # noqa: E402
from longtail.training.layers import _move_on_gpu  # noqa: E402

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SETTINGS = (0.01, 0.9, 0.999, 1e-8)


def test_a_trial_that_fails_or_gives_no_numbers_says_no():
    assert works(lambda: torch.ones(2))
    assert not works(lambda: torch.tensor([1.0, float("nan")]))
    assert not works(lambda: 1 / 0)


def test_a_cpu_has_no_kernels():
    assert not has_triton(torch.device("cpu"))


@ON_GPU
@pytest.mark.parametrize("measured", [False, True])
def test_rows_move_as_by_torch(measured):
    pytest.importorskip("triton")
    from longtail.training.row_kernels import move_rows

    torch.manual_seed(0)
    weights = [torch.ones(9, 300, device="cuda") for _ in range(2)]
    states = [
        {"mean": torch.zeros_like(each), "square": torch.zeros_like(each), "steps": each[:, 0] * 0}
        for each in weights
    ]
    for _ in range(4):
        rows = torch.randperm(9, device="cuda")[:4].sort().values
        values = torch.randn(4, 300, device="cuda")
        change = _move_on_gpu(weights[0], states[0], rows, values, SETTINGS)
        given = weights[1], states[1], rows, values, SETTINGS, torch.zeros((), device="cuda")
        found = move_rows(*given, measured=measured)
        assert measured == (found is not None)
        if found is not None:
            torch.testing.assert_close(found, change, rtol=1e-4, atol=1e-5)
    assert torch.equal(states[1]["steps"], states[0]["steps"])
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)
    before = weights[1].clone()
    move_rows(weights[1], states[1], rows, values, SETTINGS, torch.ones((), device="cuda"))
    assert torch.equal(weights[1], before)
