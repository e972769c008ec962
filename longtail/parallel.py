"""Run independent pieces of compiled work on all cores, the costliest first."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from longtail.errors import ParameterError
from longtail.progress import SILENT, Progress

Result = TypeVar("Result")

_threads: int | None = None


def set_threads(n: int | None) -> None:
    """Use `n` threads from now on; None means one for each core this process may use."""
    global _threads
    if n is not None and n < 1:
        raise ParameterError(f"The number of threads must be at least 1. Got {n} instead.")
    _threads = n


def n_threads() -> int:
    """Return how many threads compiled work may use."""
    return _threads or len(os.sched_getaffinity(0))


def run_tasks(
    function: Callable[..., Result],
    tasks: Sequence[tuple[object, ...]],
    costs: Sequence[float],
    progress: Progress = SILENT,
) -> list[Result]:
    """Call `function(*task)` for each task on a pool of threads; return the results in order.

    The costliest tasks start first, so that no thread is left alone with a long one at the end.
    `function` must release the interpreter lock to gain from this, as compiled code does. After
    an error or Ctrl-C no further task is started.
    """
    order = sorted(range(len(tasks)), key=lambda i: -costs[i])
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def run(i: int) -> None:
        if failures:
            return
        try:
            results[i] = function(*tasks[i])
        except BaseException as error:
            failures.append(error)

    with ThreadPoolExecutor(n_threads()) as pool:
        futures = {pool.submit(run, i): i for i in order}
        try:
            for future in as_completed(futures):
                if failures:
                    raise failures[0]
                progress.advance(costs[futures[future]])
        except BaseException as error:
            failures.append(error)
            raise
    return [results[i] for i in range(len(tasks))]
