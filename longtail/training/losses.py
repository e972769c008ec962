"""Losses that models share: cross-entropies of label scores, of candidates or of all labels.

    scores (B, C)     how well each of C candidate labels suits each document
    relevant (B, C)   whether the document carries the label

The candidates are all labels, or those that were sampled for the batch. Every loss is summed over
the candidates of a document, then averaged over the documents. `bce_over_all` and
`softmax_over_all` give what `bce` and `softmax` give for scores φ·Vᵀ + b, but take the documents
in pieces and compute each piece's gradient at once, so that the (B, L) scores exist one piece at a
time and in bf16 under autocast.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Scores in one piece: as many as the processor's cache holds, or enough to keep a GPU busy.
PIECE = {"cpu": 1 << 20, "cuda": 1 << 27}
# Tensor cores are several times slower with rows whose length is no multiple of this.
ALIGN = {"cpu": 1, "cuda": 64}
NEVER = -1e4  # the score of labels that only fill up


def softmax(scores: Tensor, relevant: Tensor) -> Tensor:
    """Cross-entropy with the relevant labels, which share a document equally."""
    shares = relevant / relevant.sum(1, keepdim=True).clamp_min(1)
    return -(shares * scores.log_softmax(1)).sum() / len(scores)


def bce(scores: Tensor, relevant: Tensor) -> Tensor:
    """Binary cross-entropy: log(1 + e^h) − h·[relevant], for every candidate."""
    return (F.softplus(scores) - scores * relevant).sum() / len(scores)


def bce_over_all(phi: Tensor, V: Tensor, bias: Tensor, documents: Tensor, labels: Tensor) -> Tensor:
    """Return `bce` of the scores φ·Vᵀ + b.

    Args:
        phi: (B, d) documents.
        V: (L, d) labels.
        bias: (L,) or (1,).
        documents: (P,) the document of each relevant pair.
        labels: (P,) its label.
    """
    return _over_all(phi, V, bias, documents, labels, None)


def softmax_over_all(
    phi: Tensor, V: Tensor, bias: Tensor, documents: Tensor, labels: Tensor
) -> Tensor:
    """Return `softmax` of the scores φ·Vᵀ + b; arguments as in `bce_over_all`."""
    counts = phi.new_zeros(len(phi), dtype=torch.float32)
    counts.index_add_(0, documents, counts.new_ones(()).expand(len(documents)))
    return _over_all(phi, V, bias, documents, labels, counts)


def _over_all(
    phi: Tensor, V: Tensor, bias: Tensor, documents: Tensor, labels: Tensor, counts: Tensor | None
) -> Tensor:
    loss: Tensor = _LossOverAll.apply(phi, V, bias, documents, labels, counts)  # type: ignore[no-untyped-call]
    return loss


class _LossOverAll(torch.autograd.Function):
    """Loss and gradients in one pass; `counts` (labels of each document) asks for the softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        phi: Tensor,
        V: Tensor,
        bias: Tensor,
        documents: Tensor,
        labels: Tensor,
        counts: Tensor | None,
    ) -> Tensor:
        device = phi.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else phi.dtype
        n_fill = -len(V) % ALIGN.get(device, 1)
        phi_low, V_low = phi.to(low), F.pad(V.to(low), (0, 0, 0, n_fill))
        row_bias = F.pad(bias.to(low).expand(len(V)), (0, n_fill), value=NEVER)
        loss = phi.new_zeros((), dtype=torch.float32)
        d_phi = torch.empty_like(phi_low)
        d_V = torch.zeros(V_low.shape, dtype=torch.float32, device=V.device)
        d_bias = torch.zeros(len(V_low), dtype=torch.float32, device=V.device)
        size = max(1, PIECE.get(device, PIECE["cuda"]) // len(V_low))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(phi), size):
                part = phi_low[first : first + size]
                scores = torch.addmm(row_bias, part, V_low.T)  # (size, L)
                pairs = _pairs_within(documents, labels, first, len(part))
                if counts is None:  # both leave dL/dscores in `scores`
                    loss += _bce_step(scores, *pairs)
                else:
                    loss += _softmax_step(scores, *pairs, counts[first : first + size])
                torch.mm(scores, V_low, out=d_phi[first : first + size])
                d_V = _add_product(d_V, scores, part, alone=size >= len(phi))
                d_bias += scores.sum(0, dtype=torch.float32)
        d_V, d_bias = d_V[: len(V)], d_bias[: len(V)]
        if bias.numel() == 1:
            d_bias = d_bias.sum().view(bias.shape)
        ctx.save_for_backward(d_phi.to(phi.dtype), d_V.to(V.dtype), d_bias.to(bias.dtype))
        ctx.n = len(phi)
        return loss / len(phi)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor = gradients[0] / ctx.n
        d_phi, d_V, d_bias = ctx.saved_tensors
        return d_phi * factor, d_V * factor, d_bias * factor, None, None, None


def _add_product(total: Tensor, scores: Tensor, part: Tensor, alone: bool) -> Tensor:
    """Return total + scoresᵀ·part."""
    if alone:  # saves a pass over the largest gradient
        return scores.T @ part
    if total.dtype == scores.dtype:
        return total.addmm_(scores.T, part)
    return total.add_(scores.T @ part)


def _pairs_within(
    documents: Tensor, labels: Tensor, first: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs' documents counted from `first`, their labels, and 1 for those inside.

    Pairs outside the piece stay, with weight 0: to select would make a GPU wait for its host.
    """
    row = documents - first
    inside = (row >= 0) & (row < size)
    return row.clamp(0, size - 1), labels, inside.float()


def _bce_step(scores: Tensor, row: Tensor, label: Tensor, inside: Tensor) -> Tensor:
    own = scores[row, label].float()
    loss = F.softplus(scores).sum(dtype=torch.float32) - (own * inside).sum()
    scores.sigmoid_()
    _subtract(scores, row, label, inside)
    return loss


def _softmax_step(
    scores: Tensor, row: Tensor, label: Tensor, inside: Tensor, counts: Tensor
) -> Tensor:
    own = scores[row, label].float()
    total = scores.float().logsumexp(1)  # (size,)
    share = inside / counts.clamp_min(1)[row]
    loss = (share * (total[row] - own)).sum()
    scores.sub_(total[:, None]).exp_().mul_((counts > 0)[:, None])
    _subtract(scores, row, label, share)
    return loss


def _subtract(scores: Tensor, row: Tensor, label: Tensor, amount: Tensor) -> None:
    place = row.long() * scores.shape[1] + label
    scores.view(-1).index_add_(0, place, amount.to(scores.dtype), alpha=-1)
