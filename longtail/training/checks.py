"""Whether a step's loss and gradient were numbers, asked without making a GPU wait.

A GPU is told what to do next while it still computes; to read a number from it ends that. So its
steps are checked one step late: until then `Guard` keeps steps that are no good, and all that come
after them, from changing a weight.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.training.batches import Share
from longtail.training.layers import RowAdam


@dataclass
class Check:
    """A step's loss and gradient norm, perhaps still on their way from a GPU."""

    step: int
    share: Share
    values: Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def of(cls, step: int, share: Share, found: Tensor) -> "Check":
        """Send both, (2,), on their way."""
        values = found.to("cpu", non_blocking=True)
        arrived = None
        if found.is_cuda:
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        return cls(step, share, values, arrived)

    def read(self) -> tuple[float, float]:
        """Return both, as soon as they are here."""
        if self.arrived is not None:
            self.arrived.synchronize()
        loss, norm = self.values.tolist()
        return loss, norm


class Guard:
    """Keeps optimizers on a GPU from taking a step whose loss or gradient is no number."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> None:
        self.optimizers = optimizers
        self.closed = torch.zeros((), device=device)

    @staticmethod
    def suits(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> bool:
        """Whether these ask before they take a step, so that nobody has to wait for the answer."""
        return device.type == "cuda" and all(
            isinstance(each, RowAdam) or each.defaults.get("fused") for each in optimizers
        )

    def close_unless_finite(self, loss: Tensor, norm: Tensor) -> None:
        """Let no more steps pass if one of the two is no number."""
        bad = (~torch.isfinite(loss + norm)).float()
        torch.maximum(self.closed, bad, out=self.closed)  # in its place, as graphs know no other
        for optimizer in self.optimizers:
            optimizer.found_inf = self.closed  # type: ignore[attr-defined]

    def open(self) -> None:
        """Let steps pass again."""
        for optimizer in self.optimizers:
            optimizer.found_inf = None  # type: ignore[attr-defined]


def are_finite(loss: float, norm: float) -> bool:
    """Whether both are numbers."""
    return math.isfinite(loss) and math.isfinite(norm)
