"""TrainingConfig: how long, how fast and by which schedule to train."""

import math
from dataclasses import dataclass
from typing import Literal

from longtail.errors import ParameterError

SCHEDULES = ("constant", "linear", "cosine")
PRECISIONS = ("auto", "float32", "bf16")


@dataclass(frozen=True)
class TrainingConfig:
    """How to train: the numbers that the training loop needs.

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

    def __post_init__(self) -> None:
        """Raise ParameterError for the first value that is out of range."""
        share = "at least 0 and below 1"
        self._require("epochs", self.epochs >= 1, "at least 1")
        self._require("batch_size", self.batch_size >= 1, "at least 1")
        self._require("learning_rate", 0 < self.learning_rate < math.inf, "above 0")
        self._require("schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}")
        self._require("warmup", 0 <= self.warmup < 1, share)
        self._require("clip", self.clip is None or self.clip > 0, "above 0 or none")
        self._require("averaging", self.averaging in (None, "mean"), "'mean' or none")
        self._require("averaging_start", 0 <= self.averaging_start < 1, share)
        self._require("averaging_every", self.averaging_every >= 1, "at least 1")
        for name in ("patience", "validate_every"):
            value = getattr(self, name)
            self._require(name, value is None or value >= 1, "at least 1 or none")
        self._require("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")

    def _require(self, name: str, condition: bool, range_text: str) -> None:
        if not condition:
            raise ParameterError(
                f"The '{name}' parameter of training must be {range_text}. "
                f"Got {getattr(self, name)!r} instead."
            )

    def rate(self, step: int, n_steps: int) -> float:
        """Return which share of the learning rate the step, counted from 0, takes."""
        n_warm = self.warmup * n_steps
        if step < n_warm:
            return (step + 1) / (n_warm + 1)
        done = (step - n_warm) / (n_steps - n_warm)
        if self.schedule == "linear":
            return 1 - done
        return (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else 1.0

    def averages_at(self, step: int, n_steps: int) -> bool:
        """Return whether the weights after so many steps enter the mean; the last always do."""
        if self.averaging is None or step < self.averaging_start * n_steps:
            return False
        return step % self.averaging_every == 0 or step == n_steps

    def validates_at(self, step: int, n_steps: int, epoch_steps: int) -> bool:
        """Return whether there is a validation after so many steps; the last always has one."""
        return step % (self.validate_every or epoch_steps) == 0 or step == n_steps
