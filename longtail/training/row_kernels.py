"""Triton kernels that take Adam's step for some rows: one launch in place of dozens."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from longtail.training.moments import COLUMNS

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


def move_coarse_rows(
    weight: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    values: Tensor,
    settings: tuple[float | Tensor, float, float, float],
    found_inf: Tensor | None,
    *,
    measured: bool = False,
) -> Tensor | None:
    """Do the same where `moments.py` keeps what is remembered in 16 or 8 bits."""
    lr, beta1, beta2, eps = settings
    width, guarded, in_bytes = weight.shape[1], found_inf is not None, "mean_scale" in state
    n_rows = MEASURED_ROWS if measured else 1
    grid = (-(-len(rows) // n_rows), -(-width // COLUMNS))
    changes = torch.zeros(grid[0], width, dtype=torch.float64, device=weight.device)
    seed = torch.randint(1 << 30, (1,), device=weight.device)  # of the step, where it is drawn
    scales = [state[f"{name}_scale" if in_bytes else name] for name in ("mean", "square")]
    if len(rows):
        state["steps"].index_add_(0, rows, torch.ones_like(state["steps"][:1]).expand(len(rows)))
        _move_coarse[grid](
            weight, state["mean"], state["square"], *scales, state["steps"], rows,
            values.contiguous(), changes, seed, found_inf if guarded else weight, lr, beta1, beta2,
            math.log2(beta1), math.log2(beta2), eps, len(rows), width, grid[1], guarded,
            isinstance(lr, Tensor), measured, in_bytes, n_rows, COLUMNS,
        )  # fmt: skip
    return changes.sum(0) if measured else None


@triton.jit(do_not_specialize=["lr", "beta1", "beta2", "log1", "log2", "eps", "n_all"])
def _move_coarse(
    weight, means, squares, mean_scales, square_scales, steps, rows, values, changes, seed,
    found_inf, lr, beta1, beta2, log1, log2, eps, n_all, width, n_scales, GUARDED: tl.constexpr,
    LR_IS_THERE: tl.constexpr, MEASURED: tl.constexpr, IN_BYTES: tl.constexpr,
    N_ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    change = tl.zeros([WIDTH], tl.float64)
    key = tl.load(seed)
    for place in range(block * N_ROWS, tl.minimum(block * N_ROWS + N_ROWS, n_all)):
        row = tl.load(rows + place)
        step = tl.load(steps + row)
        rate = (tl.load(lr) if LR_IS_THERE else lr) / (1 - tl.exp2(log1 * step))
        root = tl.sqrt(1 - tl.exp2(log2 * step))
        if GUARDED:
            rate = tl.where(tl.load(found_inf) > 0, 0.0, rate)
        at, scale_at = row * width + columns, row * n_scales + part
        mean = tl.load(means + at, mask=inside, other=0)
        square = tl.load(squares + at, mask=inside, other=0)
        if IN_BYTES:
            mean = _from_byte(mean, tl.load(mean_scales + scale_at), 127, False)
            square = _from_byte(square, tl.load(square_scales + scale_at), 255, True)
        else:
            mean, square = _from_half(mean), _from_half(square)
        gradient = tl.load(values + place * width + columns, mask=inside, other=0).to(tl.float32)
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient * gradient
        old = tl.load(weight + at, mask=inside, other=0)
        new = tl.where(rate == 0, old, old - rate * mean / (tl.sqrt(square) / root + eps))
        tl.store(weight + at, new, mask=inside)
        if MEASURED:
            change += ((new - old) * (new + old)).to(tl.float64)
        number = 2 * (place * width + columns)  # of the random numbers
        if IN_BYTES:
            mean_scale, square_scale = _find_scale(mean), _find_scale(square)
            q_mean = _to_byte(mean, mean_scale, tl.rand(key, number), 127, False)
            q_square = _to_byte(square, square_scale, tl.rand(key, number + 1), 255, True)
            q_square = tl.where((square > 0) & (q_square < 1), 1.0, q_square)
            tl.store(means + at, q_mean.to(tl.int8), mask=inside)
            tl.store(squares + at, q_square.to(tl.int32).to(tl.uint8), mask=inside)
            tl.store(mean_scales + scale_at, mean_scale.to(tl.int8))
            tl.store(square_scales + scale_at, square_scale.to(tl.int8))
        else:
            tl.store(means + at, _to_half(mean, tl.randint(key, number)), mask=inside)
            tl.store(squares + at, _to_half(square, tl.randint(key, number + 1)), mask=inside)
    if MEASURED:
        tl.store(changes + block * width + columns, change, mask=inside)


@triton.jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _find_scale(x):
    bits = tl.max(tl.abs(x), 0).to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum((bits >> 23) - 126, -126), 126)


@triton.jit
def _from_byte(q, scale, TOP: tl.constexpr, IS_SQUARE: tl.constexpr):
    share = tl.abs(q.to(tl.float32)) / TOP
    share = share * share
    if IS_SQUARE:
        share = share * share
    value = share * _power_of_two(scale.to(tl.int32))
    return tl.where(q < 0, -value, value)


@triton.jit
def _to_byte(x, scale, draw, TOP: tl.constexpr, IS_SQUARE: tl.constexpr):
    share = tl.abs(x) * _power_of_two(-scale)
    place = tl.sqrt(share)
    if IS_SQUARE:
        place = tl.sqrt(place)
    low = tl.floor(place * TOP)
    value, above = low / TOP, (low + 1) / TOP
    value, above = value * value, above * above
    if IS_SQUARE:
        value, above = value * value, above * above
    q = tl.minimum(tl.where(draw < (share - value) / (above - value), low + 1, low), TOP)
    return tl.where(x < 0, -q, q)


@triton.jit
def _from_half(bits):
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _to_half(x, draw):
    return ((x.to(tl.int32, bitcast=True) + (draw.to(tl.int32) & 0xFFFF)) >> 16).to(tl.int16)
