"""The members of a fusion on a cluster: every member and fold is a task of its own.

All members are trained at the same time, each with its share of the cores, first without the held
out documents, then on all. Only what a member chooses in its first fold must be known for its other
folds. The rest of the fusion goes on as on one machine: it finds the members trained already. A
member that fails is left out with the same line.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import LongtailError
from longtail.models.base import Model
from longtail.models.fusion.member import Member
from longtail.models.fusion.training import ALL, MemberTrainer, documents_for
from longtail.models.registry import build_model
from longtail.progress import SILENT, DeadlineProgress
from longtail.runtime.mapped import as_sent
from longtail.runtime.memory import full_size_of, total_ram
from longtail.runtime.store import Files
from longtail.runtime.workers import Needs, Workers

Result = TypeVar("Result")

WORKER_BYTES = 400 << 20  # a process, perhaps with torch, before it does anything


class MemberTask(NamedTuple):
    """One training.

    Attributes:
        model: untrained.
        fold: whose documents to train on; None for all.
        stop_in: seconds from its beginning until the steps of torch should end.
        limit_at: when the training is given up, by the clock of all nodes: a task may wait long.
    """

    model: Model
    fold: int | None
    stop_in: float | None
    limit_at: float


class Outcome(NamedTuple):
    """A trained member's files, or why there are none; and the seconds it took."""

    files: Files | None
    error: str
    seconds: float


class ClusterTrainer(MemberTrainer):
    """Trains the members of a plan on a cluster, all at the same time."""

    def __init__(self, cluster: Workers, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cluster = cluster
        self._ahead: dict[tuple[str, str], Outcome] = {}  # by member and fold
        self._seconds: dict[str, float] = {}  # of tasks, by member
        self._has_held_out = not self.splits

    def in_lanes(
        self, work: Callable[[Member], Result | None], members: Sequence[Member]
    ) -> dict[str, Result]:
        """Let the cluster train the members, then do the work for each."""
        folds = [ALL]
        if not self._has_held_out:
            folds = [str(fold + 1) for fold in range(len(self.splits))]
            self._has_held_out = True
        choosing = [member for member in members if _chooses(member)]
        waiting = [(member, fold) for member in choosing for fold in folds[1:]]
        trainings = [
            (member, fold) for member in members for fold in folds if fold != ALL or not member.once
        ]
        self._train_ahead([each for each in trainings if each not in waiting])
        self._train_ahead(waiting)
        return super().in_lanes(work, members)

    def _train_ahead(self, trainings: Sequence[tuple[Member, str]]) -> None:
        new = [(member, fold) for member, fold in trainings if not self._is_kept(member, fold)]
        if not new:
            return
        cores = max(1, min(self.cluster.most_cores, self.cluster.n_cores // len(new)))
        tasks = [self._make_task(member, fold) for member, fold in new]
        needs = [
            self._find_needs(task, member, cores)
            for task, (member, _) in zip(tasks, new, strict=True)
        ]
        costs = [self.estimates.expect(member) for member, _ in new]
        shared = self.dataset, self.X, [kept for kept, _ in self.splits]

        def keep(number: int, outcome: Outcome) -> None:
            member, fold = new[number]
            self._ahead[member.name, fold] = outcome
            seconds = self._seconds.get(member.name, 0.0)
            self._seconds[member.name] = seconds + outcome.seconds
            if outcome.files is None:
                return
            folder = self._folder_of(member, fold)
            model = build_model(outcome.files, member.name)
            self._choices.setdefault(member.name, model.choices)
            if folder is not None:
                self._keep(model, member, self._facts(self._new_model(member), fold), folder)

        self.progress.say(
            f"{len(new)} training{'s' * (len(new) > 1)} on the cluster "
            f"({self.cluster.describe()}), {cores} core{'s' * (cores > 1)} each"
        )
        self.progress.stage("members", sum(costs))
        self.cluster.run(
            fit_member, shared, tasks, costs, needs=needs, progress=self.progress, on_done=keep
        )

    def _make_task(self, member: Member, fold: str) -> MemberTask:
        model = self._model_to_train(member)
        kept = None if fold == ALL else self.splits[int(fold) - 1][0]
        # Both stages share the time, as all trainings of a stage go on at once.
        has_more = kept is not None and self.plan.scheme.refit and not member.once
        n_stages = 2.0 if has_more else 1.0
        limit, now = self._limit(model, member, kept, n_stages), time.monotonic()
        if self.plan.budget is not None and member.name != self.plan.members[0].name:
            most = now + self.time_for(member.lane(self.facts.device)) / n_stages
            limit = min(limit, self.deadline if kept is None else most)
        stop_in = None if model.stop_at is None else model.stop_at - now
        model.stop_at = None
        limit_at = time.time() + limit - now
        return MemberTask(model, None if kept is None else int(fold) - 1, stop_in, limit_at)

    def _planned_after(self, member: Member) -> float:
        """Return 0: nothing comes after a member, as all are trained at the same time."""
        return 0.0

    def _find_needs(self, task: MemberTask, member: Member, cores: int) -> Needs:
        on_gpu = member.lane(self.facts.device) == "cuda"
        X, Y = as_sent(self.X), as_sent(self.dataset.Y)  # a node maps nothing
        own = total_ram(task.model.needs_of(X, Y, self.facts.device))
        fold = full_size_of(X, Y)
        return Needs(WORKER_BYTES + own + fold, cores, int(on_gpu))

    def _is_ahead(self, member: Member) -> bool:
        """Whether the cluster has trained a member, which takes no more time."""
        return any(name == member.name for name, _ in self._ahead)

    def _choose_way(self, member: Member, time_left: float) -> Member | None:
        return member if self._is_ahead(member) else super()._choose_way(member, time_left)

    def _fit_into_time(self, member: Member, n_trainings: float, time_left: float) -> Member | None:
        if self._is_ahead(member):
            return member
        return super()._fit_into_time(member, n_trainings, time_left)

    def _say_time(self, member: Member) -> None:
        if not self._is_ahead(member):
            super()._say_time(member)

    def _is_kept(self, member: Member, fold: str) -> bool:
        found = super()._find(member, fold, self._facts(self._new_model(member), fold))
        if found is not None:
            self._choices.setdefault(member.name, found.choices)
        return found is not None

    def _find(self, member: Member, fold: str, facts: dict[str, Any]) -> Model | None:
        """Return the member that the cluster trained, or an earlier run."""
        outcome = self._ahead.pop((member.name, fold), None)
        if outcome is None:
            return super()._find(member, fold, facts)
        if outcome.files is None:
            raise LongtailError(outcome.error)
        return build_model(outcome.files, member.name)

    def _count(self, member: Member, seconds: float, trainings: float) -> None:
        super()._count(member, seconds + self._seconds.pop(member.name, 0.0), trainings)


def _chooses(member: Member) -> bool:
    """Whether a training of the member tells its later ones what to choose."""
    return member.model_class.choices is not Model.choices


def fit_member(
    shared: tuple[Dataset, sp.csr_matrix, Sequence[NDArray[np.int64]]], task: MemberTask
) -> Outcome:
    """Train a member; runs on a node."""
    dataset, X, splits = shared
    model, kept = task.model, None if task.fold is None else splits[task.fold]
    began = time.monotonic()
    limit = began + task.limit_at - time.time()
    model.stop_at = None if task.stop_in is None else min(began + task.stop_in, limit)
    progress = DeadlineProgress(SILENT, model.name, limit)
    try:
        model.fit(documents_for(model, dataset, X, kept), progress=progress)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        why = text if isinstance(error, LongtailError) else f"{type(error).__name__}: {text}"
        return Outcome(None, why, time.monotonic() - began)
    if dataset.texts is not None and model.trained_on == "rows":
        rows = range(len(dataset.texts)) if kept is None else kept.tolist()
        model.keep_snippets([dataset.texts[i] for i in rows])
    return Outcome(model.to_files(), "", time.monotonic() - began)
