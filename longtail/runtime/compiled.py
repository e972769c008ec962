"""Compiled code, kept on disk where that can be; where it cannot, it is compiled at every start.

numba's own cache stops the program if no folder for it can be written (a read-only installation
and home), if the disk is full, or if a file of it is damaged. For ours it is only a cache.
"""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache

Function = TypeVar("Function", bound=Callable[..., Any])

_reasons: list[str] = []  # why compiled code could not be kept


class _Cache(FunctionCache):
    """numba's cache of one function, whose failures cost time and nothing else."""

    def load_overload(self, *args: Any) -> Any:
        """Return the compiled function, None if it has to be compiled."""
        try:
            return super().load_overload(*args)  # type: ignore[no-untyped-call]
        except Exception as error:  # a file that was cut off can raise anything
            _warn(error)
            return None

    def save_overload(self, *args: Any) -> None:
        """Keep a compiled function."""
        try:
            super().save_overload(*args)  # type: ignore[no-untyped-call]
        except Exception as error:
            _warn(error)


def njit(**options: Any) -> Callable[[Function], Function]:
    """Do as numba.njit does; with `cache=True`, by the cache above."""
    keeps = options.pop("cache", False)

    def compile_later(function: Function) -> Function:
        dispatcher: Any = numba.njit(**options)(function)
        if keeps:  # what its enable_caching() does
            try:
                dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
            except (RuntimeError, OSError) as error:
                _warn(error)
        compiled: Function = dispatcher
        return compiled

    return compile_later


def _warn(error: Exception) -> None:
    """Say why each start takes longer, once."""
    reason = getattr(error, "strerror", None) or "no folder for it can be used"
    if not _reasons:
        warnings.warn(
            f"compiled code cannot be kept ({reason}), so each start takes some seconds longer; "
            "set NUMBA_CACHE_DIR to a folder that can be written",
            stacklevel=2,
        )
    _reasons.append(reason)
