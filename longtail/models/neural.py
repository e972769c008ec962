"""What the models that torch trains share: device, checkpoints, and how documents are held out.

Nothing here imports torch before training does: a trained model predicts without it.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints
from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import MissingExtraError, TrainingError
from longtail.models.base import Documents, Model
from longtail.progress import SILENT, Progress
from longtail.runtime.rows import Rows, scale_to_unit

if TYPE_CHECKING:
    from longtail.training.history import History
    from longtail.training.memory import Needs
    from longtail.training.task import Task, TrainingConfig

Device = Literal["auto", "cpu", "cuda"]
Schedule = Literal["constant", "linear", "cosine"]


class Neural(Model):
    """A model that the trainer trains, on a CPU or a GPU.

    Attributes:
        run_dir: where the log and the checkpoints of training go; None means there are none.
        resume: whether to go on from the checkpoint in `run_dir`, if there is one.
        history_: after fit, what happened in training.
    """

    needs_torch: ClassVar[bool] = True
    can_resume: ClassVar[bool] = True

    run_dir: Path | None = None
    resume: bool = False

    keep: float
    dropout: float
    batch_size: int | None
    learning_rate: float
    schedule: Schedule
    valid: float
    patience: int | None
    device: Device
    history_: "History"

    def fit(self, data: Documents, labels: Any = None, *, progress: Progress = SILENT) -> Self:
        """Learn as every model does.

        Raises:
            TrainingError: the loss became NaN; the model is usable, with the last good weights.
        """
        super().fit(data, labels, progress=progress)
        if self.history_.problem is not None:
            raise TrainingError(self.history_.problem)
        return self

    @property
    def training_seconds_(self) -> float | None:
        """Seconds of training, with those before an interruption."""
        return self.history_.seconds

    def check_training(self) -> None:
        """Raise ParameterError for the first of the common parameters that is out of range."""
        for name, hint in get_type_hints(type(self).__init__).items():
            if get_origin(hint) is Literal:
                choices = " or ".join(map(repr, get_args(hint)))
                self.require(name, getattr(self, name) in get_args(hint), choices)
        for name in ("batch_size", "patience"):
            value = getattr(self, name)
            self.require(name, value is None or value >= 1, "at least 1, or none")
        self.require("learning_rate", 0 < self.learning_rate < np.inf, "a number above 0")
        self.require("keep", 0 < self.keep <= 1, "above 0 and at most 1")
        for name in ("dropout", "valid"):
            self.require(name, 0 <= getattr(self, name) < 1, "from 0 to below 1")
        self.require("seed", 0 <= self.seed < 2**32, "between 0 and 4294967295")

    def make_config(self, epochs: int, batch_size: int, **more: Any) -> "TrainingConfig":
        """Return the plan that the common parameters make; `more` are other fields of it."""
        from longtail.training.task import TrainingConfig

        return TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            patience=self.patience,
            **more,
        )

    def train_task(
        self,
        task: "Task",
        plan: "TrainingConfig",
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        progress: Progress,
    ) -> None:
        """Train as the parameters say; X and Y are what a resumed run must have been given."""
        from longtail.training.loop import train

        self.history_ = train(
            task,
            plan,
            device=self.device,
            seed=self.seed,
            progress=progress,
            run_dir=self.run_dir,
            resume=self.resume,
            fingerprint={**self.get_parameters(), "data": fingerprint(X, Y)},
        )

    def say_memory(
        self, needs: "Needs", kind: str, alternatives: Mapping[str, "Needs"], progress: Progress
    ) -> None:
        """Say what training will take, or stop with what to change."""
        from longtail.training.memory import plan_memory

        progress.say(f"Memory: {plan_memory(needs, device=kind, alternatives=alternatives)}")


def require_torch(model_name: str) -> None:
    """Raise MissingExtraError if there is no torch to train `model_name` with."""
    if find_spec("torch") is None:
        raise MissingExtraError(
            f"{model_name} needs torch, which is not installed; "
            "install it with: pip install 'longtail[deep]'"
        )


def weigh_features(X: sp.csr_matrix) -> NDArray[np.float32]:
    """Return log(n/df) + 1 of each feature if X holds counts; other values are weights already."""
    if X.nnz and (X.data != np.round(X.data)).any():
        return np.ones(X.shape[1], np.float32)
    held = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return (np.log((1 + X.shape[0]) / (1 + held)) + 1).astype(np.float32)


def weigh_rows(X: sp.csr_matrix, weights: NDArray[np.float32], normalize: bool) -> sp.csr_matrix:
    """Return X with every feature multiplied by its weight, then with rows of length 1 if asked."""
    X = sp.csr_matrix((X.data * weights[X.indices], X.indices, X.indptr), shape=X.shape)
    return scale_to_unit(X) if normalize else X


def choose_batch_size(n_documents: int) -> int:
    """Return what makes about 128 steps of an epoch, fewer of one with few documents.

    It grows with the documents without jumps, so that what was good for a part of them is good for
    all; GPUs like multiples of 16.
    """
    least = min(64, max(1, n_documents // 8))
    return int(np.clip(16 * round(n_documents / 128 / 16), least, 4096))


def hold_out(
    n_documents: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the documents at random: return those to train on, then the share held out."""
    order = np.random.default_rng(seed).permutation(n_documents)
    n_held = min(round(share * n_documents), n_documents - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])


def pairs_of(Y: Rows, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs (place in the batch, label) of these documents."""
    counts = Y.start[rows + 1] - Y.start[rows]
    documents = np.repeat(np.arange(len(rows)), counts)
    offsets = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    labels = Y.columns[np.repeat(Y.start[rows], counts) + offsets]
    return documents, labels.astype(np.int64)


def fingerprint(X: sp.csr_matrix, Y: sp.csr_matrix) -> str:
    """Return a few characters that change with the data."""
    total = 0
    for array in (X.indptr, X.indices, X.data, Y.indptr, Y.indices):
        total = crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"
