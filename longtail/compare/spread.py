"""Runs of a comparison on a cluster: each is a process on some node, with cores of its own.

Places are numbered over all nodes, so a run takes a free one of its own node.

All nodes must see the folder of the report: the documents are read there, the results written.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cluster.tasks import WorkerError
from longtail.compare import process
from longtail.compare.process import Job, RunFailed, RunStopped
from longtail.compare.run import Comparison
from longtail.errors import LongtailError, MemoryPlanError
from longtail.progress import SILENT
from longtail.runtime.parallel import chosen_threads
from longtail.runtime.private import make_private, name_private
from longtail.runtime.store import locked
from longtail.runtime.workers import Needs

if TYPE_CHECKING:
    from longtail.cluster.tasks import RayWorkers

LEAST_BYTES = 200 << 20  # a process that reads documents, before it learns from them


def fit_to_cluster(comparison: Comparison, workers: "RayWorkers") -> Comparison:
    """Run as many methods at once as there is room for: a node each, unless --threads says less."""
    each = chosen_threads() or workers.most_cores
    jobs = max(1, sum(int(node.cores) // each for node in workers.nodes))
    return replace(comparison, threads=each * jobs, jobs=jobs)


def run_on_cluster(
    workers: "RayWorkers", job: Job, library: Path
) -> Generator[None, None, dict[str, Any]]:
    """Run a job on a node to its end, as `process.run` does; RunStopped if no node can do it."""
    try:
        found = yield from _run_on_a_node(workers, job, library)
    except (MemoryPlanError, WorkerError) as error:
        raise RunStopped(str(error)) from error
    if isinstance(found, RunFailed):
        raise found
    return found


def _run_on_a_node(
    workers: "RayWorkers", job: Job, library: Path
) -> Generator[None, None, dict[str, Any] | RunFailed]:
    """Return what `run_job` returns on a node that has room for the job."""
    absolute = replace(job, given=job.given.absolute(), out=job.out.absolute())
    gpus = int(job.contender.setting.get("device") == "cuda")
    needs = Needs(count_bytes(job.given), job.threads, gpus)
    workers.check_fits(needs)
    ticket = workers.submit(run_job, absolute, library.absolute(), needs=needs)
    try:
        while not workers.wait([ticket]):
            yield
        found: dict[str, Any] | RunFailed = workers.get(ticket)
    except BaseException:
        workers.cancel([ticket])
        raise
    return found


def count_bytes(given: Path) -> int:
    """Return what every method takes at least: a process, and the documents that it reads."""
    return LEAST_BYTES + sum(file.stat().st_size for file in given.rglob("*") if file.is_file())


def run_job(job: Job, library: Path) -> dict[str, Any] | RunFailed:
    """Run a job; return what it measured, or why it failed. Runs on a node."""
    if not job.given.is_dir():
        return RunStopped(
            f"the node does not see {job.given}; write the report to a disk that all nodes share"
        )
    with take_place(job) as placed:
        running = process.run(placed, SILENT, "", library)
        try:
            while True:
                next(running)
        except StopIteration as end:
            measured: dict[str, Any] = end.value
            return measured
        except RunFailed as failure:
            return failure


@contextmanager
def take_place(job: Job) -> Iterator[Job]:
    """Give a job a place that no other job has on this node, as long as there are enough cores."""
    with ExitStack() as held:
        yield replace(job, place=_lock_place(job, held))


def _lock_place(job: Job, held: ExitStack) -> int:
    if not hasattr(os, "sched_getaffinity"):  # nothing is bound to cores here
        return job.place
    n_places = max(1, len(os.sched_getaffinity(0)) // job.threads)
    with suppress(OSError):
        home = name_private("places")
        make_private(home)
        for place in range(n_places):
            with suppress(LongtailError):  # another job has it
                held.enter_context(locked(home / f"{place}-of-{job.threads}-threads"))
                return place
    return job.place
