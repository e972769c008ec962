"""Label rows that the processes share: of L labels, process r of n holds r, r + n, r + 2n, ….

    rows (L/n, d)   what a process holds of the labels, with gradients and optimizer state
    x (B/n, …)      what it has made of its share of the documents

A label is scored where its row lives: documents travel to all processes, each scores all documents
of the step with its own labels, and the gradients of the documents travel back. The loss is a sum
over labels, so each process returns its own labels' part of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.training.layers import EVERY
from longtail.training.processes import Processes

DRAWN = 1 << 14  # rows that are drawn at a time, however many processes there are
SENT = 1 << 16  # rows of each process that are sent at a time


def own_rows(processes: Processes | None) -> slice:
    """Return which rows of the labels this process holds; all without a split."""
    return EVERY if processes is None else slice(processes.rank, None, processes.count)


def draw_rows(n_rows: int, width: int, own: slice) -> Tensor:
    """Return normally distributed rows, of n_rows those that are `own`.

    On a CPU they are those of one draw, of which a part at a time exists here.
    """
    if own == EVERY:
        return torch.randn(n_rows, width)
    firsts = range(0, max(1, n_rows // DRAWN) * DRAWN, DRAWN)
    parts = []
    for first in firsts:
        size = DRAWN if first < firsts[-1] else n_rows - first
        kept = slice((own.start - first) % own.step, None, own.step)
        parts.append(torch.randn(size, width)[kept].clone())
    return torch.cat(parts)


def gather_documents(x: Tensor, n_documents: int, processes: Processes) -> Tensor:
    """Return all documents of the step (B, …) from each process's share of them."""
    if processes.count == 1:
        return x
    gathered: Tensor = _Gather.apply(x, n_documents, processes)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All processes' documents; their gradients are the sums of what all processes say of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n_documents: int, processes: Processes) -> Tensor:
        ctx.processes, ctx.n_own, ctx.dtype = processes, len(x), x.dtype
        return processes.gather_documents(x, n_documents)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        processes, gradient = ctx.processes, gradients[0].float().contiguous()
        total = processes.sum(gradient.clone())[processes.rank :: processes.count]
        missing = ctx.n_own - len(total)  # a document that only fills up has no gradient
        total = torch.cat([total, total.new_zeros(missing, *total.shape[1:])])
        return total.to(ctx.dtype), None, None


def assemble_rows(rows: Tensor, places: Tensor, n_rows: int, processes: Processes) -> Tensor:
    """Return n_rows rows of labels, of which this process gives those at `places`."""
    if processes.count == 1:
        return rows.new_zeros(n_rows, rows.shape[1]).index_copy(0, places, rows)
    assembled: Tensor = _Assemble.apply(rows, places, n_rows, processes)  # type: ignore[no-untyped-call]
    return assembled


class _Assemble(torch.autograd.Function):
    """Each process's rows at their places; gradients come from all processes."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, places: Tensor, n_rows: int, processes: Processes
    ) -> Tensor:
        ctx.processes = processes
        ctx.save_for_backward(places)
        return processes.sum(rows.new_zeros(n_rows, rows.shape[1]).index_copy_(0, places, rows))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        total = ctx.processes.sum(gradients[0].clone().contiguous())
        return total.index_select(0, ctx.saved_tensors[0]), None, None, None


def find_best(scores: Tensor, k: int, processes: Processes | None) -> Tensor:
    """Return the labels (B, k) with the highest scores, of which each process gives its own."""
    own = scores.topk(min(k, scores.shape[1]), dim=1)
    if processes is None or processes.count == 1:
        return own.indices
    missing = (0, k - own.indices.shape[1])
    values = processes.gather(F.pad(own.values, missing, value=-torch.inf))
    rows = processes.gather(F.pad(own.indices, missing))
    labels = [each * processes.count + rank for rank, each in enumerate(rows)]
    best = torch.cat(values, 1).topk(k, dim=1).indices
    return torch.cat(labels, 1).gather(1, best)


def gather_rows(rows: Tensor, processes: Processes, *, wanted: bool = True) -> Tensor:
    """Return all labels' rows, on the CPU; nothing where they are not `wanted`.

    Some rows are sent at a time: no device has to hold all of them.
    """
    n_own = processes.gather(torch.tensor([len(rows)], device=processes.device))
    n_rows, most = int(sum(n_own)), int(max(n_own))
    whole = torch.empty(n_rows if wanted else 0, *rows.shape[1:], dtype=rows.dtype)
    for first in range(0, most, SENT):
        part = rows.detach()[first : min(first + SENT, most)].to(processes.device)
        size = min(SENT, most - first)
        part = torch.cat([part, part.new_zeros(size - len(part), *part.shape[1:])])
        for rank, sent in enumerate(processes.gather(part)):
            if wanted:
                place = whole[first * processes.count + rank :: processes.count][:size]
                place.copy_(sent[: len(place)])
    return whole


class SplitRows:
    """Which parameters of a module are rows that the processes share."""

    def __init__(self, module: nn.Module, names: Sequence[str], processes: Processes) -> None:
        self.names, self.processes = names, processes
        named = list(module.named_parameters())
        self.parameters = [parameter for name, parameter in named if name in names]
        self._numbers = {i for i, (name, _) in enumerate(named) if name in names}

    def __contains__(self, parameter: Tensor) -> bool:
        """Whether a parameter is one of them."""
        return any(parameter is each for each in self.parameters)

    def sum_norms(self, norms: Tensor, are_split: Sequence[bool]) -> Tensor:
        """Return the norms of gradients, those of split rows over all processes."""
        squares = norms.square()
        own = torch.tensor(are_split, device=norms.device)
        return torch.where(own, self.processes.sum(squares.clone()), squares).sqrt()

    def join(
        self, state: dict[str, Any], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        """Return the state of a run with all rows, in the main process."""

        def gather(rows: Tensor) -> Tensor:
            return gather_rows(rows, self.processes, wanted=self.processes.is_main)

        return self._change(state, optimizers, gather)

    def cut(
        self, state: dict[str, Any], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        """Return the state of a run with the rows of this process."""
        return self._change(state, optimizers, lambda rows: rows[own_rows(self.processes)])

    def _change(
        self,
        state: dict[str, Any],
        optimizers: Sequence[torch.optim.Optimizer],
        change: Callable[[Tensor], Tensor],
    ) -> dict[str, Any]:
        if not self.names:
            return state

        def by_name(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {
                name: change(each) if name in self.names else each for name, each in tensors.items()
            }

        average = [
            change(each) if number in self._numbers else each
            for number, each in enumerate(state["average"])
        ]
        memories = [
            {
                number: self._change_memory(placed[number], memory, change)
                for number, memory in memories.items()
            }
            for placed, memories in zip(map(_place, optimizers), state["optimizers"], strict=False)
        ]
        changed = {"weights": by_name(state["weights"]), "best": by_name(state["best"])}
        return {**state, **changed, "average": average, "optimizers": memories}

    def _change_memory(
        self, parameter: Tensor, memory: Mapping[str, Any], change: Callable[[Tensor], Tensor]
    ) -> dict[str, Any]:
        """Change what an optimizer remembers of each row; a count of steps stays as it is."""
        if parameter not in self:
            return dict(memory)
        return {
            name: change(value) if isinstance(value, Tensor) and value.ndim else value
            for name, value in memory.items()
        }


def _place(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer by their numbers."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
