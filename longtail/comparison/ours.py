"""Our own models under the protocol of `longtail.peers.measure`, used as a program would use them.

The setting's "model" is the model's name, the rest goes to `from_settings`. Documents are rows
(`train_X.npz`) or texts (`train_texts.json`): our models make their own features of texts, as part
of training and of prediction.
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.errors import LongtailError, TrainingError
from longtail.models import get_model_class, load_model
from longtail.models.base import Model
from longtail.models.neural import Neural
from longtail.parallel import set_threads
from longtail.peers.measure import Method, count, run, tell

BATCH = 8192  # documents predicted in one go
TOLD_EVERY = 0.1  # seconds between two reports of progress


class Ours(Method):
    """A model of ours."""

    model: Model
    history: Any = None
    problem: str | None = None

    def warm_up(self) -> None:
        """Load what training will need, and let a quick model compile, on a few made-up rows."""
        set_threads(self.threads)
        settings = dict(self.setting)
        model_class = get_model_class(settings.pop("model"))
        if issubclass(model_class, Neural) or "rows" not in model_class.reads:
            import longtail.trainer  # noqa: F401 (it loads torch)
        elif model_class.name in ("linear", "knn"):
            X, Y = _few_rows()
            with suppress(LongtailError):  # settings may not suit so few rows
                self._build().fit(X, Y).predict(X, k=5)

    def read(self, given: Path, part: str) -> Any:
        """Return texts where there are some, else rows."""
        self.given = given
        texts = given / f"{part}_texts.json"
        return json.loads(texts.read_text()) if texts.exists() else super().read(given, part)

    def take_data(self, documents: Any, Y: sp.csr_matrix) -> Dataset:
        """Return a Dataset with the names of the labels, if they are given."""
        named = self.given / "label_names.json"
        names = json.loads(named.read_text()) if named.exists() else None
        names = names or [str(label) for label in range(Y.shape[1])]
        if isinstance(documents, list):
            return Dataset(Y, names, texts=documents)
        return Dataset(Y, names, X=documents)

    def train(self, data: Dataset) -> None:
        """Fit, with checkpoints beside the model folder if it is one that keeps them."""
        self.model = self._build()
        model: Any = self.model
        if hasattr(model, "run_dir"):
            model.run_dir, model.resume = self.folder.parent / "training", True
        try:
            self.model.fit(data, progress=Told())
        except TrainingError as error:
            if not self.model.is_fitted:
                raise
            self.problem = str(error)
        self.history = getattr(self.model, "history_", None)

    def save(self) -> None:
        """Write the model."""
        self.model.save(self.folder, overwrite=True)

    def load(self) -> None:
        """Read the model."""
        self.model = load_model(self.folder)

    def predict(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rank with the model's own defaults."""
        starts = range(0, count(rows), BATCH)
        tops = [self.model.predict(rows[start : start + BATCH], k=self.k) for start in starts]
        if len(tops) == 1:
            return tops[0].labels, tops[0].scores
        return (
            np.concatenate([top.labels for top in tops]),
            np.concatenate([top.scores for top in tops]),
        )

    def add_facts(self, measured: dict[str, Any]) -> None:
        """Add the training curve, and what the device was."""
        if self.problem is not None:
            measured["note"] = self.problem
        if self.history is not None:
            measured["curve"] = self.history.records
            measured["train_seconds"] = max(measured["train_seconds"], self.history.seconds)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
            measured["gpu"] = torch.cuda.get_device_name()
            measured["gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6

    def _build(self) -> Model:
        settings = dict(self.setting)
        return get_model_class(settings.pop("model")).from_settings(settings)


class Told:
    """A `longtail.progress.Progress` that reports to the process that started this one."""

    def __init__(self) -> None:
        self._done, self._told = 0.0, 0.0

    def stage(self, name: str, total: float) -> None:
        """Report a stage."""
        self._done = 0.0
        tell(stage=name, total=float(total))

    def advance(self, amount: float) -> None:
        """Report progress, a few times a second."""
        self._done += amount
        if time.monotonic() - self._told > TOLD_EVERY:
            tell(advance=float(self._done))
            self._done, self._told = 0.0, time.monotonic()

    def note(self, text: str) -> None:
        """Report a note."""
        tell(note=text)

    def say(self, text: str) -> None:
        """Report a line that stays."""
        tell(say=text)


def _few_rows() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    X = rng.random((300, 50)) * (rng.random((300, 50)) < 0.2)
    Y = rng.random((300, 20)) < 0.1
    return sp.csr_matrix(X.astype(np.float32)), sp.csr_matrix(Y.astype(np.float32))


if __name__ == "__main__":
    run(Ours)
