"""Triton kernels of the attention and the loss, each of which reads its largest tensor once.

    matches   (B, T, C)     h_i·w_j, at first; in the end their gradients
    weights   (B, T, C)     α_ij
    hidden    (B, N_fc, C)  what label j has seen, after the first layer; in the end its gradient
    errors    (B, C)        the gradient of the scores: σ(s) − [relevant]

The products between these steps are torch's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LABELS = 128  # of a program
TOKENS = 16  # at a time
MOST_PROGRAMS = 4096  # of `judge`; each leaves a row to add up
LARGEST_HEAD = 512  # numbers of a label that a program keeps


def attend(matches: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return α of equation (2) and Σ_i α_ij·(h_i·w_j), (B, C)."""
    n, length, n_labels = matches.shape
    weights = torch.empty_like(matches)
    direct = torch.empty(n, n_labels, device=matches.device)
    grid = (triton.cdiv(n_labels, LABELS), n)
    _attend[grid](matches, lengths, weights, direct, length, n_labels, TOKENS, LABELS)
    return weights, direct


def judge(
    hidden: Tensor, weight: Tensor, bias: Tensor, direct: Tensor, relevant: Tensor, n_real: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the errors and the gradient of `weight`; `hidden` becomes its gradient.

    Args:
        hidden: (B, N_fc, C) before the ReLU.
        weight: (N_fc,) of the output layer.
        bias: (1,) of it.
        direct: (B, C) what is added to the scores.
        relevant: (B, C) whether the document carries the label, a slice of a wider table.
        n_real: how many labels there are; those behind only fill up.
    """
    n, n_head, n_labels = hidden.shape
    n_tiles = triton.cdiv(n_labels, LABELS)
    each = triton.cdiv(n_tiles, max(1, min(n_tiles, MOST_PROGRAMS // n)))
    grid = (n, triton.cdiv(n_tiles, each))
    errors = torch.empty_like(direct)
    sums = torch.empty(grid[0] * grid[1], n_head + 1, device=hidden.device)
    _judge[grid](
        hidden, weight, bias, direct, relevant, relevant.stride(0), errors, sums, n_labels, n_real,
        n_tiles, each, n_head, triton.next_power_of_2(n_head), LABELS,
    )  # fmt: skip
    total = sums.sum(0)
    return total[-1], errors, total[:-1]


def turn_back(
    d_weights: Tensor, weights: Tensor, matches: Tensor, errors: Tensor | None, lengths: Tensor
) -> None:
    """Turn the gradient of α into that of the matches; `errors` are those of the direct way."""
    n, length, n_labels = matches.shape
    _turn_back[(triton.cdiv(n_labels, LABELS), n)](
        d_weights, weights, matches, matches if errors is None else errors, lengths, length,
        n_labels, errors is not None, TOKENS, LABELS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["length"])
def _attend(
    matches, lengths, weights, direct, length, n_labels, TOKENS: tl.constexpr, LABELS: tl.constexpr
):
    labels = tl.program_id(0) * LABELS + tl.arange(0, LABELS)
    document = tl.program_id(1)
    end = tl.load(lengths + document)
    is_label = (labels < n_labels)[None]
    base = document.to(tl.int64) * length * n_labels + labels[None]
    largest = tl.full((LABELS,), -1e30, tl.float32)
    total = tl.zeros((LABELS,), tl.float32)
    matched = tl.zeros((LABELS,), tl.float32)
    for first in range(0, end, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[:, None]
        is_word = (tokens < end) & is_label
        match = tl.load(matches + base + tokens * n_labels, mask=is_word, other=-1e30)
        match = match.to(tl.float32)
        larger = tl.maximum(largest, tl.max(match, 0))
        shares = tl.exp(match - larger[None])
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(shares, 0)
        matched = matched * shrink + tl.sum(tl.where(is_word, shares * match, 0.0), 0)
        largest = larger
    tl.store(direct + document * n_labels + labels, matched / total, mask=labels < n_labels)
    for first in range(0, length, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[:, None]
        places = base + tokens * n_labels
        is_word = (tokens < end) & is_label
        match = tl.load(matches + places, mask=is_word, other=-1e30).to(tl.float32)
        share = tl.where(is_word, tl.exp(match - largest[None]) / total[None], 0.0)
        is_place = (tokens < length) & is_label
        tl.store(weights + places, share.to(weights.dtype.element_ty), mask=is_place)


@triton.jit(do_not_specialize=["length"])
def _turn_back(
    d_weights, weights, matches, errors, lengths, length, n_labels,
    DIRECT: tl.constexpr, TOKENS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    labels = tl.program_id(0) * LABELS + tl.arange(0, LABELS)
    document = tl.program_id(1)
    end = tl.load(lengths + document)
    is_label = (labels < n_labels)[None]
    base = document.to(tl.int64) * length * n_labels + labels[None]
    error = tl.zeros((LABELS,), tl.float32)
    if DIRECT:
        error = tl.load(errors + document * n_labels + labels, mask=labels < n_labels, other=0)
    mean = tl.zeros((LABELS,), tl.float32)
    for first in range(0, end, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[:, None]
        places = base + tokens * n_labels
        is_word = (tokens < end) & is_label
        wanted = tl.load(d_weights + places, mask=is_word, other=0).to(tl.float32)
        if DIRECT:
            match = tl.load(matches + places, mask=is_word, other=0).to(tl.float32)
            wanted += error[None] * match
        mean += tl.sum(tl.load(weights + places, mask=is_word, other=0).to(tl.float32) * wanted, 0)
    for first in range(0, length, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[:, None]
        places = base + tokens * n_labels
        is_word = (tokens < end) & is_label
        wanted = tl.load(d_weights + places, mask=is_word, other=0).to(tl.float32)
        if DIRECT:
            match = tl.load(matches + places, mask=is_word, other=0).to(tl.float32)
            wanted += error[None] * match
        share = tl.load(weights + places, mask=is_word, other=0).to(tl.float32)
        gradient = share * (wanted - mean[None] + error[None])
        is_place = (tokens < length) & is_label
        tl.store(d_weights + places, gradient.to(d_weights.dtype.element_ty), mask=is_place)


@triton.jit(do_not_specialize=["width", "n_real", "n_tiles", "each"])
def _judge(
    hidden, weight, bias, direct, relevant, width, errors, sums, n_labels, n_real, n_tiles, each,
    n_head, HEAD: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    document, part = tl.program_id(0), tl.program_id(1)
    units = tl.arange(0, HEAD)
    is_unit = units < n_head
    out = tl.load(weight + units, mask=is_unit, other=0).to(tl.float32)
    begin = tl.load(bias).to(tl.float32)
    d_out = tl.zeros((HEAD,), tl.float32)
    loss = tl.zeros((LABELS,), tl.float32)
    for tile in range(part * each, min(part * each + each, n_tiles)):
        labels = tile * LABELS + tl.arange(0, LABELS)
        is_label, is_place = labels < n_real, labels < n_labels
        inside = is_unit[:, None] & is_place[None]
        places = hidden + (document.to(tl.int64) * n_head + units[:, None]) * n_labels + labels
        seen = tl.maximum(tl.load(places, mask=inside, other=0).to(tl.float32), 0)
        score = tl.sum(seen * out[:, None], 0) + begin
        score += tl.load(direct + document * n_labels + labels, mask=is_place, other=0)
        right = tl.load(relevant + document.to(tl.int64) * width + labels, mask=is_label, other=0)
        error = tl.where(is_label, tl.sigmoid(score) - right, 0.0)
        softplus = tl.maximum(score, 0) + tl.log(1 + tl.exp(-tl.abs(score)))
        loss += tl.where(is_label, softplus - score * right, 0.0)
        tl.store(errors + document * n_labels + labels, error, mask=is_place)
        d_out += tl.sum(seen * error[None], 1)
        d_seen = tl.where(seen > 0, out[:, None] * error[None], 0.0)
        tl.store(places, d_seen.to(hidden.dtype.element_ty), mask=inside)
    row = sums + (document * tl.num_programs(1) + part) * (n_head + 1)
    tl.store(row + units, d_out, mask=is_unit)
    tl.store(row + n_head, tl.sum(loss))
