"""What the models that torch trains share: parameters, device, checkpoints, memory plan.

Nothing here imports torch before training does: a trained model predicts without it.
"""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import MissingExtraError, ParameterError, TrainingError
from longtail.models.base import Model
from longtail.models.contract import Documents
from longtail.models.cost import STEP_SECONDS, DeviceType, Facts, estimate_by_document
from longtail.progress import SILENT, Progress
from longtail.runtime.mapped import Extent, is_mapped
from longtail.runtime.memory import Needs, fits_memory, total_ram
from longtail.runtime.rows import fingerprint, weigh_features
from longtail.runtime.settings import (
    above,
    at_least,
    between,
    configurable,
    learned,
    setting,
    share,
)

if TYPE_CHECKING:
    from longtail.training.config import TrainingConfig
    from longtail.training.history import History
    from longtail.training.processes import Processes
    from longtail.training.task import Task

MOST_EPOCHS = 1_000_000
AHEAD = 4  # batches that the training loop prepares before they are needed
INT8_SHARE = 12  # of what training takes is kept: parameters without gradients, at a byte each
CELL = 28  # bytes of a cell of a `SparseBatch`
CHOOSING, MOST_CHOOSING = 0.1, 5000  # documents by which a model chooses how neighbours vote
LITTLE = 0.05  # of the documents; with so few of them held out, there is no second training
MOVED = {"cpu": 40 << 20, "cuda": 40 << 24}  # ten numbers for each of `PART` in training/layers.py

SPLIT_HELP = (
    "split the labels' weights among the processes that train together; none does so where one "
    "process cannot hold them all"
)

Device = Literal["auto", "cpu", "cuda"]
OptimizerState = Literal["float32", "bfloat16", "int8", "host"]
Schedule = Literal["constant", "linear", "cosine"]


@configurable
class Neural(Model):
    """A model that the training loop trains, on a CPU or a GPU."""

    needs_torch: ClassVar[bool] = True
    can_resume: ClassVar[bool] = True
    uses_cluster: ClassVar[bool] = True

    keep: float = setting(
        1.0, "share of the input cells that input dropout keeps", above(0, at_most=1)
    )
    dropout: float = setting(
        0.0, "share of the hidden values that are dropped in training", share()
    )
    epochs: int | None = setting(
        None, "passes over the documents; none chooses by their number", between(1, MOST_EPOCHS)
    )
    batch_size: int | None = setting(
        None, "documents in a step; none makes about 128 steps of an epoch", at_least(1)
    )
    learning_rate: float = setting(0.001, "of the optimizer, at its highest", above(0))
    schedule: Schedule = setting("linear", "how the learning rate falls")
    valid: float = setting(
        0.0,
        "share of the documents held out to choose the best epoch; 0 takes the last one",
        share(),
    )
    patience: int | None = setting(
        None, "stop after so many epochs that were no better (with valid only)", at_least(1)
    )
    device: Device = setting("auto", "where to train")
    optimizer_state: OptimizerState = setting(
        "float32",
        "how Adam keeps what it remembers of the tables of features, words and labels: with 8, 4 "
        "or 2 bytes a weight, the latter two rounded at random, or with 8 in RAM while a GPU "
        "trains, which is slower",
    )

    history_: "History" = learned()  # what happened in training

    def fit(
        self,
        data: Documents,
        labels: Any = None,
        *,
        text: str | Sequence[str] | None = None,
        progress: Progress | bool = SILENT,
    ) -> Self:
        """Learn as every model does.

        Raises:
            TrainingError: the loss became NaN; the model is usable, with the last good weights.
        """
        super().fit(data, labels, text=text, progress=progress)
        if self.history_.problem is not None:
            raise TrainingError(self.history_.problem)
        return self

    @property
    def training_seconds_(self) -> float | None:
        """Seconds of training, with those before an interruption."""
        return self.history_.seconds

    def extra_seconds(self, facts: Facts) -> float:
        """Small batches make many steps, each of which takes a while."""
        n_steps = -(-facts.n_documents // self.choose_batch(facts.n_documents))
        return STEP_SECONDS * self.choose_epochs(facts.n_documents) * n_steps

    def choose_batch(self, n_documents: int) -> int:
        """Return how many documents a step takes."""
        return self.batch_size or choose_batch_size(n_documents)

    def choose_epochs(self, n_documents: int) -> int:
        """Return how many passes over so many documents there are."""
        return self.epochs or 1

    def inner_passes(self, facts: Facts) -> int:
        """Return how many passes over the documents there are beside those of `epochs`."""
        return 0

    def sized_for(self, n_documents: int, device: DeviceType) -> Self:
        """Return the same model with all that depends on the number of documents given."""
        return self.with_parameters(
            epochs=self.choose_epochs(n_documents), batch_size=self.choose_batch(n_documents)
        )

    def seconds_left(self, n_trainings: int = 1) -> float | None:
        """Return how long the next of so many trainings may take; None if there is no limit."""
        if self.stop_at is None:
            return None
        return max(0.0, self.stop_at - time.monotonic()) / n_trainings

    def make_config(self, epochs: int, batch_size: int, **more: Any) -> "TrainingConfig":
        """Return the configuration that the common parameters make; `more` are other fields."""
        from longtail.training.config import TrainingConfig

        return TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            patience=self.patience,
            **more,
        )

    def remembered(self, tables: int, rest: int, device_type: str) -> dict[str, int]:
        """Return how many bytes Adam remembers of weights of so many: where they are, and in RAM.

        Of what is coarser than float32, a part is float32 while it is moved.
        """
        parts = {"float32": 2 * tables, "bfloat16": tables, "int8": tables // 2 + tables // 256}
        if self.optimizer_state == "host" and device_type != "cpu":
            return {"optimizer": 2 * rest + MOVED[device_type], "on_host": 2 * tables}
        own = parts.get(self.optimizer_state, 2 * tables)
        moved = 0 if own == 2 * tables else min(MOVED[device_type], 10 * tables)
        return {"optimizer": 2 * rest + own + moved}

    def share_labels(
        self,
        needs: Callable[[Self, int], Needs],
        n_labels: int,
        device_type: str,
        *,
        hindrance: str | None = None,
    ) -> "Processes | None":
        """Return the processes that the labels' rows are split among, None if each holds all.

        Args:
            needs: what a model takes with so many processes to split labels among.
            n_labels: how many there are.
            device_type: "cpu" or "cuda".
            hindrance: with which other parameter labels cannot be split; None if they can.
        """
        from longtail.training.processes import join_processes

        wish: bool | None = getattr(self, "split_labels", None)
        if wish and hindrance is not None:
            raise ParameterError(
                f"The 'split_labels' parameter of {type(self).__name__} must be none or false "
                f"with {hindrance}. Got true instead."
            )
        processes = join_processes(self.device)
        if wish and n_labels < processes.count:
            raise ParameterError(
                f"{n_labels} labels cannot be split among {processes.count} processes; leave out "
                "split_labels"
            )
        if wish is None and hindrance is None and 1 < processes.count <= n_labels:
            wish = processes.share(not fits_memory(needs(self, 1), device_type))
        return processes if wish else None

    def train_task(
        self,
        task: "Task",
        config: "TrainingConfig",
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        progress: Progress,
    ) -> None:
        """Train as the parameters say; X and Y are what a resumed run must have been given."""
        from longtail.training.loop import train

        self.history_ = train(
            task,
            config,
            device=self.device,
            seed=self.seed,
            progress=progress,
            run_dir=self.run_dir,
            resume=self.resume,
            checkpoint_seconds=self.checkpoint_seconds,
            fingerprint={**self.get_parameters(), "data": fingerprint(X, Y)},
            seconds=self.seconds_left(),
        )


def has_torch() -> bool:
    """Return whether torch is installed; it is not imported."""
    return find_spec("torch") is not None


def require_torch(model_name: str) -> None:
    """Raise MissingExtraError if there is no torch to train `model_name` with."""
    if not has_torch():
        raise MissingExtraError.of(f"{model_name} needs torch", "deep")


@configurable
class NeuralRows(Neural):
    """A neural model that reads feature rows."""

    can_explain: ClassVar[bool] = True

    idf: bool = setting(
        True,
        "weight the features of rows by how rare they are; texts have such weights already",
    )
    normalize: bool = setting(True, "scale every document's row to length 1")

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return about how many bytes the trained model keeps: its vectors are int8 by then."""
        return total_ram(self.needs_of(X, Y, "cpu")) // INT8_SHARE

    def weigh(self, X: sp.csr_matrix) -> NDArray[np.float32]:
        """Return what each feature is multiplied by."""
        return weigh_features(X) if self.idf else np.ones(X.shape[1], np.float32)


def find_useful(X: sp.csr_matrix, Y: sp.csr_matrix) -> NDArray[np.int64]:
    """Return the documents with features and labels; those with labels if there are none."""
    labelled = np.diff(Y.indptr) > 0
    useful = labelled & (np.diff(X.indptr) > 0)
    return np.flatnonzero(useful if useful.any() else labelled)


def share_to_choose(n_documents: int) -> float:
    """Return the share of the documents that is held out to choose by, if nothing else is."""
    return min(CHOOSING, MOST_CHOOSING / max(1, n_documents))


def share_to_spare(n_documents: int) -> float:
    """Return the same share if it is so small that these need not be learned from later; else 0."""
    share = share_to_choose(n_documents)
    return share if share <= LITTLE else 0.0


def estimate_trainings(facts: Facts, cpu: tuple[float, float], cuda: tuple[float, float]) -> float:
    """Return the seconds by `estimate_by_document` of two trainings, or half if one is enough."""
    seconds = estimate_by_document(facts, cpu, cuda)
    return seconds / 2 if share_to_spare(facts.n_documents) else seconds


def count_cells(matrix: sp.csr_matrix | Extent, batch_size: int) -> int:
    """Return how many cells a batch of rows has, one with the longest row among them."""
    if not matrix.shape[0]:
        return 0
    longest = _longest(matrix)
    mean = matrix.nnz / matrix.shape[0]
    return min(matrix.nnz, int(batch_size * mean + longest))


def _longest(matrix: sp.csr_matrix | Extent) -> int:
    return matrix.longest if isinstance(matrix, Extent) else int(np.diff(matrix.indptr).max())


def batch_bytes(n_cells: int, n_columns: int) -> int:
    """Return what batches of sparse rows take: those prepared ahead, and scratch for the next."""
    return (AHEAD + 2) * CELL * n_cells + 4 * n_columns


def weighed_bytes(X: sp.csr_matrix) -> int:
    """Return what `weigh_rows` adds to rows: their values, and where they begin in 64 bits."""
    return 4 * X.nnz * (not is_mapped(X)) + 8 * X.shape[0]


def choose_batch_size(n_documents: int) -> int:
    """Return what makes about 128 steps of an epoch, fewer of one with few documents.

    It grows with the documents without jumps, so that what was good for a part of them is good for
    all; GPUs like multiples of 16.
    """
    least = min(64, max(1, n_documents // 8))
    return int(np.clip(16 * round(n_documents / 128 / 16), least, 4096))
