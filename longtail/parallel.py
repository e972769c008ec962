"""Run independent pieces of compiled work on all cores, the costliest first."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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
