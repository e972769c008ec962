"""A Triton kernel that takes Adam's step for some rows: one launch in place of two dozen."""

import math

import triton
import triton.language as tl
from torch import Tensor

WIDTH = 256  # columns at a time


def move_rows(
    weight: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    values: Tensor,
    settings: tuple[float | Tensor, float, float, float],
    found_inf: Tensor | None,
) -> None:
    """Take one step for `rows`, unless `found_inf` is above 0; the rate may lie on the GPU."""
    lr, beta1, beta2, eps = settings
    guarded = found_inf is not None
    if len(rows):
        _move[(len(rows),)](
            weight, state["mean"], state["square"], state["steps"], rows, values.contiguous(),
            found_inf if guarded else weight, lr, beta1, beta2, math.log2(beta1), math.log2(beta2),
            eps, weight.shape[1], guarded, isinstance(lr, Tensor), WIDTH,
        )  # fmt: skip


@triton.jit(do_not_specialize=["lr", "beta1", "beta2", "log1", "log2", "eps"])
def _move(
    weight, means, squares, steps, rows, values, found_inf, lr, beta1, beta2, log1, log2, eps,
    width, GUARDED: tl.constexpr, LR_IS_THERE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place)
    step = tl.load(steps + row) + 1
    rate = (tl.load(lr) if LR_IS_THERE else lr) / (1 - tl.exp2(log1 * step))
    root = tl.sqrt(1 - tl.exp2(log2 * step))
    if GUARDED:
        rate = tl.where(tl.load(found_inf) > 0, 0.0, rate)
    for first in range(0, width, WIDTH):
        columns = first + tl.arange(0, WIDTH)
        inside = columns < width
        at = row * width + columns
        gradient = tl.load(values + place * width + columns, mask=inside, other=0).to(tl.float32)
        mean = beta1 * tl.load(means + at, mask=inside, other=0) + (1 - beta1) * gradient
        square = tl.load(squares + at, mask=inside, other=0)
        square = beta2 * square + (1 - beta2) * gradient * gradient
        tl.store(means + at, mean, mask=inside)
        tl.store(squares + at, square, mask=inside)
        move = mean / (tl.sqrt(square) / root + eps)
        old = tl.load(weight + at, mask=inside, other=0)
        tl.store(weight + at, tl.where(rate == 0, old, old - rate * move), mask=inside)
    tl.store(steps + row, step)
