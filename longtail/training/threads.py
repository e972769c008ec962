"""Torch computes on as many threads as everything else, and small things on one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from longtail.runtime.parallel import chosen_threads

_followed: int | None = None  # what torch was told last
_own = torch.get_num_threads()  # what it does unless told


def follow_threads() -> None:
    """Give torch the number of threads that was set since the last call, if one was."""
    global _followed
    chosen = chosen_threads()
    if chosen != _followed:
        torch.set_num_threads(chosen or _own)
        _followed = chosen


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let torch compute on the calling thread alone: for short sums, waiting takes longest."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
