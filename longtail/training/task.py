"""Task: what a model gives to the training loop."""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Batch = dict[str, Tensor]


class Task(Protocol):
    """What a model gives to the training loop.

    Attributes:
        module: holds all trainable parameters; training moves it to the device and leaves it
            there, in evaluation mode, with the trained weights.
        n_documents: how many documents there are to train on; rows are numbered from 0.
        lengths: optional; the length of each document, if batches should hold documents of
            similar length.
        split: optional; the names of the parameters that are rows of labels which the processes
            share, as `split` says. The loss is then that of all documents and of own labels, and
            losses of all processes add up.
        replays: optional; True if a step on a GPU depends on nothing but the values of a batch and
            on the weights once the shapes of its tensors are known, so that a CUDA graph can take
            it (`graphs.py`).
    """

    module: torch.nn.Module
    n_documents: int

    def batch(self, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice) -> Batch:
        """Return the CPU tensors of those of the documents of a step that are `mine`.

        Called in other threads, ahead of the step that uses them: random choices (such as
        sampled labels) come from `rng` only, which depends on nothing but the seed and the step.
        They are made for all documents `rows`, so that several processes choose as one does.
        """

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of the documents of a batch, whose tensors are on the device.

        Random choices (such as dropout) come from torch's own generator, which training
        seeds anew for every step, by `draws`. On a GPU it runs under bf16 autocast.
        """

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return the optimizers of all parameters; called once the module is on its device.

        Their `state` must hold all they remember; each group's "lr" follows the schedule.
        """

    def validate(self) -> dict[str, float] | None:
        """Return P@1, nDCG@5, … on held-out documents, None if there are none.

        Called in evaluation mode without gradients, with averaged weights once there are some;
        must not draw random numbers.
        """
