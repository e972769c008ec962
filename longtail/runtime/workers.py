"""Who does work that is cut into tasks: the threads of this process, or a cluster.

What trains does not know Ray: it asks for the cluster in use, and gives it functions of modules,
which every node can import, with plain arrays.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from longtail.progress import SILENT, Progress

Result = TypeVar("Result")


class Workers(Protocol):
    """Processes that do tasks, here or on other machines."""

    def run(
        self,
        function: Callable[..., Result],
        shared: Any,
        tasks: Sequence[Any],
        costs: Sequence[float],
        *,
        n_bytes: Sequence[int],
        progress: Progress = SILENT,
    ) -> list[Result]:
        """Return `function(shared, task)` of each task, in order.

        Args:
            function: of a module that every node can import.
            shared: what all tasks read; its arrays go to each node once.
            tasks: what tells them apart.
            costs: how long each takes against the others; the costliest begin first.
            n_bytes: what each takes beside `shared`; it waits for a node that has so much.
            progress: is advanced by the costs.
        """


_workers: Workers | None = None


def cluster_in_use() -> Workers | None:
    """Return the cluster that this process uses; None if work stays here."""
    return _workers


@contextmanager
def use_cluster(workers: Workers | None) -> Iterator[None]:
    """Let work inside go to a cluster; None changes nothing."""
    global _workers  # the threads that train members of a fusion look here, too
    before = _workers
    _workers = workers if workers is not None else before
    try:
        yield
    finally:
        _workers = before
