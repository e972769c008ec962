"""Random numbers of a step that are the same however many processes share its documents.

Every process draws for all documents of the batch, just as one process alone does, and takes the
numbers of its own. So the number of processes changes how fast a model learns, not what it learns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Part(NamedTuple):
    """Which of the documents of a step this process takes.

    Attributes:
        mine: their places among all documents of the step.
        n_documents: how many documents the step has; None if this process takes them all.
    """

    mine: slice = slice(None)
    n_documents: int | None = None


ALL = Part()
_STEPS = 1 << 16  # of the shares that 16 bits can tell
_part: ContextVar[Part] = ContextVar("part", default=ALL)


@contextmanager
def drawing_for(part: Part) -> Iterator[None]:
    """Let losses inside draw for these documents."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def current_part() -> Part:
    """Return which documents the loss that is being computed is of."""
    return _part.get()


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """Drop a share of the values of documents x (B, …), as torch's own dropout does."""
    if not training or not share:
        return x
    mine, n_documents = _part.get()
    shape = x.shape if n_documents is None else (n_documents, *x.shape[1:])
    if x.device.type == "cpu":
        return x * _draw_factors(shape, share)[mine].to(x.dtype)
    if n_documents is None:
        return F.dropout(x, share)
    return x * F.dropout(x.new_ones(shape), share)[mine]


def _draw_factors(shape: Sequence[int], share: float) -> Tensor:
    """Return 0 for a share of all places, and what makes up for it for the others.

    Four places take the bits of one random number; torch draws one for each, which took a tenth
    of a step.
    """
    size = prod(shape)
    drawn = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(1 << 63), None)
    dropped = min(round(share * _STEPS), _STEPS - 1)
    places = drawn.view(torch.int16)[:size].view(*shape)
    return (places >= dropped - _STEPS // 2).float().mul_(_STEPS / (_STEPS - dropped))


def uniform(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return numbers from [0, 1) for documents, whose number is the first of the shape."""
    mine, n_documents = _part.get()
    if n_documents is None:
        return torch.rand(*shape, device=device)
    return torch.rand(n_documents, *shape[1:], device=device)[mine]
