"""A Triton kernel that takes Adam's step for some rows: one launch in place of two dozen."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 256  # columns at a time
MEASURED_ROWS = 64  # rows whose changes are summed up before they are written


def move_rows(
    weight: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    values: Tensor,
    settings: tuple[float | Tensor, float, float, float],
    found_inf: Tensor | None,
    *,
    measured: bool = False,
) -> Tensor | None:
    """Take one step for `rows`, unless `found_inf` is above 0; the rate may lie on the GPU.

    If it is `measured`, return by how much Σ w² of each column has changed.
    """
    lr, beta1, beta2, eps = settings
    width, guarded = weight.shape[1], found_inf is not None
    n_rows = MEASURED_ROWS if measured else 1  # of one program
    grid = (-(-len(rows) // n_rows), -(-width // WIDTH))
    changes = torch.zeros(grid[0], width, dtype=torch.float64, device=weight.device)
    if len(rows):
        state["steps"].index_add_(0, rows, torch.ones_like(state["steps"][:1]).expand(len(rows)))
        _move[grid](
            weight, state["mean"], state["square"], state["steps"], rows, values.contiguous(),
            changes, found_inf if guarded else weight, lr, beta1, beta2, math.log2(beta1),
            math.log2(beta2), eps, len(rows), width, guarded, isinstance(lr, Tensor), measured,
            n_rows, WIDTH,
        )  # fmt: skip
    return changes.sum(0) if measured else None


@triton.jit(do_not_specialize=["lr", "beta1", "beta2", "log1", "log2", "eps", "n_all"])
def _move(
    weight, means, squares, steps, rows, values, changes, found_inf, lr, beta1, beta2, log1, log2,
    eps, n_all, width, GUARDED: tl.constexpr, LR_IS_THERE: tl.constexpr, MEASURED: tl.constexpr,
    N_ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    change = tl.zeros([WIDTH], tl.float64)
    for place in range(block * N_ROWS, tl.minimum(block * N_ROWS + N_ROWS, n_all)):
        row = tl.load(rows + place)
        step = tl.load(steps + row)
        rate = (tl.load(lr) if LR_IS_THERE else lr) / (1 - tl.exp2(log1 * step))
        root = tl.sqrt(1 - tl.exp2(log2 * step))
        if GUARDED:
            rate = tl.where(tl.load(found_inf) > 0, 0.0, rate)
        at = row * width + columns
        gradient = tl.load(values + place * width + columns, mask=inside, other=0).to(tl.float32)
        mean = beta1 * tl.load(means + at, mask=inside, other=0) + (1 - beta1) * gradient
        square = tl.load(squares + at, mask=inside, other=0)
        square = beta2 * square + (1 - beta2) * gradient * gradient
        tl.store(means + at, mean, mask=inside)
        tl.store(squares + at, square, mask=inside)
        old = tl.load(weight + at, mask=inside, other=0)
        new = tl.where(rate == 0, old, old - rate * mean / (tl.sqrt(square) / root + eps))
        tl.store(weight + at, new, mask=inside)
        if MEASURED:
            change += ((new - old) * (new + old)).to(tl.float64)
    if MEASURED:
        tl.store(changes + block * width + columns, change, mask=inside)
