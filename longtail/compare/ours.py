"""Our own models under the protocol of `longtail.peers.measure`, used as any program uses them.

The setting's "model" is the model's name, the rest goes to `from_settings`. Documents are rows
(`train_X.npz`) or texts (`train_texts.json`): our models make features of texts themselves, and
that time counts as training and prediction.
"""

import csv
import json
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.errors import LongtailError, TrainingError
from longtail.models import get_model_class, load_model
from longtail.models.base import Model
from longtail.peers.measure import Method, count, run, send_event
from longtail.recipe import measure_held_out
from longtail.runtime.parallel import set_threads

BATCH = 8192  # documents predicted in one go
REPORT_SECONDS = 0.1  # between two reports of progress


class Ours(Method):
    """One of our models."""

    model: Model
    given: Path
    note: str | None = None
    seconds: float = 0.0  # of training, with those before an interruption

    @property
    def training(self) -> Path:
        """Where a model that can resume keeps its log and checkpoints."""
        return self.folder.parent / "training"

    def warm_up(self) -> None:
        """Load and compile what training will need, on a few made-up rows."""
        set_threads(self.threads)
        model_class = get_model_class(self.setting["model"])
        may_use_torch = model_class.needs_torch or model_class.can_resume
        if may_use_torch and find_spec("torch") is not None:
            _load_torch()
        if not model_class.needs_torch:
            # What can resume trains for minutes whatever the data: compile what its members use.
            setting = {"model": "linear"} if model_class.can_resume else self.setting
            with suppress(LongtailError):  # settings may not suit so few rows
                X, Y = _few_rows()
                _build(setting).fit(X, Y).predict(X, k=5)

    def read(self, given: Path, split: str) -> Any:
        """Return texts where there are some, else rows."""
        self.given = given
        texts = given / f"{split}_texts.json"
        return json.loads(texts.read_text()) if texts.exists() else super().read(given, split)

    def take_data(self, documents: Any, Y: sp.csr_matrix) -> Dataset:
        """Return a Dataset with the names of the labels, if they are given."""
        named = self.given / "label_names.json"
        names = json.loads(named.read_text()) if named.exists() else None
        names = names or [str(label) for label in range(Y.shape[1])]
        if isinstance(documents, list):
            return Dataset(Y, names, texts=documents)
        return Dataset(Y, names, X=documents)

    def train(self, data: Dataset) -> None:
        """Fit, with checkpoints if the model can resume."""
        self.model = model = _build(self.setting)
        interrupted = self.training.exists()
        if model.can_resume:
            model.run_dir, model.resume = self.training, True
        try:
            model.fit(data, progress=PipeProgress())
        except TrainingError as error:
            if not model.is_fitted:
                raise
            self.note = str(error)
        if model.held_out_ is not None:
            _, model.calibration_ = measure_held_out(model, data)
        if model.training_seconds_ is not None:
            self.seconds = model.training_seconds_
        elif interrupted and self.note is None:
            self.note = "training was interrupted; its time is that since the last start"

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
        """Add the training curves, and what the device was."""
        if self.note is not None:
            measured["note"] = self.note
        measured["curves"] = _read_curves(self.training)
        measured["train_seconds"] = max(measured["train_seconds"], self.seconds)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
            measured["gpu"] = torch.cuda.get_device_name()
            measured["gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6


def _build(setting: Mapping[str, Any]) -> Model:
    settings = dict(setting)
    return get_model_class(settings.pop("model")).from_settings(settings)


def _load_torch() -> None:
    """Import what training imports, which takes seconds."""
    import torch

    import longtail.training.loop  # noqa: F401

    torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def _read_curves(folder: Path) -> dict[str, list[dict[str, float]]]:
    """Return the training logs by member of a fusion; by "" if there is only one."""
    curves = {}
    for log in sorted(folder.glob("**/log.csv")):
        with log.open(newline="") as file:
            records = [_numbers(record) for record in csv.DictReader(file)]
        curves["" if log.parent == folder else log.parent.name.removesuffix(".run")] = records
    return curves


def _numbers(record: Mapping[str, str | None]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in record.items() if value}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


class PipeProgress:
    """A `longtail.progress.Progress` that reports to the process that started this one."""

    def __init__(self) -> None:
        self._done, self._reported = 0.0, 0.0

    def stage(self, name: str, total: float) -> None:
        """Report a stage."""
        self._done = 0.0
        send_event(stage=name, total=float(total))

    def advance(self, amount: float) -> None:
        """Report progress, a few times a second."""
        self._done += amount
        if time.monotonic() - self._reported > REPORT_SECONDS:
            send_event(advance=float(self._done))
            self._done, self._reported = 0.0, time.monotonic()

    def note(self, text: str) -> None:
        """Report a note."""
        send_event(note=text)

    def say(self, text: str) -> None:
        """Report a line that stays."""
        send_event(say=text)


def _few_rows() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    X = rng.random((300, 50)) * (rng.random((300, 50)) < 0.2)
    Y = rng.random((300, 20)) < 0.1
    return sp.csr_matrix(X.astype(np.float32)), sp.csr_matrix(Y.astype(np.float32))


if __name__ == "__main__":
    run(Ours)
