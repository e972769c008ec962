"""Whether Triton's kernels can be had: not every GPU, torch or machine has what they need."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def works(trial: Callable[[], Tensor]) -> bool:
    """Whether a trial of some kernels ends in numbers, which shows what no version number does."""
    try:
        return bool(trial().isfinite().all())
    except Exception:  # no compiler, no folder for what it compiles, a GPU it does not know
        return False


@cache
def has_triton(device: torch.device) -> bool:
    """Whether Triton compiles for the device."""
    return device.type == "cuda" and find_spec("triton") is not None and works(lambda: _try(device))


def _try(device: torch.device) -> Tensor:
    from longtail.training.row_kernels import move_rows

    weight = torch.ones(2, 3, device=device)
    state = {name: torch.zeros_like(weight) for name in ("mean", "square")}
    state["steps"] = torch.zeros(2, device=device)
    rows = torch.tensor([1], device=device)
    given = weight, state, rows, torch.ones_like(weight[:1]), (0.1, 0.9, 0.999, 1e-8), None
    change = move_rows(*given, measured=True)
    return weight if change is None else weight + change
