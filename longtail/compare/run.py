"""All runs of a comparison, one after the other; those that are finished are not repeated."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from longtail.compare import process
from longtail.compare.contenders import Entrant
from longtail.compare.folder import ReportFolder, read_top
from longtail.compare.process import Job, RunFailed
from longtail.compare.split import RowsMade, Split, write_given
from longtail.peers import Contender
from longtail.progress import Progress
from longtail.topk import NO_LABEL, TopK

DEPTH = 10  # labels predicted for each document
MOST_SPARE = 90  # labels predicted beyond that, where some are barred


@dataclass(frozen=True)
class Plan:
    """What is to be run, and how.

    Attributes:
        split: the documents.
        entrants: who takes part.
        seeds: each entrant is trained once for each of them.
        threads: how many each may use.
        timeout: seconds that one run may take, None for any.
        tfidf: settings of the rows that peers get of texts.
        keep_models: whether trained models stay in the folder.
    """

    split: Split
    entrants: Sequence[Entrant]
    seeds: Sequence[int]
    threads: int
    timeout: float | None
    tfidf: Mapping[str, str]
    keep_models: bool = False

    @property
    def depth(self) -> int:
        """How many labels each method predicts: enough to leave out those that are barred."""
        spare = min(self.split.n_excluded, MOST_SPARE)
        return min(DEPTH + spare, self.split.train.n_labels)


@dataclass(frozen=True)
class Run:
    """One method with one seed, finished.

    Attributes:
        contender: who.
        version: of its package.
        seed: its seed.
        measured: seconds, memory and so on.
        top: its predictions for the test documents.
    """

    contender: Contender
    version: str
    seed: int
    measured: Mapping[str, Any]
    top: TopK


@dataclass(frozen=True)
class Failure:
    """One method with one seed that did not finish, and why."""

    contender: Contender
    version: str
    seed: int
    error: str


def run_all(plan: Plan, folder: ReportFolder, progress: Progress) -> Iterator[Run | Failure]:
    """Run every entrant with every seed, and yield each result; a failure is one like others."""
    runner = _Runner(plan, folder, progress)
    entries = [(entrant, seed) for seed in plan.seeds for entrant in plan.entrants]
    try:
        for i, (entrant, seed) in enumerate(entries):
            yield runner.attempt(entrant, seed, f"{i + 1}/{len(entries)}")
    finally:
        shutil.rmtree(folder.scratch, ignore_errors=True)


class _Runner:
    """Runs what the folder does not hold yet."""

    def __init__(self, plan: Plan, folder: ReportFolder, progress: Progress) -> None:
        self.plan, self.folder, self.progress = plan, folder, progress

    @cached_property
    def made(self) -> RowsMade:
        """What it took to make the peers' rows; everything that methods read is written then."""
        plan, scratch = self.plan, self.folder.scratch
        self.progress.stage("preparing the documents", 0)
        process.write_library(scratch / "library")
        with_rows = any(not entrant.contender.ours for entrant in plan.entrants)
        return write_given(plan.split, scratch / "given", with_rows=with_rows, tfidf=plan.tfidf)

    def attempt(self, entrant: Entrant, seed: int, number: str) -> Run | Failure:
        """Return the result of one run, from the folder if it is there."""
        job, contents = self._job(entrant, seed), self._contents(entrant, seed)
        name = f"{number} {job.contender.name}" + f" (seed {seed})" * (len(self.plan.seeds) > 1)
        measured = self.folder.find_finished(job.out, contents)
        try:
            if measured is None:
                self.folder.begin(job, contents)
                measured = self._run(job, name)
                self.progress.say(f"{name}: trained in {measured['train_seconds']:.1f} s")
            else:
                self.progress.say(f"{name}: kept from before")
            return _read_run(self.plan.split, job, entrant, measured)
        except RunFailed as failure:
            shutil.rmtree(job.out / "model", ignore_errors=True)
            self.progress.say(f"{name}: failed: {failure}")
            return Failure(job.contender, entrant.home.version, seed, str(failure))

    def _job(self, entrant: Entrant, seed: int) -> Job:
        given = self.folder.scratch / "given"
        return Job(
            contender=entrant.contender,
            python=entrant.home.python,
            given=given if entrant.contender.ours else given / "rows",
            out=self.folder.run_folder(entrant.contender.name, seed),
            seed=seed,
            k=self.plan.depth,
            threads=self.plan.threads,
            timeout=self.plan.timeout,
        )

    def _contents(self, entrant: Entrant, seed: int) -> dict[str, Any]:
        """Return what makes a run this one: if none of it differs, it need not be repeated."""
        contender = entrant.contender
        return {
            "name": contender.name,
            "package": contender.package,
            "version": entrant.home.version,
            "setting": contender.setting | {"seed": seed},
            "tfidf": {} if contender.ours else dict(self.plan.tfidf),
            "k": self.plan.depth,
            "threads": self.plan.threads,
        }

    def _run(self, job: Job, name: str) -> dict[str, Any]:
        """Run a job to its end, and keep what is of use."""
        made = self.made
        self.progress.stage(f"{name}: starting", 0)
        measured = self._run_once_or_twice(job, f"{name}: ")
        self.progress.stage(f"{name}: tidying up", 0)
        if not job.contender.ours:
            _add_rows_made(measured, made)
        self.folder.finish(job, measured, keep_model=self.plan.keep_models)
        return measured

    def _run_once_or_twice(self, job: Job, prefix: str) -> dict[str, Any]:
        """Run a job; a peer that fails where some rows are empty is tried without them."""
        library, n_empty = self.folder.scratch / "library", self.made.n_empty
        try:
            return process.run(job, self.progress, prefix, library)
        except RunFailed:
            if job.contender.ours or not n_empty:
                raise
        measured = process.run(replace(job, drop_empty=True), self.progress, prefix, library)
        return measured | {"note": f"trained without the {n_empty:,} empty rows, which it refuses"}


def _add_rows_made(measured: dict[str, Any], made: RowsMade) -> None:
    """Count what a peer leaves to others, so that all times begin with the document."""
    each_seconds = 1 / measured["documents_per_second"] + made.each_seconds
    measured["documents_per_second"] = 1 / each_seconds
    measured["rows_seconds"] = made.train_seconds
    measured["train_seconds"] += made.train_seconds
    measured["train_cpu_seconds"] += made.train_seconds
    measured["single_p50_ms"] += made.single_ms
    measured["single_p99_ms"] += made.single_ms


def _read_run(split: Split, job: Job, entrant: Entrant, measured: Mapping[str, Any]) -> Run:
    top = read_top(job.out)
    if top is None or len(top) != len(split.test):
        raise RunFailed("its predictions cannot be read")
    top = drop_excluded(top, split)
    return Run(job.contender, entrant.home.version, job.seed, measured, top)


def drop_excluded(top: TopK, split: Split) -> TopK:
    """Return the predictions without pairs that are barred."""
    exclude = split.test.exclude
    if exclude is None or not exclude.nnz:
        return top
    n_labels = exclude.shape[1]
    rows = np.arange(len(top), dtype=np.int64)[:, None]
    barred = np.repeat(rows[:, 0], np.diff(exclude.indptr)) * n_labels + exclude.indices
    gone = np.isin(rows * n_labels + top.labels, barred) | (top.labels == NO_LABEL)
    order = np.argsort(gone, axis=1, kind="stable")[:, :DEPTH]
    labels = np.where(gone, NO_LABEL, top.labels)[rows, order]
    return TopK(labels, np.where(labels == NO_LABEL, 0, top.scores[rows, order]))
