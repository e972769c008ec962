"""All runs of a comparison, a few at a time; finished runs are not repeated."""

import shutil
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from longtail.compare import process
from longtail.compare.contenders import Entrant, Missing
from longtail.compare.folder import ReportFolder, read_top
from longtail.compare.noise import Noise, spoil, write_spoiled
from longtail.compare.process import POLL_SECONDS, Job, RunFailed, RunStopped
from longtail.compare.split import RowsMade, TrainTestSplit, write_given
from longtail.peers import Contender
from longtail.progress import Progress
from longtail.topk import TopK
from longtail.visible import spell_count

DEPTH = 10  # labels predicted for each document
MOST_SPARE = 90  # labels predicted beyond that, where some are excluded


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how.

    Attributes:
        split: the documents.
        entrants: the methods that are compared.
        seeds: each entrant is trained once with each of them.
        threads: how many all methods that run at once may use together.
        timeout: the most seconds that one run may take; None for no limit.
        tfidf: settings of the rows that peers get in place of texts.
        jobs: how many methods run at once.
        keep_models: whether trained models stay in the folder.
        missing: the peers that are left out because they are not installed.
        propensity: the constants of the PS metrics.
        noises: how labels are spoiled; each entrant is also trained once with each, and seed.
    """

    split: TrainTestSplit
    entrants: Sequence[Entrant]
    seeds: Sequence[int]
    threads: int
    timeout: float | None
    tfidf: Mapping[str, str]
    jobs: int = 1
    keep_models: bool = False
    missing: Sequence[Missing] = ()
    propensity: str = "default"
    noises: Sequence[Noise] = ()

    @property
    def entries(self) -> list["Entry"]:
        """All runs; those with correct labels come first."""
        return [
            Entry(entrant, seed, noise)
            for noise in (None, *self.noises)
            for seed in self.seeds
            for entrant in self.entrants
        ]

    @property
    def threads_each(self) -> int:
        """How many threads each method may use."""
        return max(1, self.threads // self.jobs)

    @property
    def depth(self) -> int:
        """How many labels each method predicts: enough even without the excluded ones."""
        spare = min(self.split.n_excluded, MOST_SPARE)
        return min(DEPTH + spare, self.split.train.n_labels)


class Entry(NamedTuple):
    """One run that is to be done: with correct labels if there is no noise."""

    entrant: Entrant
    seed: int
    noise: Noise | None


@dataclass(frozen=True)
class Run:
    """One method with one seed, finished.

    Attributes:
        contender: the method.
        version: the version of its package.
        seed: its seed.
        measured: seconds, memory and so on.
        top: its predictions for the test documents, without excluded pairs.
        noise: how its training labels were spoiled; None if they were not.
        clean_top: its predictions for the clean training documents, if there are any.
    """

    contender: Contender
    version: str
    seed: int
    measured: Mapping[str, Any]
    top: TopK
    noise: Noise | None = None
    clean_top: TopK | None = None


@dataclass(frozen=True)
class Failure:
    """One method with one seed that did not finish, and why."""

    contender: Contender
    version: str
    seed: int
    error: str
    noise: Noise | None = None


Result = Run | Failure
Attempt = Generator[None, None, Result]  # yields several times a second while it runs
# Runs a job on another machine; is given the folder of what peers import.
RunElsewhere = Callable[[Job, Path], Generator[None, None, dict[str, Any]]]


def run_all(
    comparison: Comparison,
    folder: ReportFolder,
    progress: Progress,
    after_run: Callable[[], None] = lambda: None,
    run_elsewhere: RunElsewhere | None = None,
) -> list[Result]:
    """Run all entries, here or elsewhere; a failure is a result too.

    The results are in the order of the entries, whichever is finished first.
    """
    runner = _Runner(comparison, folder, progress, run_elsewhere)
    entries = comparison.entries

    def attempt(number: int, place: int) -> Attempt:
        return runner.attempt(entries[number], place, f"{number + 1}/{len(entries)}")

    try:
        return run_together(attempt, len(entries), comparison.jobs, after_run)
    finally:
        shutil.rmtree(folder.scratch, ignore_errors=True)


def run_together(
    attempt: Callable[[int, int], Attempt], n: int, jobs: int, after_run: Callable[[], None]
) -> list[Result]:
    """Run n attempts, `jobs` of them at once, and return their results in order.

    Args:
        attempt: begins the attempt of a number, in one of the places 0 to jobs − 1.
        n: how many there are.
        jobs: how many run at once.
        after_run: is called after each.
    """
    waiting, results = deque(range(n)), dict[int, Result]()
    running: dict[int, tuple[int, Attempt]] = {}  # by place
    try:
        while waiting or running:
            for place in range(min(jobs, n)):
                if place not in running and waiting:
                    number = waiting.popleft()
                    running[place] = number, attempt(number, place)
            for place, (number, each) in list(running.items()):
                try:
                    next(each)
                except StopIteration as end:
                    results[number] = end.value
                    del running[place]
                    after_run()
    finally:
        for _, each in running.values():
            each.close()
    return [results[number] for number in range(n)]


class _Runner:
    """Runs what is not finished in the folder yet."""

    def __init__(
        self,
        comparison: Comparison,
        folder: ReportFolder,
        progress: Progress,
        run_elsewhere: RunElsewhere | None,
    ) -> None:
        self.comparison, self.folder = comparison, folder
        self.run_elsewhere = run_elsewhere
        self.progress = progress if comparison.jobs == 1 else _Lines(progress, comparison.jobs)

    @cached_property
    def made(self) -> RowsMade:
        """Write everything that methods read; return what making the rows of the peers took."""
        comparison, scratch = self.comparison, self.folder.scratch
        self.progress.stage("preparing the documents", 0)
        process.write_library(scratch / "library")
        with_rows = any(not entrant.contender.ours for entrant in comparison.entrants)
        return write_given(
            comparison.split, scratch / "given", with_rows=with_rows, tfidf=comparison.tfidf
        )

    def attempt(self, entry: Entry, place: int, number: str) -> Attempt:
        """Return the result of one run, from the folder if it is finished there."""
        job, contents = self._job(entry, place), self._contents(entry)
        contender, version = job.contender, entry.entrant.home.version
        name = f"{number} {contender.name}{self._condition(entry)}"
        measured = self.folder.find_finished(job.out, contents)
        try:
            if measured is None:
                self.folder.begin(job, contents)
                measured = yield from self._run(job, entry, name)
                self.progress.say(f"{name}: trained in {measured['train_seconds']:.1f} s")
            else:
                self.progress.say(f"{name}: already finished")
            top, clean_top = _read_tops(self.comparison.split, job)
            return Run(contender, version, entry.seed, measured, top, entry.noise, clean_top)
        except RunFailed as failure:
            shutil.rmtree(job.out / "model", ignore_errors=True)
            self.progress.say(f"{name}: failed: {failure}")
            return Failure(contender, version, entry.seed, str(failure), entry.noise)

    def _condition(self, entry: Entry) -> str:
        """Return what tells a run from the others of its method, such as " (seed 1)"."""
        words = [str(entry.noise)] * (entry.noise is not None)
        words += [f"seed {entry.seed}"] * (len(self.comparison.seeds) > 1)
        return f" ({', '.join(words)})" if words else ""

    def _job(self, entry: Entry, place: int) -> Job:
        contender, seed = entry.entrant.contender, entry.seed
        noise = "" if entry.noise is None else str(entry.noise)
        given = self._given(entry)
        return Job(
            contender=contender,
            python=entry.entrant.home.python,
            given=given if contender.ours else given / "rows",
            out=self.folder.run_folder(contender.name, seed, noise),
            seed=seed,
            k=self.comparison.depth,
            threads=self.comparison.threads_each,
            timeout=self.comparison.timeout,
            place=place,
        )

    def _given(self, entry: Entry) -> Path:
        """Return the folder of documents that an entry reads; all with its noise and seed do."""
        noise = "" if entry.noise is None else f"-{entry.noise}-seed-{entry.seed}"
        return self.folder.scratch / f"given{noise}"

    def _contents(self, entry: Entry) -> dict[str, Any]:
        """Return what identifies a run: it is repeated only if some of this has changed."""
        contender = entry.entrant.contender
        noise = {} if entry.noise is None else {"noise": str(entry.noise)}
        return noise | {
            "name": contender.name,
            "package": contender.package,
            "version": entry.entrant.home.version,
            "setting": contender.setting | {"seed": entry.seed},
            "tfidf": {} if contender.ours else dict(self.comparison.tfidf),
            "k": self.comparison.depth,
            "threads": self.comparison.threads_each,
        }

    def _run(self, job: Job, entry: Entry, name: str) -> Generator[None, None, dict[str, Any]]:
        """Run a job to its end, and keep its results."""
        made, given = self.made, self._given(entry)
        if entry.noise is not None and not given.exists():
            Y = spoil(self.comparison.split.train.Y, entry.noise, entry.seed)
            write_spoiled(self.folder.scratch / "given", given, Y)
        self.progress.stage(f"{name}: starting", 0)
        measured = yield from self._run_once_or_twice(job, f"{name}: ")
        self.progress.stage(f"{name}: cleaning up", 0)
        if not job.contender.ours:
            _add_rows_made(measured, made)
        self.folder.finish(job, measured, keep_model=self.comparison.keep_models)
        return measured

    def _run_once_or_twice(self, job: Job, prefix: str) -> Generator[None, None, dict[str, Any]]:
        """Run a job; repeat it without empty rows if a peer fails and there are some."""
        n_empty = self.made.n_empty
        try:
            return (yield from self._run_once(job, prefix))
        except RunFailed as failure:
            if job.contender.ours or not n_empty or isinstance(failure, RunStopped):
                raise
        measured = yield from self._run_once(replace(job, drop_empty=True), prefix)
        refused = spell_count(n_empty, "empty row")
        return measured | {"note": f"trained without the {refused}, which it refuses"}

    def _run_once(self, job: Job, prefix: str) -> Generator[None, None, dict[str, Any]]:
        library = self.folder.scratch / "library"
        if self.run_elsewhere is not None:
            return self.run_elsewhere(job, library)
        patience = max(POLL_SECONDS / self.comparison.jobs, 0.01)
        return process.run(job, self.progress, prefix, library, patience)


class _Lines:
    """A `Progress` that passes on only lines: the stages of several runs would mix."""

    def __init__(self, progress: Progress, jobs: int) -> None:
        self.progress = progress
        self.progress.stage(f"{jobs} methods at once", 0)

    def stage(self, name: str, total: float) -> None:
        """Show nothing, but let Ctrl-C through."""
        self.progress.advance(0)

    def advance(self, amount: float) -> None:
        """Show nothing, but let Ctrl-C through."""
        self.progress.advance(0)

    def note(self, text: str) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show the line."""
        self.progress.say(text)


def _add_rows_made(measured: dict[str, Any], made: RowsMade) -> None:
    """Add the time to make rows from texts, so that all times start from the document."""
    each_seconds = 1 / measured["documents_per_second"] + made.each_seconds
    measured["documents_per_second"] = 1 / each_seconds
    measured["rows_seconds"] = made.train_seconds
    measured["train_seconds"] += made.train_seconds
    measured["train_cpu_seconds"] += made.train_seconds
    measured["single_p50_ms"] += made.single_ms
    measured["single_p99_ms"] += made.single_ms


def _read_tops(split: TrainTestSplit, job: Job) -> tuple[TopK, TopK | None]:
    """Return what a run predicted for the test documents, and for the clean ones if there are."""
    found, n_test = read_top(job.out), len(split.test)
    n_clean = 0 if split.clean is None else len(split.clean)
    if found is None or len(found) != n_test + n_clean:
        raise RunFailed("its predictions cannot be read")
    top = TopK(found.labels[:n_test], found.scores[:n_test])
    clean_top = TopK(found.labels[n_test:], found.scores[n_test:]) if n_clean else None
    exclude = split.test.exclude
    if exclude is not None and exclude.nnz:
        top = top.without(exclude, DEPTH)
    return top, clean_top
