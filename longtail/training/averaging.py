"""The running mean of the weights, which often predicts better than any single ones."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class WeightMean:
    """The mean of a module's parameters over the steps at which they were added."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.n_added = 0
        self.values: list[Tensor] = []

    def add(self) -> None:
        """Let the parameters as they are now enter the mean."""
        self.n_added += 1
        if not self.values:
            self.values = [parameter.detach().clone() for parameter in self._parameters]
        for mean, parameter in zip(self.values, self._parameters, strict=True):
            mean.lerp_(parameter.detach(), 1 / self.n_added)

    def restore(self, n_added: int, values: Sequence[Tensor]) -> None:
        """Take back the mean of a checkpoint."""
        self.n_added = n_added
        self.values = [
            value.to(parameter.device, copy=True)
            for value, parameter in zip(values, self._parameters, strict=False)
        ]

    def swap(self) -> None:
        """Exchange the mean, if there is one, with the parameters; no value is copied."""
        for i, parameter in enumerate(self._parameters[: len(self.values)]):
            parameter.data, self.values[i] = self.values[i], parameter.data

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the module have the mean, if there is one, inside a `with` statement."""
        self.swap()
        try:
            yield
        finally:
            self.swap()
