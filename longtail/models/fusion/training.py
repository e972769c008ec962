"""The members of a fusion in training: one after the other, within the time that there is.

A member that fails, or that runs out of time, is left out with a line that says why, and the rest
goes on. With a run folder, each trained member is kept there until the fusion is saved, so that a
run that was stopped goes on with the next one; so are the checkpoints of the member it stopped in.
"""

import time
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
from longtail.models.cost import DeviceType, Facts, format_seconds
from longtail.models.fusion.plan import Member, Plan, Split
from longtail.models.registry import build_model
from longtail.progress import DeadlineProgress, OutOfTimeError, Progress
from longtail.runtime.rows import fingerprint
from longtail.runtime.store import read_folder, write_folder
from longtail.topk import TopK

ALL = "all"  # the name of a training on all documents, where others have the number of a fold
OVERRUN = 1.1  # of the budget, after which a member that is being trained is given up


class TimeEstimates:
    """How long members will take, corrected by what members before them took.

    A member that was trained already takes as long again. For another, its estimate is multiplied
    by a factor: a slow machine makes all members slow, so the least factor seen so far tells how
    slow it is. CPU and GPU have factors of their own, and start-up time does not count.
    """

    STARTING = 20.0  # seconds, such as for compiling

    def __init__(self, device: DeviceType) -> None:
        self.device = device  # where torch trains
        self._took: dict[str, float] = {}  # seconds of one training, by member
        self._factors: dict[str, float] = {}  # by device

    def record(self, member: Member, seconds: float, trainings: float) -> None:
        """Remember what so many trainings have taken."""
        self._took[member.name] = seconds / trainings
        factor = (seconds + self.STARTING) / (member.seconds * trainings + self.STARTING)
        device, factor = self._device_of(member), float(np.clip(factor, 0.3, 5))
        self._factors[device] = min(factor, self._factors.get(device, np.inf))

    def expect(self, member: Member) -> float:
        """Return the seconds that one training will take."""
        if member.name in self._took:
            return self._took[member.name]
        return member.seconds * self._factors.get(self._device_of(member), 1.0)

    def _device_of(self, member: Member) -> DeviceType:
        return self.device if member.model_class.needs_torch else "cpu"


class MemberTrainer:
    """Trains the members of a plan on documents that are rows, or texts and rows at once."""

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
        checkpoint_seconds: float,
        progress: Progress,
    ) -> None:
        self.dataset, self.X, self.plan, self.facts = dataset, X, plan, facts
        self.device, self.seed, self.progress = device, seed, progress
        self.folder = None if run_dir is None else run_dir / "members"
        self.resume, self.checkpoint_seconds = resume, checkpoint_seconds
        self.deadline = np.inf if plan.budget is None else began + plan.budget
        self.stamp = fingerprint(X, dataset.Y)
        self.splits: list[Split] = []
        if plan.scheme.folds:
            self.splits = plan.scheme.split(facts.n_documents, seed)
        self.taken: dict[str, float] = {}  # seconds by member
        self.estimates = TimeEstimates(facts.device)
        if self.folder is not None and not resume:
            rmtree(self.folder, ignore_errors=True)

    def hold_out(self, member: Member, width: int) -> tuple[Model, list[TopK]] | None:
        """Return the member's lists for the documents of each fold, and its last model.

        None if the member failed or there is no time for it.
        """
        expected = self.estimates.expect(member) * self.plan.scheme.trainings
        if self.taken and time.monotonic() + expected > self.deadline:
            self.progress.say(
                f"{member.name} is left out: it would take about {format_seconds(expected)}, and "
                f"{self._time_left()} of the budget is left"
            )
            return None
        began = time.monotonic()
        try:
            lists = []
            for fold, (kept, held) in enumerate(self.splits):
                model = self._train(member, str(fold + 1), kept)
                lists.append(self._predict(model, held, width))
        except (Exception, OutOfTimeError) as error:
            self._leave_out(member, error)
            return None
        self._count(
            member, time.monotonic() - began, self.plan.scheme.trainings - self.plan.scheme.refit
        )
        return model, lists

    def refit(self, member: Member, fallback: Model | None) -> Model | None:
        """Return the member trained on all documents, or what there is if that fails."""
        expected = self.estimates.expect(member)
        if fallback is not None and time.monotonic() + expected > self.deadline:
            self.progress.say(
                f"{member.name} stays as it is, trained on a part of the documents: training it on "
                f"all would take about {format_seconds(expected)}, and {self._time_left()} is left"
            )
            return fallback
        began = time.monotonic()
        try:
            model = self._train(member, ALL, None)
        except (Exception, OutOfTimeError) as error:
            if fallback is None:
                self._leave_out(member, error)
            else:
                self.progress.say(
                    f"{member.name} stays as it is, trained on a part of the documents: "
                    f"{_one_line(error)}"
                )
            return fallback
        self._count(member, time.monotonic() - began, 1.0)
        return model

    def _time_left(self) -> str:
        return format_seconds(max(self.deadline - time.monotonic(), 0))

    def _leave_out(self, member: Member, error: Exception) -> None:
        self.progress.say(f"{member.name} is left out: {_one_line(error)}")

    def _count(self, member: Member, seconds: float, trainings: float) -> None:
        """Remember what a member took, and how that compares with the estimates."""
        self.taken[member.name] = self.taken.get(member.name, 0.0) + seconds
        self.estimates.record(member, seconds, trainings)

    # -- one training -----------------------------------------------------------------------------

    def _train(self, member: Member, fold: str, kept: NDArray[np.int64] | None) -> Model:
        """Train a member on some of the documents, or on all; or take it from the run folder."""
        model = self._new_model(member)
        facts = self._facts(model, fold)
        done = self._find(member, fold, facts)
        if done is not None:
            return done
        folder = self._folder_of(member, fold)
        if model.can_resume and folder is not None:
            model.run_dir, model.resume = folder.with_name(folder.name + ".run"), self.resume
            model.checkpoint_seconds = self.checkpoint_seconds
        name = member.name if fold == ALL else f"{member.name} {fold}/{len(self.splits)}"
        limit = np.inf  # the first member is trained whatever it takes, or there is no model
        if self.taken:
            limit = self.deadline + (OVERRUN - 1) * (self.plan.budget or 0)
        model.fit(
            self._documents(model, kept), progress=DeadlineProgress(self.progress, name, limit)
        )
        if self.dataset.texts is not None and model.trained_on == "rows":
            texts = self.dataset.texts
            model.keep_snippets(texts if kept is None else [texts[i] for i in kept.tolist()])
        if folder is not None:
            self._keep(model, facts, folder)
        return model

    def _new_model(self, member: Member) -> Model:
        settings: dict[str, Any] = {"seed": self.seed}
        if member.model_class.has_parameter("device"):
            settings["device"] = self.device
        return member.make(**settings)

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

    def _folder_of(self, member: Member, fold: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{member.name}-{fold}"

    def _facts(self, model: Model, fold: str) -> dict[str, Any]:
        """Return what a kept member must have been trained with."""
        scheme = list(self.plan.scheme) if fold != ALL else []
        return {"data": self.stamp, "scheme": scheme, "parameters": model.get_parameters()}

    def _keep(self, model: Model, facts: dict[str, Any], folder: Path) -> None:
        """Save a member for --resume; if that cannot be, training goes on all the same."""
        files = model.to_files()
        files.config["fusion"] = facts
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_folder(folder, files, overwrite=True)
        except (LongtailError, OSError) as error:
            self.progress.say(f"Note: {model.name} cannot be kept for --resume: {error}")
        for checkpoints in folder.parent.glob(f"{folder.name}.run*"):
            rmtree(checkpoints, ignore_errors=True)

    def _find(self, member: Member, fold: str, facts: dict[str, Any]) -> Model | None:
        """Return the member that an earlier run trained, None if there is no such."""
        folder = self._folder_of(member, fold)
        if folder is None or not self.resume or not folder.is_dir():
            return None
        with suppress(ModelFileError):
            files = read_folder(folder)
            if files.config.pop("fusion", None) == facts:
                return build_model(files, folder)
        return None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, LongtailError) else f"{type(error).__name__}: {text[:200]}"
