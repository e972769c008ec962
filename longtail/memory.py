"""The memory plan: what training will take, said before it begins, refused if it cannot fit."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """Bytes that training takes.

    Attributes:
        parameters: the weights.
        gradients: the largest set of gradients at any time; those of touched rows if sparse.
        optimiser: what the optimisers remember.
        activations: the rest of a step: batch, embeddings, scores and their gradients.
        averages: the running mean of the weights, if there is one.
        best: the copy of the best weights that validation keeps; always in RAM.
    """

    parameters: int
    gradients: int
    optimiser: int
    activations: int
    averages: int = 0
    best: int = 0

    @property
    def total(self) -> int:
        """Return the sum of all."""
        raise NotImplementedError


def plan_memory(
    needs: Needs,
    *,
    device: str = "cpu",
    alternatives: Mapping[str, Needs] | None = None,
) -> str:
    """Return one line on what training takes, or raise MemoryPlanError if it cannot fit.

    Args:
        needs: what the model as it is set will take.
        device: "cpu" or "cuda", where the weights will be.
        alternatives: what it would take with other settings, such as {"dim=128": Needs(…)}; the
            error names those that fit.
    """
    raise NotImplementedError
