"""AttentionXML's loss, over all labels or over each document's candidates, a piece at a time.

Every piece's gradient is computed at once, so that the largest tensors, (B, T, C) and (B, N_fc, C),
exist one piece at a time. Symbols are those of `network.py`. Where `kernels.py` can be used, its
kernels compute both; otherwise torch does.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.models.attention_xml.network import (
    NEVER,
    AttentionXMLNetwork,
    Encoded,
    can_fuse,
    count_numbers,
    piece_size,
)


def bce(scores: Tensor, relevant: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return log(1 + e^s) − s·[relevant], summed over the labels that count."""
    return F.binary_cross_entropy_with_logits(scores, relevant, counted, reduction="sum")


def bce_over_nodes(net: AttentionXMLNetwork, read: Encoded, relevant: Tensor) -> Tensor:
    """Return `bce` over all labels of the network, a piece at a time.

    `relevant` is (B, count_aligned(n_nodes)), with zeros behind the last label.
    """
    passed = net, read, relevant, read.tokens, read.values, net.labels, *net.shared()
    over_nodes = _FusedOverNodes if can_fuse(read, net.shape) else _OverNodes
    loss: Tensor = over_nodes.apply(*passed)  # type: ignore[no-untyped-call]
    return loss


def bce_over_candidates(
    net: AttentionXMLNetwork,
    read: Encoded,
    rows: Tensor,
    places: Tensor,
    relevant: Tensor,
    counted: Tensor,
) -> Tensor:
    """Return `bce` over each document's own labels.

    Args:
        net: the network of the level.
        read: the documents (B).
        rows: (U, ·) of all labels that occur.
        places: (B, C) which of them each document has.
        relevant: (B, C) whether it carries them.
        counted: (B, C) 0 where a place only fills up.
    """
    if can_fuse(read, net.shape):
        passed = net, read, places, relevant, counted, read.tokens, read.values, rows
        loss: Tensor = _FusedOverCandidates.apply(*passed, *net.shared())  # type: ignore[no-untyped-call]
        return loss
    chosen = rows.index_select(0, places.flatten()).view(*places.shape, -1)
    return bce(net.score(read, chosen), relevant, counted)


class _OverNodes(torch.autograd.Function):
    """Loss and gradients in one pass, so that nothing is kept from one piece to the next."""

    @staticmethod
    def forward(
        ctx: Any,
        net: AttentionXMLNetwork,
        read: Encoded,
        relevant: Tensor,
        tokens: Tensor,
        values: Tensor,
        labels: Tensor,
        *shared: Tensor,
    ) -> Tensor:
        tokens, values = tokens.detach().requires_grad_(), values.detach().requires_grad_()
        read = read._replace(tokens=tokens, values=values)
        size = piece_size(read, net.shape)
        wanted = [tokens, values, *shared] if net.shape.attention else [values]
        sums = [torch.zeros_like(each, dtype=torch.float32) for each in wanted]
        table = F.pad(labels, (0, 0, 0, relevant.shape[1] - len(labels)))
        d_table, loss = torch.empty_like(table), labels.new_zeros(())
        for first in range(0, len(table), size):
            rows = table[first : first + size].detach().requires_grad_()
            with torch.enable_grad():
                # Rows that only fill up do not count.
                real = min(size, len(labels) - first)
                scores = net.score(read, rows)[:, :real]
                part = bce(scores, relevant[:, first : first + real])
            d_rows, *gradients = torch.autograd.grad(part, [rows, *wanted])
            d_table[first : first + size] = d_rows
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient
            loss += part.detach()
        ctx.save_for_backward(d_table[: len(labels)], *sums)
        ctx.types = [tokens.dtype, values.dtype]
        ctx.attention = net.shape.attention
        return loss

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        d_labels, *sums = (each * incoming[0] for each in ctx.saved_tensors)
        d_tokens = sums.pop(0).to(ctx.types[0]) if ctx.attention else None
        d_values = sums.pop(0).to(ctx.types[1])
        return None, None, None, d_tokens, d_values, d_labels, *sums


class _Judged(NamedTuple):
    """The loss of some labels, and its gradients."""

    loss: Tensor
    d_matches: Tensor
    d_values: Tensor
    d_weight: Tensor
    d_bias: Tensor


def _judge(
    net: AttentionXMLNetwork,
    matches: Tensor,
    values: Tensor,
    lengths: Tensor,
    relevant: Tensor,
    n_real: int,
    counted: Tensor | None = None,
) -> _Judged:
    """Compute both from h_i·w_j (B, T, C), by kernels that write no tensor twice."""
    from longtail.models.attention_xml.kernels import attend, judge, turn_back

    weight, bias = net.shared()
    weights, direct = attend(matches, lengths)
    if not net.shape.direct:
        direct.zero_()
    if counted is not None:
        direct.masked_fill_(counted == 0, NEVER)  # a loss of 0
    hidden = torch.bmm(values.transpose(1, 2), weights)  # (B, N_fc, C)
    loss, errors, d_weight = judge(hidden, weight, bias, direct, relevant, n_real)
    d_values = torch.bmm(weights, hidden.transpose(1, 2))
    d_matches = torch.bmm(values, hidden)
    turn_back(d_matches, weights, matches, errors if net.shape.direct else None, lengths)
    return _Judged(loss, d_matches, d_values, d_weight, errors.sum())


class _FusedOverNodes(torch.autograd.Function):
    """As `_OverNodes`, by kernels."""

    @staticmethod
    @torch.autocast("cuda", enabled=False)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        net: AttentionXMLNetwork,
        read: Encoded,
        relevant: Tensor,
        tokens: Tensor,
        values: Tensor,
        labels: Tensor,
        *shared: Tensor,
    ) -> Tensor:
        size, n_nodes = piece_size(read, net.shape), len(labels)
        flat = tokens.flatten(0, 1)  # (B·T, width)
        table = F.pad(labels, (0, 0, 0, relevant.shape[1] - n_nodes)).to(tokens.dtype)
        d_table, loss = torch.empty_like(table, dtype=torch.float32), labels.new_zeros(())
        d_tokens = torch.zeros_like(flat, dtype=torch.float32)
        d_values = torch.zeros_like(values, dtype=torch.float32)
        d_weight, d_bias = (torch.zeros_like(each) for each in shared)
        for first in range(0, len(table), size):
            rows, wanted = table[first : first + size], relevant[:, first : first + size]
            found = _judge(net, tokens @ rows.T, values, read.lengths, wanted, n_nodes - first)
            d_flat = found.d_matches.flatten(0, 1)
            d_tokens += d_flat @ rows
            d_table[first : first + size] = d_flat.T @ flat
            d_values += found.d_values
            d_weight += found.d_weight
            d_bias += found.d_bias
            loss += found.loss
        d_tokens = d_tokens.view(tokens.shape)
        ctx.save_for_backward(d_tokens, d_values, d_table[:n_nodes], d_weight, d_bias)
        ctx.types = [tokens.dtype, values.dtype]
        return loss

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        d_tokens, d_values, *rest = (each * incoming[0] for each in ctx.saved_tensors)
        return None, None, None, d_tokens.to(ctx.types[0]), d_values.to(ctx.types[1]), *rest


class _FusedOverCandidates(torch.autograd.Function):
    """As `bce_over_candidates`, by kernels, for as many documents at a time as a piece holds."""

    @staticmethod
    @torch.autocast("cuda", enabled=False)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        net: AttentionXMLNetwork,
        read: Encoded,
        places: Tensor,
        relevant: Tensor,
        counted: Tensor,
        tokens: Tensor,
        values: Tensor,
        rows: Tensor,
        *shared: Tensor,
    ) -> Tensor:
        n_candidates, (_, length, width) = places.shape[1], tokens.shape
        each = n_candidates * (2 * width + 3 * length + net.shape.head[0])
        size = max(1, count_numbers("cuda") // each)
        low, loss = rows.to(tokens.dtype), rows.new_zeros(())
        d_rows, d_tokens, d_values = (torch.zeros_like(x) for x in (rows, tokens, values))
        d_weight, d_bias = (torch.zeros_like(x) for x in shared)
        for first in range(0, len(tokens), size):
            some = slice(first, first + size)
            here = places[some].flatten()
            chosen = low.index_select(0, here).view(-1, n_candidates, width)
            found = _judge(
                net,
                torch.bmm(tokens[some], chosen.transpose(1, 2)),
                values[some],
                read.lengths[some],
                relevant[some],
                n_candidates,
                counted[some],
            )
            d_tokens[some] = torch.bmm(found.d_matches, chosen)
            d_values[some] = found.d_values
            d_chosen = torch.bmm(found.d_matches.transpose(1, 2), tokens[some])
            d_rows.index_add_(0, here, d_chosen.flatten(0, 1).to(d_rows.dtype))
            d_weight += found.d_weight
            d_bias += found.d_bias
            loss += found.loss
        ctx.gradients = d_tokens, d_values, d_rows, d_weight, d_bias
        return loss

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()  # in their place: rows take gigabytes
        return *(None,) * 5, *(each.mul_(incoming[0].to(each.dtype)) for each in gradients)
