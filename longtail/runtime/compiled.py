"""Compiled code, kept on disk where that can be; where it cannot, it is compiled at every start.

numba's own cache stops the program if no folder for it can be written (a read-only installation
and home), if the disk is full, or if a file of it is damaged. For ours it is only a cache: beside
the package, else in the user's folder for caches, else in a folder of the user's own among the
temporary files. What lies beside a package that cannot be written, as in a container, is used too.
"""

import itertools
import os
import secrets
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numba.core.sigutils import normalize_signature

from longtail.runtime.boxing import check_tuples
from longtail.runtime.private import make_private, name_private

Function = TypeVar("Function", bound=Callable[..., Any])

_reasons: list[str] = []  # why compiled code could not be kept


def _number_apart() -> None:
    """Let this process number what it compiles from a random number on.

    The number is part of a function's name, and numba counts from 1. So what two processes have
    compiled may bear one name: whoever loads both gets the first of them under that name. An array
    was not sorted, as the code of argsort was taken for that of sort, which have the same types.
    """
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


check_tuples()
_number_apart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_number_apart)


class _TemporaryLocator(InTreeCacheLocator):
    """A folder among the temporary files."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)  # type: ignore[no-untyped-call]
        below = self.get_suitable_cache_subpath(file)  # type: ignore[no-untyped-call]
        self._cache_path = str(name_private("compiled") / below)

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return the folder of a function; None if there is none."""
        with suppress(OSError):  # there may be no folder for temporary files at all
            return super().from_function(function, file)  # type: ignore[no-untyped-call]
        return None

    def ensure_cache_path(self) -> None:
        """Raise OSError if the folder is not this user's alone, or cannot be written."""
        make_private(name_private("compiled"))
        super().ensure_cache_path()  # type: ignore[no-untyped-call]


class _ReadOnlyLocator(InTreeCacheLocator):
    """The folder beside the package, which cannot be written, if compiled code lies there."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> "_ReadOnlyLocator | None":
        found = cls(function, file)
        return found if any(Path(found._cache_path).glob("*.nbi")) else None


class _CacheFiles(CompileResultCacheImpl):
    """Where the files of one function lie: the first of these places that can be used."""

    _locator_classes = [  # noqa: RUF012 - as numba declares it
        UserProvidedCacheLocator,
        InTreeCacheLocator,
        UserWideCacheLocator,
        _TemporaryLocator,
        _ReadOnlyLocator,
    ]


class _Cache(FunctionCache):
    """numba's cache of one function, whose failures cost time and nothing else."""

    _impl_class = _CacheFiles

    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._function, self._is_open = function, False
        self._shipped: Any = None

    def _open(self) -> None:
        """Open the function's files, once it is called; those of other sources do not count."""
        if self._is_open:
            return
        stamp, base = _find_stamp(self._function), self._impl.filename_base
        self._cache_file = IndexDataCacheFile(self._cache_path, base, stamp)  # type: ignore[no-untyped-call]
        beside = Path(self._function.__code__.co_filename).parent / "__pycache__"
        if beside != Path(self._cache_path):
            self._shipped = IndexDataCacheFile(str(beside), base, stamp)  # type: ignore[no-untyped-call]
        self._is_open = True

    def load_overload(self, sig: Any, context: Any) -> Any:
        """Return the compiled function, None if it has to be compiled.

        Two processes that compile for different types at the same time may give their files one
        name, and what is found under it is then for the types of the other.
        """
        try:
            self._open()
            found = super().load_overload(sig, context)  # type: ignore[no-untyped-call]
        except Exception as error:  # a file that was cut off can raise anything
            _warn(error)
            return None
        if found is not None and not _is_for(sig, found):
            return None
        return self._load_shipped(sig, context) if found is None else found

    def _load_shipped(self, sig: Any, context: Any) -> Any:
        """Return the function as it was compiled beside the package, for such a machine."""
        with suppress(Exception):
            key = self._index_key(sig, context.codegen())  # type: ignore[no-untyped-call]
            data = self._shipped.load(key) if self._shipped else None
            if data is not None:
                found = self._impl.rebuild(context, data)
                return found if _is_for(sig, found) else None
        return None

    def save_overload(self, *args: Any) -> None:
        """Keep a compiled function."""
        try:
            self._open()
            super().save_overload(*args)  # type: ignore[no-untyped-call]
        except Exception as error:
            _warn(error)


def _is_for(sig: Any, compiled: Any) -> bool:
    """Whether a function was compiled for arguments of these types."""
    types, _ = normalize_signature(sig)  # type: ignore[no-untyped-call]
    return tuple(compiled.signature.args) == tuple(types)


def _find_stamp(function: Any) -> tuple[object, ...]:
    """Return what changes with the sources of a function and of all that it may call.

    Compiled code holds what it calls; numba looks at the function's own file alone. Times count in
    whole seconds, as images of containers keep no others. Code that does not check its indices
    would be taken for code that does (NUMBA_BOUNDSCHECK), so that counts as well.
    """
    found, ahead = {function.__module__}, [function.__module__]
    while ahead:
        more = _list_used(ahead.pop()) - found
        found |= more
        ahead += more
    stamps = {module: _find_stamp_of_file(module) for module in found}
    sources = [stamp for _, stamp in sorted(stamps.items()) if stamp is not None]
    return (*sources, "checked") if getattr(numba.config, "BOUNDSCHECK", None) else tuple(sources)


@cache
def _list_used(module: str) -> frozenset[str]:
    """Return the modules of a module's package that its names are from."""
    package = module.partition(".")[0] + "."
    names = vars(sys.modules[module]) if module in sys.modules else {}
    others = {getattr(value, "__module__", None) or "" for value in names.values()}
    return frozenset(each for each in others if each.startswith(package) and each in sys.modules)


@cache
def _find_stamp_of_file(module: str) -> tuple[int, int] | None:
    """Return when a module's file was changed, and its size."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    found = Path(file).stat()
    return int(found.st_mtime), found.st_size


def njit(**options: Any) -> Callable[[Function], Function]:
    """Do as numba.njit does; with `cache=True`, by the cache above."""
    keeps = options.pop("cache", False)

    def compile_later(function: Function) -> Function:
        dispatcher: Any = numba.njit(**options)(function)
        if keeps:  # what its enable_caching() does
            try:
                dispatcher._cache = _Cache(function)
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
