"""Who does work that is cut into tasks: the threads of this process, or a cluster.

What trains does not know Ray: it asks for the cluster in use, and gives it functions of modules,
which every node can import, with plain arrays.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from longtail.progress import SILENT, Progress

Result = TypeVar("Result")


def _forget(number: int, result: Any) -> None:
    """Do nothing."""


class Needs(NamedTuple):
    """What a task takes beside what all share; it waits for a node that has so much."""

    n_bytes: int = 0
    cores: int = 1
    gpus: int = 0


class Workers(Protocol):
    """Processes that do tasks, here or on other machines."""

    @property
    def n_cores(self) -> int:
        """How many cores all nodes have together."""

    @property
    def most_cores(self) -> int:
        """How many cores a task can have: those of the largest node."""

    def describe(self) -> str:
        """Say what there is, such as "3 nodes, 48 cores, 4 GPUs"."""

    def run(
        self,
        function: Callable[..., Result],
        shared: Any,
        tasks: Sequence[Any],
        costs: Sequence[float],
        *,
        needs: Sequence[Needs],
        progress: Progress = SILENT,
        on_done: Callable[[int, Result], None] = _forget,
    ) -> list[Result]:
        """Return `function(shared, task)` of each task, in order.

        Args:
            function: of a module that every node can import.
            shared: what all tasks read; its arrays go to each node once.
            tasks: what tells them apart.
            costs: how long each takes against the others; the costliest begin first.
            needs: what each takes.
            progress: is advanced by the costs.
            on_done: is told the number and the result of each task that is done.
        """


_workers: Workers | None = None


def cluster_in_use() -> Workers | None:
    """Return the cluster that this process uses; None if work stays here."""
    return _workers


@contextmanager
def use_cluster(workers: Workers) -> Iterator[None]:
    """Let work inside go to a cluster."""
    global _workers  # the threads that train members of a fusion look here, too
    before, _workers = _workers, workers
    try:
        yield
    finally:
        _workers = before
