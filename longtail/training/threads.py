"""Torch computes on as many threads as everything else."""

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
