"""The one training loop: CPU, one GPU, or several processes (torchrun, accelerate launch)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.progress import SILENT, Progress

Batch = dict[str, Tensor]


class Task(Protocol):
    """What a model hands to the trainer.

    Attributes:
        module: holds all trainable parameters; the trainer moves it to the device and leaves it
            there, in evaluation mode, with the trained weights.
        n_documents: how many documents there are to train on; rows are numbered from 0.
    """

    module: torch.nn.Module
    n_documents: int

    def batch(self, rows: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Return the CPU tensors of these documents.

        Called in another thread, ahead of the step that uses them: random choices (such as
        sampled labels) come from `rng` only, which depends on nothing but the seed and the step.
        """

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of the documents of a batch, whose tensors are on the device.

        Random choices (such as dropout) come from torch's own generator, which the trainer
        seeds anew for every step. On a GPU it runs under bf16 autocast.
        """

    def optimisers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return the optimisers of all parameters; called once the module is on its device.

        Their `state` must hold all they remember; each group's "lr" follows the schedule.
        """

    def validate(self) -> dict[str, float] | None:
        """Return P@1, nDCG@5, … on held-out documents, None if there are none.

        Called in evaluation mode without gradients, with averaged weights once there are some;
        must not draw random numbers.
        """


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        epochs: passes over the documents.
        batch_size: documents in a step, over all processes together.
        learning_rate: the highest, reached after the warm-up.
        schedule: how the learning rate falls afterwards.
        warmup: the share of all steps in which the learning rate rises from 0.
        clip: the largest norm of all gradients together; None means no limit.
        averaging: "mean" ends with the mean of the late weights instead of the last ones.
        averaging_start: the share of all steps after which averaging begins.
        averaging_every: steps between two weights that enter the mean.
        metric: which value of `validate` decides what is best; higher is better.
        patience: stop after so many validations without a better value; None means never.
        validate_every: steps between two validations; None means one after each epoch.
        precision: "auto" means bf16 autocast on a GPU and float32 on a CPU.
    """

    epochs: int = 10
    batch_size: int = 1024
    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0
    clip: float | None = None
    averaging: Literal["mean"] | None = None
    averaging_start: float = 0.5
    averaging_every: int = 10
    metric: str = "nDCG@5"
    patience: int | None = None
    validate_every: int | None = None
    precision: Literal["auto", "float32", "bf16"] = "auto"


@dataclass
class History:
    """What happened in training.

    Attributes:
        records: one line of the log each: step, epoch, loss, learning_rate, documents_per_second,
            seconds, and the values of `validate` where there was a validation.
        best: the values of the best validation; None if there was none.
        best_step: the step after which it took place; its weights are the ones kept.
        n_steps: how many steps were made.
        stopped_early: whether patience ran out.
        seconds: the time training took.
        waiting: how many of these seconds were spent waiting for the next batch.
    """

    records: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] | None = None
    best_step: int = 0
    n_steps: int = 0
    stopped_early: bool = False
    seconds: float = 0.0
    waiting: float = 0.0


def choose_device(name: str) -> torch.device:
    """Return the device called "auto", "cpu" or "cuda"; ParameterError if there is no such."""
    raise NotImplementedError


def train(
    task: Task,
    plan: Plan,
    *,
    device: str = "auto",
    seed: int = 0,
    progress: Progress = SILENT,
    run_dir: str | Path | None = None,
    resume: bool = False,
    fingerprint: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 300.0,
) -> History:
    """Train `task.module` and return what happened; the module ends with the weights to keep.

    Args:
        task: the model's part.
        plan: how to train.
        device: "auto", "cpu" or "cuda".
        seed: fixes the order of the documents and all random choices.
        progress: is shown loss, validation, documents/s and time left.
        run_dir: where the log and the checkpoints go; None means there are none.
        resume: go on from the newest whole checkpoint in `run_dir`, if there is one.
        fingerprint: what data and parameters this is, as JSON knows it; resuming a run with
            another one is refused, naming what differs.
        checkpoint_seconds: time between two checkpoints.

    Raises:
        TrainingError: the loss is no longer a number; the last good weights are in the module.
    """
    raise NotImplementedError
