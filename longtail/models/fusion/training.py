"""The members of a fusion in training, within the time that there is.

Before a member is begun, its time is compared with what is left once stacking, saving and the
trainings on all documents have got theirs: one that torch trains makes fewer epochs if it must, any
other is left out. While torch trains, it keeps to that time too (`Model.stop_at`). A member that
fails is left out with a line that says why, and the rest goes on.

With a GPU, members that torch trains and others are trained side by side, each on cores of their
own. With a run folder, each trained member is kept there until the fusion is saved, so that a run
that was stopped goes on with the next one; so are the checkpoints of the member it stopped in.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import (
    LongtailError,
    ModelFileError,
    ParameterError,
    TrainingError,
    reraise_interrupt,
)
from longtail.models.base import Model
from longtail.models.cost import Cost, DeviceType, Facts, format_seconds
from longtail.models.fusion.member import Member
from longtail.models.fusion.plan import LEAST_EPOCHS, Plan
from longtail.models.fusion.scheme import Split
from longtail.models.registry import build_model
from longtail.progress import SILENT, DeadlineProgress, OutOfTimeError, Progress
from longtail.runtime.parallel import count_cores, keep_to_threads
from longtail.runtime.rows import fingerprint
from longtail.runtime.store import Files, read_folder, to_json, write_folder
from longtail.topk import TopK

Result = TypeVar("Result")

ALL = "all"  # the name of a training on all documents, where others have the number of a fold
CLOSING, CLOSING_SHARE = 2.0, 0.03  # seconds, and share of the budget, for all that is not counted
STACKING = 2e-4  # seconds for each held-out document and member, until it has been measured
QUICK = 0.1  # of the budget; a member that takes less may take some of what stacking spares
HOPE = 1.5  # times what is left a member without epochs may be estimated to take
SLOWER = 1.5  # times its estimate a member of epochs may take, if there is time
FIRST_SHARE = 0.6  # of the time that is left, for a member that has no epochs
FACTORS = (0.5, 4.0)  # how far what members took may correct the estimates of others
GPU_CORES = 4  # at most, for members on a GPU while others are trained beside them


class HeldOutMember(NamedTuple):
    """A member that was trained with documents held out.

    Attributes:
        member: as planned.
        models: trained on the documents of each fold.
        lists: what it says of the documents that each fold holds out.
    """

    member: Member
    models: list[Model | None]
    lists: list[TopK]

    @property
    def model(self) -> Model:
        """The model of the last fold."""
        found = self.models[-1]
        if found is None:
            raise RuntimeError("the model of the last fold is not kept any more")
        return found

    def model_of(self, fold: int) -> Model:
        """Return the model of a fold; those of folds before it are not needed any more."""
        self.models[:fold] = [None] * fold
        found = self.models[fold]
        if found is None:
            raise RuntimeError(f"the model of fold {fold} is not kept any more")
        return found


class Trained(NamedTuple):
    """A member that was trained on some of the documents, and the seconds that this took."""

    model: Model
    seconds: float


class TimeEstimates:
    """How long members will take, corrected by what members before them took.

    A member that was trained already takes as long again. For others, estimates are multiplied by
    what all members that were measured alike took against their estimates: others may be busy here.
    What torch trains is measured otherwise than the rest, even where both are trained on a CPU.
    """

    def __init__(self, device: DeviceType) -> None:
        self.device = device  # where torch trains
        self._took: dict[Any, float] = {}  # seconds of one training, by form
        self._sums: dict[Any, tuple[float, float]] = {}  # seconds taken and planned, by kind

    def record(self, member: Member, seconds: float, trainings: float) -> None:
        """Remember what so many trainings have taken."""
        self._took[member.form] = seconds / trainings
        kind = self._kind(member)
        took, planned = self._sums.get(kind, (0.0, 0.0))
        self._sums[kind] = took + seconds, planned + trainings * member.seconds

    def cost(self, member: Member) -> Cost:
        """Return how long one training will take."""
        if member.form in self._took:
            factor = self._took[member.form] / max(member.seconds, 1e-9)
        else:
            took, planned = self._sums.get(self._kind(member), (0.0, 0.0))
            factor = float(np.clip((took + 1) / (planned + 1), *FACTORS))
        return member.cost.times(factor)

    def _kind(self, member: Member) -> tuple[DeviceType, bool]:
        """Return what decides how it is measured: where it is trained, and whether by torch."""
        return member.lane(self.device), member.model_class.needs_torch

    def expect(self, member: Member) -> float:
        """Return the seconds that one training will take."""
        return self.cost(member).seconds(member.epochs)


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
        self._choices: dict[str, dict[str, Any]] = {}  # by member, of its first training
        self.stamp = fingerprint(X, dataset.Y)
        self.splits: list[Split] = []
        if plan.scheme.folds:
            self.splits = plan.scheme.split(facts.n_documents, seed)
        self.taken: dict[str, float] = {}  # seconds by member
        self.estimates = TimeEstimates(facts.device)
        self.stacking = STACKING  # seconds for each held-out document and member
        self._saving: dict[str, float] = {}  # seconds to write a member, which it takes once more
        self._to_refit: dict[str, Member] = {}  # members that wait for a training on all documents
        self._forgotten: set[str] = set()  # members that were trained and are not kept
        self._ended = False  # whether the members that are trained beside others have to stop
        if self.folder is not None and not resume:
            rmtree(self.folder, ignore_errors=True)

    # -- time -------------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float:
        """What is left of the budget."""
        return self.deadline - time.monotonic()

    def _time_to_stack(self, n_more: int) -> float:
        """Return the seconds that are set aside for stacking, with `n_more` further members."""
        n_held = sum(len(held) for _, held in self.splits)
        return self.stacking * n_held * (len(self.taken) - len(self._forgotten) + n_more)

    def time_for(self, lane: DeviceType) -> float:
        """Return the seconds that a further member of a lane may take in all."""
        stacking = self._time_to_stack(1)
        refits = sum(
            self.estimates.expect(member)
            for member in list(self._to_refit.values())  # which another lane may change meanwhile
            if member.lane(self.facts.device) == lane
        )
        return self._time_to_refit() - stacking - refits

    def _time_to_refit(self) -> float:
        """Return the seconds that trainings on all documents may take, once stacking is done."""
        closing = CLOSING + CLOSING_SHARE * (self.plan.budget or 0)
        return self.seconds_left - sum(self._saving.values()) - closing

    def _expect_all(self, member: Member) -> float:
        """Return the seconds that all trainings of a member will take."""
        return self.estimates.expect(member) * self.plan.scheme.trainings(member)

    def _choose_way(self, member: Member, time_left: float) -> Member | None:
        """Return the member in the best way that fits into the time; None if none does."""
        scheme = self.plan.scheme
        *_, least = ways = scheme.ways(member)
        for way in ways:
            if self._expect_all(way) <= time_left:
                return way
        return self._fit_into_time(least, scheme.trainings(least), time_left)

    def _fit_into_time(self, member: Member, n_trainings: float, time_left: float) -> Member | None:
        """Return the member, with fewer epochs if that makes it fit; None if nothing does."""
        cost = self.estimates.cost(member)
        if cost.seconds(member.epochs) * n_trainings <= time_left:
            return member
        epochs = cost.epochs_in(time_left / n_trainings)
        return member._replace(epochs=epochs) if epochs >= LEAST_EPOCHS * cost.epochs > 0 else None

    def _may_hope(self, member: Member, time_left: float) -> bool:
        """Whether to begin a member that is estimated to take longer than there is time.

        The estimate of one that has no epochs is rough. If it is trained once, it is given up in
        time, and otherwise the time might pass unused.
        """
        is_rough = not member.cost.epochs and self.plan.scheme.trainings(member) <= 1
        return is_rough and self._expect_all(member) <= HOPE * time_left

    def _say_time(self, member: Member) -> None:
        if self.plan.budget is not None:
            self.progress.say(
                f"{member.name}: about "
                f"{format_seconds(self._expect_all(member))} of "
                f"the {format_seconds(max(self.seconds_left, 0))} that are left"
            )

    def _say_no_time(self, member: Member, left: float) -> None:
        """Say what a member would take that is not begun; what would do, if it was named."""
        takes = self._expect_all(member)
        enough = (self.plan.budget or 0.0) + takes - left
        advice = f"; a budget of {format_seconds(enough)} would do" if self.plan.named else ""
        self.progress.say(
            f"{member.name} is left out: it would take about {format_seconds(takes)}, and there "
            f"is time for {format_seconds(max(left, 0))}{advice}"
        )

    # -- lanes ------------------------------------------------------------------------------------

    def in_lanes(
        self, work: Callable[[Member], Result | None], members: Sequence[Member]
    ) -> dict[str, Result]:
        """Do the work for each member; with a GPU, for members of the CPU beside the others.

        Returns what there is, by the members' names, in their order.
        """
        beside = [member for member in members if member.lane(self.facts.device) == "cpu"]
        rest = [member for member in members if member.lane(self.facts.device) != "cpu"]
        found: dict[str, Result | None] = {}

        def work_through(some: Sequence[Member], n_threads: int) -> None:
            with keep_to_threads(n_threads):
                for member in some:
                    found[member.name] = work(member)

        if not rest or not beside:
            for member in members:
                found[member.name] = work(member)
        else:
            n_cores = count_cores()
            n_gpu = max(1, min(GPU_CORES, n_cores // 4))
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(work_through, beside, max(1, n_cores - n_gpu))
                try:
                    work_through(rest, n_gpu)
                    future.result()
                except BaseException:
                    self._ended = True
                    raise
        results = ((member.name, found.get(member.name)) for member in members)
        return {name: result for name, result in results if result is not None}

    # -- members ----------------------------------------------------------------------------------

    def hold_out(self, member: Member, width: int) -> HeldOutMember | None:
        """Train a member and return its lists for the documents of each fold.

        None if the member failed or there is no time for it.
        """
        scheme, lane = self.plan.scheme, member.lane(self.facts.device)
        if self.taken:
            left = self.time_for(lane)
            if self._expect_all(member) <= QUICK * (self.plan.budget or 0):
                left += self._time_to_stack(1) / 2  # which is set aside with caution
            fitting = self._choose_way(member, left)
            if fitting is None and self._may_hope(member, left):
                fitting = member
            if fitting is None:
                self._say_no_time(member, left)
                return None
            if fitting.epochs != member.epochs:
                self.progress.say(
                    f"{member.name} makes {fitting.epochs} of {member.cost.epochs} epochs, as "
                    "there is no time for more"
                )
            member = fitting
        self._say_time(member)
        seconds = 0.0
        try:
            models: list[Model | None] = []
            lists: list[TopK] = []
            for fold, (kept, held) in enumerate(self.splits):
                n_left = scheme.trainings(member) - fold * (1 - scheme.share)
                trained = self._train(member, str(fold + 1), kept, n_left)
                began = time.monotonic()
                models.append(trained.model)
                lists.append(self.predict(trained.model, held, width))
                seconds += trained.seconds + time.monotonic() - began
        except (Exception, OutOfTimeError) as error:
            reraise_interrupt(error)
            self.progress.say(f"{member.name} is left out: {_one_line(error)}")
            return None
        if scheme.refit and not member.once:
            self._to_refit[member.name] = member
        self._count(member, seconds, scheme.held_out_trainings)
        return HeldOutMember(member, models, lists)

    def refit(self, member: Member, fallback: Model | None) -> Model | None:
        """Return the member trained on all documents, or what there is if that fails.

        The quickest come first and leave what they leave. One that should be trained once stays as
        it is, unless there is more time than was thought.
        """
        self._to_refit.pop(member.name, None)
        left = self._time_to_refit()
        if member.once and fallback is not None and self.estimates.expect(member) > left:
            return fallback
        fitting = self._fit_into_time(member, 1.0, left)
        if fallback is not None and fitting is None:
            self.progress.say(
                f"{member.name} stays as it is, trained on a part of the documents: training it on "
                f"all would take about {format_seconds(self.estimates.expect(member))}, and there "
                f"is time for {format_seconds(max(left, 0))}"
            )
            return fallback
        try:
            trained = self._train(fitting or member, ALL, None, 1.0)
        except (Exception, OutOfTimeError) as error:
            reraise_interrupt(error)
            if fallback is None:
                self.progress.say(f"{member.name} is left out: {_one_line(error)}")
            else:
                self.progress.say(
                    f"{member.name} stays as it is, trained on a part of the documents: "
                    f"{_one_line(error)}"
                )
            return fallback
        self._count(member, trained.seconds, 1.0)
        return trained.model

    def forget(self, name: str) -> None:
        """Take a member that was trained out of the reckoning: it is not kept."""
        self._forgotten.add(name)
        self._to_refit.pop(name, None)
        self._saving.pop(name, None)

    def _count(self, member: Member, seconds: float, trainings: float) -> None:
        """Remember what a member took, and how that compares with the estimates."""
        self.taken[member.name] = self.taken.get(member.name, 0.0) + seconds
        self.estimates.record(member, seconds, trainings)

    # -- one training -----------------------------------------------------------------------------

    def _train(
        self, member: Member, fold: str, kept: NDArray[np.int64] | None, n_left: float
    ) -> Trained:
        """Train a member on some of the documents, or on all; or take it from the run folder.

        `n_left` trainings on all documents, this one included, share the time.
        """
        facts = self._facts(self._new_model(member), fold)
        done = self._find(member, fold, facts)
        if done is not None:
            self._choices.setdefault(member.name, done.model.choices)
            return done
        began = time.monotonic()
        model, least = self._go_on(member, fold, kept, n_left), 0.0
        if model is None:
            model = self._fit(member, fold, kept, n_left)
        else:  # only a part of it was trained now, and the whole takes longer than that
            least = self._share(kept) * self.estimates.expect(member)
        self._choices.setdefault(member.name, model.choices)
        files, folder = to_checked_files(model), self._folder_of(member, fold)
        if folder is not None:
            self._keep(files, member, facts, folder, max(time.monotonic() - began, least))
        return Trained(model, max(time.monotonic() - began, least))

    def _go_on(
        self, member: Member, fold: str, kept: NDArray[np.int64] | None, n_left: float
    ) -> Model | None:
        """Train a member on from its checkpoints; None if there are none that fit."""
        checkpoints = self._checkpoints_of(member, fold)
        if not self.resume or checkpoints is None or not checkpoints.is_dir():
            return None
        try:
            return self._fit(member, fold, kept, n_left, resume=True)
        except (ParameterError, ModelFileError):  # of other epochs, or damaged
            name = self._name(member, fold)
            self.progress.say(f"{name} is trained from the start: no checkpoint of it fits")
            rmtree(checkpoints, ignore_errors=True)
            return None

    def _fit(
        self,
        member: Member,
        fold: str,
        kept: NDArray[np.int64] | None,
        n_left: float,
        resume: bool = False,
    ) -> Model:
        """Train a member, from its checkpoints if asked for."""
        model = self._model_to_train(member)
        if model.can_resume:
            model.run_dir, model.resume = self._checkpoints_of(member, fold), resume
            model.checkpoint_seconds = self.checkpoint_seconds
        limit = self._limit(model, member, kept, n_left)
        shown = self.progress if self._is_shown(member) else SILENT
        progress = DeadlineProgress(shown, self._name(member, fold), limit, lambda: self._ended)
        model.fit(documents_for(model, self.dataset, self.X, kept), progress=progress)
        if self.dataset.texts is not None and model.trained_on == "rows":
            texts = self.dataset.texts
            model.keep_snippets(texts if kept is None else [texts[i] for i in kept.tolist()])
        return model

    def _name(self, member: Member, fold: str) -> str:
        """Return what a training is called."""
        return member.name if fold == ALL else f"{member.name} {fold}/{len(self.splits)}"

    def _share(self, kept: NDArray[np.int64] | None) -> float:
        """Return which share of the documents is trained on."""
        return 1.0 if kept is None else len(kept) / self.facts.n_documents

    def _model_to_train(self, member: Member) -> Model:
        """Return the model with what the member's first training chose; else scores may differ.

        The stacker learns what scores mean from members that have not seen all documents. With
        other neighbours or another temperature they would mean something else.
        """
        model = self._new_model(member).with_parameters(**self._choices.get(member.name, {}))
        model.only_scores = True  # until it is known whether it proposes labels
        return model

    def _limit(
        self, model: Model, member: Member, kept: NDArray[np.int64] | None, n_left: float
    ) -> float:
        """Return when the training is given up; let torch's steps end before that."""
        if self.plan.budget is None:
            return np.inf
        now, cost = time.monotonic(), self.estimates.cost(member)
        share = self._share(kept)
        lane = member.lane(self.facts.device)
        time_left = self._time_to_refit() if kept is None else share * self.time_for(lane) / n_left
        if cost.epochs:
            # Most of the rest comes before the steps, such as label vectors, and may be slow too.
            own = share * cost.seconds(member.epochs)
            least = share * LEAST_EPOCHS * cost.epoch
            # Beyond its estimate, it may have what members after it do not need.
            spare = time_left - share * self._planned_after(member) / n_left
            until = min(max(spare, own), time_left, SLOWER * own + share * cost.rest)
            model.stop_at = now + max(until - share * cost.rest, least)
        else:
            model.stop_at = now + (FIRST_SHARE if self.splits else 1.0) * time_left
        if not self.taken:  # the first member is trained whatever it takes, or there is no model
            return np.inf
        return self.deadline if cost.epochs else min(self.deadline, now + time_left)

    def _planned_after(self, member: Member) -> float:
        """Return the seconds of members of the same lane that are still to be trained after it."""
        lane, members = member.lane(self.facts.device), list(self.plan.members)
        names = [each.name for each in members]
        later = members[names.index(member.name) + 1 :] if member.name in names else []
        waiting = [each for each in later if each.lane(self.facts.device) == lane]
        return sum(self._expect_all(each) for each in waiting if each.name not in self.taken)

    def _is_shown(self, member: Member) -> bool:
        """Whether the member's stages are shown; those of members beside others are not."""
        lanes = {each.lane(self.facts.device) for each in self.plan.members}
        return len(lanes) == 1 or member.lane(self.facts.device) != "cpu"

    def _new_model(self, member: Member) -> Model:
        settings: dict[str, Any] = {"seed": self.seed + member.seed}
        if member.model_class.has_parameter("device"):
            settings["device"] = self.device
        return member.make(**settings)

    def predict(self, model: Model, rows: NDArray[np.int64], width: int) -> TopK:
        """Return a member's lists for some of the documents."""
        return model.predict_documents(self._read(model, rows), width)

    def score(
        self, model: Model, rows: NDArray[np.int64], labels: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return a member's scores of labels (n, c) of some of the documents."""
        return model.score_documents(self._read(model, rows), labels)

    def _read(self, model: Model, rows: NDArray[np.int64]) -> list[str] | sp.csr_matrix:
        """Return some of the documents as a member reads them."""
        if "rows" in model.reads:
            return self.X[rows]
        texts = self.dataset.texts or []
        return [texts[row] for row in rows.tolist()]

    # -- the run folder ---------------------------------------------------------------------------

    def _folder_of(self, member: Member, fold: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{member.name}-{fold}"

    def _checkpoints_of(self, member: Member, fold: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{member.name}-{fold}.run"

    def _facts(self, model: Model, fold: str) -> dict[str, Any]:
        """Return what a kept member must have been trained with."""
        scheme = list(self.plan.scheme) if fold != ALL else []
        return {"data": self.stamp, "scheme": scheme, "parameters": model.get_parameters()}

    def _keep(
        self, files: Files, member: Member, facts: dict[str, Any], folder: Path, seconds: float
    ) -> None:
        """Save a member for --resume; if that cannot be, training goes on all the same."""
        began = time.monotonic()
        files.config["fusion"] = {**facts, "seconds": seconds}
        made, failed = [each for each in folder.parents if not each.exists()], False
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_folder(folder, files, overwrite=True)
        except (LongtailError, OSError) as error:
            self.progress.say(f"Note: {member.name} cannot be kept for --resume: {error}")
            failed = True
        for checkpoints in folder.parent.glob(f"{folder.name}.run*"):
            rmtree(checkpoints, ignore_errors=True)
        for empty in made if failed else []:  # another lane may be about to write into them
            with suppress(OSError):  # with something in it, it is not empty
                empty.rmdir()
        self._saving[member.name] = time.monotonic() - began

    def _find(self, member: Member, fold: str, facts: dict[str, Any]) -> Trained | None:
        """Return the member that an earlier run trained, None if there is no such."""
        folder = self._folder_of(member, fold)
        if folder is None or not self.resume or not folder.is_dir():
            return None
        with suppress(ModelFileError):
            files = read_folder(folder)
            then = files.config.pop("fusion", None)
            seconds = then.pop("seconds", None) if isinstance(then, dict) else None
            if seconds is not None and then == facts:
                return Trained(build_model(files, folder), seconds)
        return None


def documents_for(
    model: Model, dataset: Dataset, X: sp.csr_matrix, kept: NDArray[np.int64] | None
) -> Dataset:
    """Return some documents, or all, as the model reads them: as rows, wherever it can."""
    some = dataset if kept is None else dataset.take(kept)
    if "rows" not in model.reads:
        return replace(some, label_uris=None)  # the fusion keeps them, for all of its members
    return Dataset(some.Y, some.label_names, X=X if kept is None else X[kept])


def to_checked_files(model: Model) -> Files:
    """Return the files of a member; raise TrainingError if it could not be opened again."""
    files = model.to_files()
    try:
        model.check_files(replace(files, config=to_json(files.config)))
    except (ModelFileError, ValueError) as error:
        raise TrainingError(f"it could not be opened again: {error}") from error
    return files


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, LongtailError) else f"{type(error).__name__}: {text[:200]}"
