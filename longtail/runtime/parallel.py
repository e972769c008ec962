"""Run independent pieces of compiled work on all cores, the costliest first."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from itertools import count, takewhile
from threading import Lock, local
from typing import Any, TypeVar

from longtail.errors import ParameterError
from longtail.progress import SILENT, Progress

Result = TypeVar("Result")

_threads: int | None = None
_blas: Any = None  # what limits the threads of numpy's products, while a number is set
_here = local()  # in a thread: `busy` if its work is one of several tasks, `most` threads for it


def set_threads(n: int | None) -> None:
    """Use `n` threads from now on; None means one for each core this process may use.

    Numpy's matrix products follow at once, torch where it trains or predicts.
    """
    global _threads  # `training.threads` looks here, as torch may not be imported yet
    if n is not None and n < 1:
        raise ParameterError(f"The number of threads must be at least 1. Got {n} instead.")
    _threads = n
    _limit_blas(n)


def chosen_threads() -> int | None:
    """Return the number that `set_threads` was given; None if there is none."""
    return _threads


def _limit_blas(n: int | None) -> None:
    """Let numpy's matrix products use `n` threads, or as many as they like."""
    global _blas
    if _blas is not None:
        _blas.restore_original_limits()
        _blas = None
    if n is not None:
        from threadpoolctl import threadpool_limits

        _blas = threadpool_limits(n, user_api="blas")


@contextmanager
def on_one_blas_thread() -> Iterator[None]:
    """Let numpy's and scipy's products use one thread: short ones only wait for further threads."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def keep_to_threads(n: int) -> Iterator[None]:
    """Let compiled work that this thread begins use `n` threads at most, while others work too."""
    before = getattr(_here, "most", None)
    _here.most = n
    try:
        yield
    finally:
        _here.most = before


def n_threads() -> int:
    """Return how many threads compiled work may use; one, where threads share work already."""
    if getattr(_here, "busy", False):
        return 1
    n = _threads or count_cores()
    return min(n, getattr(_here, "most", None) or n)


def count_cores() -> int:
    """Return how many cores this process may use; all of them where the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # Linux; not macOS, not Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


_pools: dict[int, ThreadPoolExecutor] = {}
_starting = Lock()


def _forget_pools() -> None:
    """Begin anew in a child, which has the pools, but none of their threads."""
    global _starting
    _pools.clear()
    _starting = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def in_threads(function: Callable[..., Result], tasks: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Call compiled code for each task, here and on a pool; return the results in order.

    For work of milliseconds: the pool stays, as starting one takes as long as a search. After an
    error or Ctrl-C no further task is started, and none is running any more.
    """
    n_workers = n_threads()
    n_others = min(n_workers, len(tasks)) - 1
    if n_others < 1:
        return [function(*task) for task in tasks]
    results: dict[int, Result] = {}
    numbers = count()

    def work() -> None:
        _here.busy = True
        try:
            while (i := next(numbers)) < len(tasks):
                results[i] = function(*tasks[i])
        except BaseException:
            for _ in takewhile(lambda i: i < len(tasks), numbers):  # nobody begins another
                pass
            raise
        finally:
            _here.busy = False

    pool = _find_pool(n_workers)
    others = [pool.submit(work) for _ in range(n_others)]
    try:
        work()
    finally:
        begun = [other for other in others if not other.cancel()]  # the rest had nothing to do
        wait(begun)
    for other in begun:
        other.result()
    return [results[i] for i in range(len(tasks))]


def _find_pool(n_workers: int) -> ThreadPoolExecutor:
    """Return the pool that helps a thread to be `n_workers`; one, however many ask at once."""
    with _starting:
        if n_workers not in _pools:
            _pools[n_workers] = ThreadPoolExecutor(n_workers - 1)
        return _pools[n_workers]


def cut(n: int, n_parts: int) -> list[int]:
    """Return the borders of at most `n_parts` equal parts of n."""
    return sorted({n * part // n_parts for part in range(n_parts + 1)})
