"""BiLSTM: reads texts in both directions; on a GPU in one launch a pass, if Triton is there.

x_t     words (B, T, word_dim)
h_t     states (B, T, 2·hidden), both directions side by side
W, U    weight_ih, weight_hh of each direction, as torch's LSTM names them
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.training.kernels import has_triton, works


class BiLSTM(nn.Module):
    """Two LSTMs, one of which reads backwards, that begin with learned states.

    Backwards means from a document's own end: its words are mirrored, padding stays behind. So
    nothing depends on the batch, without packed sequences, which cost cuDNN a copy at every step.
    """

    def __init__(self, word_dim: int, hidden: int):
        super().__init__()
        self.width = 2 * hidden
        self.onwards = nn.LSTM(word_dim, hidden, batch_first=True)
        self.backwards = nn.LSTM(word_dim, hidden, batch_first=True)
        self.start = nn.Parameter(torch.zeros(2, 2, 1, 1, hidden))  # h and c of both

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return both directions' states; behind a document's end they may be anything.

        Under autocast they may come as bfloat16.
        """
        if _is_low(words.device) and can_fuse(words.device, self.width // 2):
            weights = [*self.onwards.parameters(), *self.backwards.parameters()]
            states: Tensor = _Reading.apply(words, lengths, self.start, *weights)  # type: ignore[no-untyped-call]
            return states
        with torch.autocast(words.device.type, enabled=False):  # recurrence adds errors up
            return self._read(words.float(), lengths)

    def _read(self, words: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        ends = lengths[:, None]
        mirrored = torch.where(places < ends, ends - 1 - places, places)  # (B, T)
        starts = self.start.expand(-1, -1, -1, len(words), -1).contiguous()
        ahead = self.onwards(words, (*starts[0],))[0]
        back = self.backwards(_take_places(words, mirrored), (*starts[1],))[0]
        return torch.cat([ahead, _take_places(back, mirrored)], 2)  # (B, T, 2·hidden)


def _is_low(device: torch.device) -> bool:
    is_low: bool = torch.is_autocast_enabled(device.type)
    return is_low


def _take_places(rows: Tensor, places: Tensor) -> Tensor:
    """Return rows[i, places[i]] for every document i of rows (B, T, ·)."""
    first = torch.arange(len(rows), device=rows.device)[:, None] * rows.shape[1]
    return rows.flatten(0, 1).index_select(0, (first + places).flatten()).view(rows.shape)


@cache
def can_fuse(device: torch.device, hidden: int) -> bool:
    """Whether kernels that read so many units work there."""
    if not has_triton(device):
        return False
    from longtail.training.bilstm_kernels import WIDTHS

    return hidden in WIDTHS and works(lambda: _try(device, hidden))


def _try(device: torch.device, hidden: int) -> Tensor:
    """Read a few words, onwards and backwards; return what came of it."""
    with torch.enable_grad(), torch.random.fork_rng(devices=[device]):
        reader, words = BiLSTM(8, hidden).to(device), torch.ones(2, 3, 8, device=device)
        weights = [*reader.onwards.parameters(), *reader.backwards.parameters()]
        lengths = torch.tensor([3, 1], device=device)
        read: Tensor = _Reading.apply(words, lengths, reader.start, *weights)  # type: ignore[no-untyped-call]
        read.sum().backward()  # type: ignore[no-untyped-call]
    return read.detach()


class _Reading(torch.autograd.Function):
    """Both directions at once: states of 11 bits, gradients of bfloat16's range.

    Half precision rounds as TF32 does, in which cuDNN multiplies; its range is enough for what the
    gates let through. Gradients have no such bounds.
    """

    @staticmethod
    @torch.autocast("cuda", enabled=False)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, words: Tensor, lengths: Tensor, start: Tensor, *weights: Tensor
    ) -> Tensor:
        from longtail.training.bilstm_kernels import read_onwards

        inputs, recurrent, bias = _join(weights)
        n, length, _ = words.shape
        first_state, first_cell = start[:, 0, 0, 0], start[:, 1, 0, 0]  # (2, H)
        gates = F.linear(words.half(), inputs.half(), bias.half()).view(n, length, 2, -1)
        given = torch.bmm(recurrent, first_state[..., None])  # (2, 4·H, 1)
        turned = recurrent.half().transpose(1, 2).contiguous()
        keep = any(ctx.needs_input_grad)
        states, cells = read_onwards(gates, turned, given, first_cell.contiguous(), lengths, keep)
        ctx.save_for_backward(words, lengths, start, gates, states, cells, inputs, recurrent)
        return states.flatten(2).bfloat16()

    @staticmethod
    @torch.autocast("cuda", enabled=False)  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        from longtail.training.bilstm_kernels import read_backwards

        words, lengths, start, gates, states, cells, inputs, recurrent = ctx.saved_tensors
        first_state, first_cell = start[:, 0, 0, 0], start[:, 1, 0, 0].contiguous()
        d_states = incoming[0].contiguous().view(states.shape)
        begun, d_gates, d_cells = read_backwards(
            d_states, gates, cells, recurrent.bfloat16(), first_cell, lengths
        )
        flat = d_gates.flatten(0, 1).flatten(1)  # (B·T, 8·H)
        d_words = (flat @ inputs.bfloat16()).view(words.shape) if ctx.needs_input_grad[0] else None
        d_inputs = flat.T @ words.flatten(0, 1).bfloat16()  # (8·H, word_dim)
        before = torch.zeros_like(states, dtype=torch.bfloat16)
        before[:, 1:, 0], before[:, :-1, 1] = states[:, :-1, 0], states[:, 1:, 1]
        begun = begun.sum(0)  # (2, 4·H): what the first states have given
        d_recurrent = (
            torch.stack(
                [d_gates[:, :, d].flatten(0, 1).T @ before[:, :, d].flatten(0, 1) for d in (0, 1)]
            ).float()
            + begun[..., None] * first_state[:, None]
        )
        d_bias = flat.sum(0, dtype=torch.float32)
        d_first = torch.bmm(begun[:, None], recurrent)[:, 0]
        d_start = torch.stack([d_first, d_cells.sum(0)], 1)[:, :, None, None]  # (2, 2, 1, 1, H)
        gradients = []
        for d, (part, bias) in enumerate(zip(d_inputs.chunk(2), d_bias.chunk(2), strict=True)):
            gradients += [part.float(), d_recurrent[d], bias, bias]
        return d_words if d_words is None else d_words.float(), None, d_start, *gradients


def _join(weights: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return W (8·H, word_dim), U (2, 4·H, H) and the biases (8·H,) of both directions."""
    onwards, backwards = weights[:4], weights[4:]
    inputs = torch.cat([onwards[0], backwards[0]])
    recurrent = torch.stack([onwards[1], backwards[1]])
    return inputs, recurrent, torch.cat([onwards[2] + onwards[3], backwards[2] + backwards[3]])
