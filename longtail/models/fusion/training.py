"""The parts of a fusion in training: one after the other, within the time that there is.

A part that fails, or that runs out of time, is left out with a line that says why, and the rest
goes on. With a run folder, each trained part is kept there until the fusion is saved, so that a
run that was stopped goes on with the next one; so are the checkpoints of the part it stopped in.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import LongtailError, ModelFileError
from longtail.models.base import Model
from longtail.models.fusion.plan import NEED_TORCH, Facts, Part, Plan, Split, format_seconds
from longtail.models.neural import Neural, fingerprint
from longtail.progress import Progress
from longtail.runtime.store import Files, read_folder, write_folder
from longtail.topk import TopK

ALL = "all"  # the name of a training on all documents, where others have the number of a fold
OVERRUN = 1.1  # of the budget, after which a part that is being trained is given up


class OutOfTimeError(LongtailError):
    """The budget is spent."""


class Limited:
    """A Progress that shows a part's stages under its name, and stops it when time is up."""

    def __init__(self, progress: Progress, name: str, deadline: float) -> None:
        self.progress, self.name, self.deadline = progress, name, deadline

    def _check(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTimeError("the budget is spent")

    def stage(self, name: str, total: float) -> None:
        """Begin a stage of the part."""
        self._check()
        self.progress.stage(f"{self.name}: {name}", total)

    def advance(self, amount: float) -> None:
        """Go on, if there is time."""
        self._check()
        self.progress.advance(amount)

    def note(self, text: str) -> None:
        """Show where the part stands."""
        self.progress.note(text)

    def say(self, text: str) -> None:
        """Leave out what a part says of itself: the plan has said enough."""


class Paces:
    """How long parts take, by what was trained before.

    A part that was trained already takes as long again. For another, a slow machine makes all
    parts slow, so the one nearest to its estimate tells how slow it is; but a busy CPU says nothing
    about a GPU, and what a part needs to start nothing about the next.
    """

    STARTING = 20.0  # seconds, such as for compiling

    def __init__(self, kind: str) -> None:
        self.kind = kind  # where torch trains
        self._took: dict[str, float] = {}  # seconds of one training, by part
        self._paces: dict[str, float] = {}  # times the estimate, by place

    def record(self, part: Part, seconds: float, trainings: float) -> None:
        """Remember what so many trainings have taken."""
        self._took[part.name] = seconds / trainings
        pace = (seconds + self.STARTING) / (part.seconds * trainings + self.STARTING)
        place = self._place(part)
        self._paces[place] = min(float(np.clip(pace, 0.3, 5)), self._paces.get(place, np.inf))

    def expect(self, part: Part) -> float:
        """Return the seconds that one training will take."""
        if part.name in self._took:
            return self._took[part.name]
        return part.seconds * self._paces.get(self._place(part), 1.0)

    def _place(self, part: Part) -> str:
        return self.kind if part.name in NEED_TORCH else "cpu"


class Training:
    """Trains the parts of a plan on documents that are rows, or texts and rows at once."""

    def __init__(
        self,
        dataset: Dataset,
        X: sp.csr_matrix,
        plan: Plan,
        facts: Facts,
        *,
        device: str,
        seed: int,
        began: float,
        run_dir: Path | None,
        resume: bool,
        progress: Progress,
    ) -> None:
        self.dataset, self.X, self.plan, self.facts = dataset, X, plan, facts
        self.device, self.seed, self.progress = device, seed, progress
        self.folder = None if run_dir is None else run_dir / "parts"
        self.resume = resume
        self.deadline = np.inf if plan.budget is None else began + plan.budget
        self.stamp = fingerprint(X, dataset.Y)
        self.splits: list[Split] = []
        if plan.scheme.folds:
            self.splits = plan.scheme.split(facts.n_documents, seed)
        self.taken: dict[str, float] = {}  # seconds by part
        self.paces = Paces(facts.kind)
        if self.folder is not None and not resume:
            rmtree(self.folder, ignore_errors=True)

    def hold_out(self, part: Part, width: int) -> tuple[Model, list[TopK]] | None:
        """Return the part's lists for the documents of each fold, and its last model.

        None if the part failed or there is no time for it.
        """
        expected = self.paces.expect(part) * self.plan.scheme.trainings
        if self.taken and time.monotonic() + expected > self.deadline:
            self.progress.say(
                f"{part.name} is left out: it would take about {format_seconds(expected)}, and "
                f"{self._time_left()} of the budget is left"
            )
            return None
        began = time.monotonic()
        try:
            lists = []
            for fold, (kept, held) in enumerate(self.splits):
                model = self._train(part, str(fold + 1), kept)
                lists.append(self._predict(model, held, width))
        except (Exception, OutOfTimeError) as error:
            self._leave_out(part, error)
            return None
        self._count(
            part, time.monotonic() - began, self.plan.scheme.trainings - self.plan.scheme.refit
        )
        return model, lists

    def refit(self, part: Part, fallback: Model | None) -> Model | None:
        """Return the part trained on all documents, or what there is if that fails."""
        expected = self.paces.expect(part)
        if fallback is not None and time.monotonic() + expected > self.deadline:
            self.progress.say(
                f"{part.name} stays as trained on a part of the documents: training it on all "
                f"would take about {format_seconds(expected)}, and {self._time_left()} is left"
            )
            return fallback
        began = time.monotonic()
        try:
            model = self._train(part, ALL, None)
        except (Exception, OutOfTimeError) as error:
            if fallback is None:
                self._leave_out(part, error)
            else:
                self.progress.say(
                    f"{part.name} stays as trained on a part of the documents: {_one_line(error)}"
                )
            return fallback
        self._count(part, time.monotonic() - began, 1.0)
        return model

    def _time_left(self) -> str:
        return format_seconds(max(self.deadline - time.monotonic(), 0))

    def _leave_out(self, part: Part, error: Exception) -> None:
        self.progress.say(f"{part.name} is left out: {_one_line(error)}")

    def _count(self, part: Part, seconds: float, trainings: float) -> None:
        """Remember what a part took, and how that compares with the estimates."""
        self.taken[part.name] = self.taken.get(part.name, 0.0) + seconds
        self.paces.record(part, seconds, trainings)

    # -- one training -----------------------------------------------------------------------------

    def _train(self, part: Part, fold: str, kept: NDArray[np.int64] | None) -> Model:
        """Train a part on some of the documents, or on all; or take it from the run folder."""
        model = self._new_model(part)
        facts = self._facts(model, fold)
        done = self._find(part, fold, facts)
        if done is not None:
            return done
        folder = self._folder_of(part, fold)
        if isinstance(model, Neural) and folder is not None:
            model.run_dir, model.resume = folder.with_name(folder.name + ".run"), self.resume
        name = part.name if fold == ALL else f"{part.name} {fold}/{len(self.splits)}"
        limit = np.inf  # the first part is trained whatever it takes, or there is no model
        if self.taken:
            limit = self.deadline + (OVERRUN - 1) * (self.plan.budget or 0)
        model.fit(self._documents(model, kept), progress=Limited(self.progress, name, limit))
        if hasattr(model, "keep_snippets") and self.dataset.texts is not None:
            texts = self.dataset.texts
            model.keep_snippets(texts if kept is None else [texts[i] for i in kept.tolist()])
        if folder is not None:
            self._keep(model, facts, folder)
        return model

    def _new_model(self, part: Part) -> Model:
        from longtail.models import get_model_class

        model_class = get_model_class(part.name)
        settings: dict[str, Any] = {"seed": self.seed}
        if part.preset is not None:
            settings["preset"] = part.preset
        if issubclass(model_class, Neural):
            settings["device"] = self.device
        return model_class.from_settings(settings)

    def _documents(self, model: Model, kept: NDArray[np.int64] | None) -> Dataset:
        """Return the documents as the model reads them: rows, wherever it can."""
        rows = slice(None) if kept is None else kept
        dataset = self.dataset if kept is None else self.dataset.take(kept)
        if "rows" not in model.reads:
            return dataset
        return Dataset(dataset.Y, dataset.label_names, X=self.X[rows])

    def _predict(self, model: Model, held: NDArray[np.int64], width: int) -> TopK:
        if "rows" in model.reads:
            return model.predict_documents(self.X[held], width)
        texts = self.dataset.texts or []
        return model.predict_documents([texts[row] for row in held.tolist()], width)

    # -- the run folder ---------------------------------------------------------------------------

    def _folder_of(self, part: Part, fold: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{part.name}-{fold}"

    def _facts(self, model: Model, fold: str) -> dict[str, Any]:
        """Return what a kept part must have been trained with."""
        scheme = list(self.plan.scheme) if fold != ALL else []
        return {"data": self.stamp, "scheme": scheme, "parameters": model.get_parameters()}

    def _keep(self, model: Model, facts: dict[str, Any], folder: Path) -> None:
        """Save a part for --resume; if that cannot be, training goes on all the same."""
        files = model.to_files()
        files.config["fusion"] = facts
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_folder(folder, files, overwrite=True)
        except (LongtailError, OSError) as error:
            self.progress.say(f"Note: {model.name} cannot be kept for --resume: {error}")
        for checkpoints in folder.parent.glob(f"{folder.name}.run*"):
            rmtree(checkpoints, ignore_errors=True)

    def _find(self, part: Part, fold: str, facts: dict[str, Any]) -> Model | None:
        """Return the part that an earlier run trained, None if there is no such."""
        from longtail.models import get_model_class

        folder = self._folder_of(part, fold)
        if folder is None or not self.resume or not folder.is_dir():
            return None
        with suppress(ModelFileError):
            files = read_folder(folder)
            if files.config.get("fusion") == facts:
                return get_model_class(part.name).from_files(files, folder)
        return None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, LongtailError) else f"{type(error).__name__}: {text[:200]}"


def nest_parts(files: Files, parts: Sequence[tuple[str, Model]]) -> None:
    """Add the files of all parts to those of their fusion."""
    files.config["parts"] = [name for name, _ in parts]
    for name, model in parts:
        files.nest(name, model.to_files())
