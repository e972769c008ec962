"""Triton kernels that read a whole text in one launch, where cuDNN starts some for every word.

    x_t          words (B, T, word_dim)
    i, f, g, o   gates (B, T, 2, 4, H)       of both directions, before and after their functions
    c_t          cells (B, T, 2, H)
    h_t          states (B, T, 2, H)

A program reads a tile of documents in one direction, from their first word to their last; in the
other direction a document's first word is its last one. Every step multiplies the tile's states by
the whole recurrent matrix, which stays in the GPU's cache. What the next step needs of this one is
written to memory, where all threads of the program find it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 16  # documents of a program, the fewest that tensor cores multiply
WIDTHS = (16, 32, 64, 128, 256, 512)  # of a direction: powers of two whose gates fit in registers
WARPS, STAGES = 8, 3
CHUNK = 1 << 13  # numbers of the recurrent matrix and of one gate that are fetched at a time


def read_onwards(
    gates: Tensor, weight: Tensor, given: Tensor, start: Tensor, lengths: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return states and cells; `gates` become activated ones if these are to be kept.

    Args:
        gates: (B, T, 2, 4·H) what the words give to them.
        weight: (2, H, 4·H) the recurrent matrices.
        given: (2, 4·H) what the first state gives to the gates of the first word.
        start: (2, H) the first cells.
        lengths: (B,) of the documents.
        keep: whether a gradient will be asked for.
    """
    n, length, _, four = gates.shape
    width = four // 4
    states = gates.new_zeros(n, length, 2, width)
    cells = gates.new_empty(states.shape if keep else (1,), dtype=torch.float32)
    _read[(triton.cdiv(n, TILE), 2)](
        gates, weight, given, start, lengths, states, cells, n, length,
        H=width, STEP=min(width, CHUNK // width), TILE=TILE, KEEP=keep,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return states, cells


def read_backwards(
    d_states: Tensor, gates: Tensor, cells: Tensor, weight: Tensor, start: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of what the first state gives, of the gates, and of the first cells.

    They are (B, 2, 4·H), (B, T, 2, 4·H) and (B, 2, H).

    Args:
        d_states: (B, T, 2, H) the gradient of the states.
        gates: as `read_onwards` left them.
        cells: from there.
        weight: (2, 4·H, H) the recurrent matrices, turned.
        start: (2, H) the first cells.
        lengths: (B,) of the documents.
    """
    n, length, _, width = d_states.shape
    d_gates = weight.new_zeros(gates.shape)
    d_given = torch.empty(n, 2, 4 * width, device=gates.device)
    d_start = torch.empty(n, 2, width, device=gates.device)
    _read_back[(triton.cdiv(n, TILE), 2)](
        d_states, gates, cells, weight, start, lengths, d_given, d_gates, d_start,
        n, length, H=width, STEP=min(4 * width, 4 * CHUNK // width), TILE=TILE,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return d_given, d_gates, d_start


@triton.jit(do_not_specialize=["n", "length"])
def _read(
    gates, weight, given, start, lengths, states, cells, n, length,
    H: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    back = tl.program_id(1)
    documents = tl.program_id(0) * TILE + tl.arange(0, TILE)
    units = tl.arange(0, H)[None]
    ends = tl.load(lengths + documents, mask=documents < n, other=0)
    cell = tl.zeros((TILE, H), tl.float32) + tl.load(start + back * H + units)
    for step in range(tl.max(ends)):
        place = tl.where(back == 1, ends - 1 - step, step)
        is_read = (step < ends)[:, None]
        at = ((documents * length + place) * 2 + back)[:, None].to(tl.int64)
        before = at + tl.where(back == 1, 2, -2)
        mine = gates + at * 4 * H + units
        i = tl.load(mine, mask=is_read, other=0).to(tl.float32)
        f = tl.load(mine + H, mask=is_read, other=0).to(tl.float32)
        g = tl.load(mine + 2 * H, mask=is_read, other=0).to(tl.float32)
        o = tl.load(mine + 3 * H, mask=is_read, other=0).to(tl.float32)
        if step > 0:
            for first in range(0, H, STEP):
                some = first + tl.arange(0, STEP)
                state = tl.load(states + before * H + some[None], mask=is_read, other=0)
                rows = weight + (back * H + some[:, None]) * 4 * H + units
                i = tl.dot(state, tl.load(rows), i)
                f = tl.dot(state, tl.load(rows + H), f)
                g = tl.dot(state, tl.load(rows + 2 * H), g)
                o = tl.dot(state, tl.load(rows + 3 * H), o)
        else:
            first_gates = given + back * 4 * H + units
            i += tl.load(first_gates)
            f += tl.load(first_gates + H)
            g += tl.load(first_gates + 2 * H)
            o += tl.load(first_gates + 3 * H)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), 2 * tl.sigmoid(2 * g) - 1, tl.sigmoid(o)
        cell = tl.where(is_read, f * cell + i * g, cell)
        state = o * (2 * tl.sigmoid(2 * cell) - 1)
        tl.store(states + at * H + units, state.to(states.dtype.element_ty), mask=is_read)
        if KEEP:
            tl.store(cells + at * H + units, cell, mask=is_read)
            tl.store(mine, i.to(gates.dtype.element_ty), mask=is_read)
            tl.store(mine + H, f.to(gates.dtype.element_ty), mask=is_read)
            tl.store(mine + 2 * H, g.to(gates.dtype.element_ty), mask=is_read)
            tl.store(mine + 3 * H, o.to(gates.dtype.element_ty), mask=is_read)
        tl.debug_barrier()  # the next step reads states that other threads have written


@triton.jit(do_not_specialize=["n", "length"])
def _read_back(
    d_states, gates, cells, weight, start, lengths, d_given, d_gates, d_start, n, length,
    H: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    back = tl.program_id(1)
    documents = tl.program_id(0) * TILE + tl.arange(0, TILE)
    units = tl.arange(0, H)[None]
    ends = tl.load(lengths + documents, mask=documents < n, other=0)
    n_steps = tl.max(ends)
    first_cell = tl.zeros((TILE, H), tl.float32) + tl.load(start + back * H + units)
    d_state = tl.zeros((TILE, H), tl.float32)
    d_cell = tl.zeros((TILE, H), tl.float32)
    for done in range(n_steps):
        step = n_steps - 1 - done
        place = tl.where(back == 1, ends - 1 - step, step)
        is_read = (step < ends)[:, None]
        at = ((documents * length + place) * 2 + back)[:, None].to(tl.int64)
        before = at + tl.where(back == 1, 2, -2)
        mine = gates + at * 4 * H + units
        i = tl.load(mine, mask=is_read, other=0).to(tl.float32)
        f = tl.load(mine + H, mask=is_read, other=0).to(tl.float32)
        g = tl.load(mine + 2 * H, mask=is_read, other=0).to(tl.float32)
        o = tl.load(mine + 3 * H, mask=is_read, other=0).to(tl.float32)
        cell = tl.load(cells + at * H + units, mask=is_read, other=0)
        earlier = tl.load(cells + before * H + units, mask=is_read & (step > 0), other=0)
        earlier = tl.where(step > 0, earlier, first_cell)
        d_state += tl.load(d_states + at * H + units, mask=is_read, other=0).to(tl.float32)
        tanh = 2 * tl.sigmoid(2 * cell) - 1
        d_o = d_state * tanh * o * (1 - o)
        d_cell += d_state * o * (1 - tanh * tanh)
        d_i = d_cell * g * i * (1 - i)
        d_f = d_cell * earlier * f * (1 - f)
        d_g = d_cell * i * (1 - g * g)
        d_cell = tl.where(is_read, d_cell * f, 0.0)
        theirs = d_gates + at * 4 * H + units
        tl.store(theirs, d_i.to(d_gates.dtype.element_ty), mask=is_read)
        tl.store(theirs + H, d_f.to(d_gates.dtype.element_ty), mask=is_read)
        tl.store(theirs + 2 * H, d_g.to(d_gates.dtype.element_ty), mask=is_read)
        tl.store(theirs + 3 * H, d_o.to(d_gates.dtype.element_ty), mask=is_read)
        if step == 0:
            firsts = d_given + (documents[:, None] * 2 + back) * 4 * H + units
            tl.store(firsts, d_i, mask=is_read)
            tl.store(firsts + H, d_f, mask=is_read)
            tl.store(firsts + 2 * H, d_g, mask=is_read)
            tl.store(firsts + 3 * H, d_o, mask=is_read)
        tl.debug_barrier()  # all threads need all gates for the state before
        d_state = tl.zeros((TILE, H), tl.float32)
        for first in range(0, 4 * H, STEP):
            some = first + tl.arange(0, STEP)
            part = tl.load(d_gates + at * 4 * H + some[None], mask=is_read, other=0)
            rows = weight + (back * 4 * H + some[:, None]) * H + units
            d_state = tl.dot(part, tl.load(rows), d_state)
        # A document that has not begun yet leaves both at 0, so its last word starts from there.
    tl.store(d_start + (documents[:, None] * 2 + back) * H + units, d_cell,
             mask=(documents < n)[:, None])  # fmt: skip
