"""Work handed out to the nodes of a Ray cluster: each task once, whatever dies on the way.

Ray starts a task again, on any node, when its worker or its node dies. Tasks only read what is
shared and return their result, so a second start changes nothing.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from longtail.cluster.versions import Versions, find_versions, require_versions
from longtail.errors import LongtailError, MemoryPlanError
from longtail.progress import SILENT, Progress
from longtail.runtime.workers import Needs

Result = TypeVar("Result")

RETRIES = 100  # of a task whose worker or node died
GROUPS_EACH = 16  # groups of tasks for each core: a few, so that all end at about the same time
WAIT_SECONDS = 0.5  # between two looks at Ctrl-C
GIGABYTE = 1e9
LITTLE = Needs()


class WorkerError(LongtailError):
    """A task could not be done, however often it was tried."""


class Node(NamedTuple):
    """What a node has: cores, GPUs, and bytes of memory for tasks."""

    cores: float
    gpus: float
    n_bytes: float


class Span(NamedTuple):
    """A group of tasks that was done: which, where, by which process, when, and how many."""

    function: str
    node: str
    worker: int
    began: float
    ended: float
    n_tasks: int


class RayWorkers:
    """The cluster that this process is connected to.

    Attributes:
        ray: the package.
        spans: what `run` had done so far, for those who want to see how work is spread.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.spans: list[Span] = []

    # -- resources --------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are there at present."""
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [
            Node(each.get("CPU", 0), each.get("GPU", 0), each.get("memory", 0)) for each in alive
        ]

    @property
    def n_cores(self) -> int:
        """How many cores all nodes have together."""
        return max(1, int(sum(node.cores for node in self.nodes)))

    @property
    def most_cores(self) -> int:
        """How many cores a task can have: those of the largest node."""
        return max(1, int(max((node.cores for node in self.nodes), default=1)))

    def describe(self) -> str:
        """Say what there is, such as "3 nodes, 48 cores, 4 GPUs"."""
        nodes = self.nodes
        counts = {
            "node": len(nodes),
            "core": int(sum(node.cores for node in nodes)),
            "GPU": int(sum(node.gpus for node in nodes)),
        }
        return ", ".join(f"{n:,} {what}{'s' * (n != 1)}" for what, n in counts.items() if n)

    def check_fits(self, needs: Needs) -> None:
        """Raise MemoryPlanError for a task that no node could ever take: it would wait for ever."""
        nodes = self.nodes
        for node in nodes:
            if (
                node.cores >= needs.cores
                and node.n_bytes >= needs.n_bytes
                and node.gpus >= needs.gpus
            ):
                return
        largest = max((node.n_bytes for node in nodes), default=0)
        cores = f"{needs.cores} core{'s' * (needs.cores > 1)}"
        gpus = f" and {needs.gpus} GPU{'s' * (needs.gpus > 1)}" * bool(needs.gpus)
        raise MemoryPlanError(
            f"a task needs {needs.n_bytes / GIGABYTE:.1f} GB, {cores}{gpus}, and no "
            f"node has them: the cluster has {self.describe()}, at most "
            f"{largest / GIGABYTE:.1f} GB a node; add a larger node"
        )

    # -- tasks ------------------------------------------------------------------------------------

    def share(self, value: Any) -> Any:
        """Put a value where every node can read it; arrays are there once a node."""
        return self.ray.put(value)

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        needs: Needs = LITTLE,
    ) -> Any:
        """Begin `function(*arguments)` on a node that has room for it; return its ticket."""
        remote = self.ray.remote(_call).options(
            num_cpus=needs.cores,
            num_gpus=needs.gpus,
            memory=needs.n_bytes or None,
            max_retries=RETRIES,
            name=function.__name__,
        )
        return remote.remote(find_versions(), function, *arguments)

    def wait(self, tickets: Sequence[Any]) -> list[Any]:
        """Return those of the tickets that are done after a short while; there may be none."""
        done, _ = self.ray.wait(list(tickets), num_returns=1, timeout=WAIT_SECONDS)
        return list(done)

    def get(self, ticket: Any) -> Any:
        """Return the result of a task; an error that it raised is raised here as it was."""
        with translated():
            return self.ray.get(ticket)

    def cancel(self, tickets: Sequence[Any]) -> None:
        """Stop tasks that nobody waits for any more."""
        with suppress(Exception):  # a cluster that is gone does nothing any more
            for ticket in tickets:
                self.ray.cancel(ticket, force=True)

    def run(
        self,
        function: Callable[..., Result],
        shared: Any,
        tasks: Sequence[Any],
        costs: Sequence[float],
        *,
        needs: Sequence[Needs],
        progress: Progress = SILENT,
        on_done: Callable[[int, Result], None] | None = None,
    ) -> list[Result]:
        """Do all tasks, as `runtime.workers.Workers` says."""
        for needed in {(each.cores, each.gpus): each for each in sorted(needs)}.values():
            self.check_fits(needed)  # the largest of its kind
        common = self.share(shared)
        waiting = {}
        for group in group_tasks(costs, GROUPS_EACH * self.n_cores):
            own = [tasks[i] for i in group]
            most = Needs(*(max(values) for values in zip(*(needs[i] for i in group), strict=True)))
            ticket = self.submit(_run_group, function, [common], own, most.cores, needs=most)
            waiting[ticket] = group
        results: dict[int, Result] = {}
        n_groups = len(waiting)
        try:
            while waiting:
                progress.advance(0)  # lets Ctrl-C through
                for ticket in self.wait(list(waiting)):
                    group = waiting.pop(ticket)
                    found, span = self.get(ticket)
                    self.spans.append(span)
                    for i, result in zip(group, found, strict=True):
                        results[i] = result
                        if on_done is not None:
                            on_done(i, result)
                    progress.advance(sum(costs[i] for i in group))
        finally:
            self.cancel(list(waiting))
        progress.say(f"Done by the cluster: {_count_by_node(self.spans[-n_groups:])}")
        return [results[i] for i in range(len(tasks))]


def _call(expected: Versions, function: Callable[..., Result], *arguments: Any) -> Result:
    """Do a task; runs on a node."""
    require_versions(expected)
    return function(*arguments)


def _run_group(
    function: Callable[..., Result], common: Sequence[Any], tasks: Sequence[Any], threads: int
) -> tuple[list[Result], Span]:
    """Do some tasks one after the other; runs on a node.

    What they share comes in a list, as Ray would otherwise read it anew for every group.
    """
    import ray

    from longtail.runtime.parallel import set_threads

    set_threads(threads)
    began = time.time()
    shared = _read_shared(common[0])
    results = [function(shared, task) for task in tasks]
    node = f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:4]}"
    return results, Span(function.__name__, node, os.getpid(), began, time.time(), len(tasks))


_last_shared: list[tuple[str, Any]] = []  # in a worker: what its last tasks shared


def _read_shared(ticket: Any) -> Any:
    """Return what tasks share; its arrays stay where they are, for all workers of a node."""
    import ray

    if not _last_shared or _last_shared[0][0] != ticket.hex():
        _last_shared.clear()
        _last_shared.append((ticket.hex(), ray.get(ticket)))
    return _last_shared[0][1]


def _count_by_node(spans: Sequence[Span]) -> str:
    """Say how many tasks each node did, or each worker of a single one."""
    by_node: Counter[str] = Counter()
    by_worker: Counter[tuple[str, int]] = Counter()
    for span in spans:
        by_node[span.node] += span.n_tasks
        by_worker[span.node, span.worker] += span.n_tasks
    total = f"{_count(by_node.total(), 'task')} by {_count(len(by_worker), 'worker')}"
    if len(by_node) > 1:
        each = ", ".join(f"{node}: {n:,}" for node, n in sorted(by_node.items()))
        return f"{total} of {len(by_node):,} nodes ({each})"
    each = ", ".join(f"{n:,}" for _, n in by_worker.most_common())
    return f"{total} ({each})" if len(by_worker) > 1 else total


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def group_tasks(costs: Sequence[float], n_groups: int) -> list[list[int]]:
    """Put small tasks together, the costliest first, into about `n_groups` groups."""
    least = sum(costs) / max(1, n_groups)
    groups: list[list[int]] = [[]]
    total = 0.0
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        groups[-1].append(i)
        total += costs[i]
        if total >= least:
            groups.append([])
            total = 0.0
    return [group for group in groups if group]


@contextmanager
def translated() -> Iterator[None]:
    """Raise what a task raised, without what Ray wraps around it."""
    from ray import exceptions

    try:
        yield
    except exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else None
        if isinstance(cause, LongtailError | MemoryError | OSError):
            raise cause from None
        raise WorkerError(f"a task failed: {_last_line(error)}") from error
    except exceptions.OutOfMemoryError as error:
        raise MemoryPlanError(
            f"a task took more memory than its node has: {_last_line(error)}"
        ) from None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
        raise WorkerError(
            f"the worker of a task died {RETRIES} times: {_last_line(error)}"
        ) from None
    except exceptions.RayError as error:
        raise WorkerError(f"the cluster failed: {_last_line(error)}") from None


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
