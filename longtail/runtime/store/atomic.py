"""Atomic writes: a folder appears under its name whole and durable, or not at all.

The new folder is made beside the target as `.NAME.tmp-XXXX`, locked while it is filled, and then
renamed; a target that exists already is exchanged with it in one step where the system can do that.
"""

import ctypes
import errno
import glob
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


ABANDONED = 24 * 3600.0  # seconds after which nobody fills a folder, where there are no locks

Identity = tuple[int, int, int]


def identify(path: Path) -> Identity | None:
    """Return what tells the folder at `path` from any that takes its place; None without one.

    The time is part of it, as the number of a removed folder soon goes to another.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def find_old(target: Path) -> Path | None:
    """Return where the target's folder lies while another takes its name, or was to take it."""
    old = sorted(target.absolute().parent.glob(f".{glob.escape(target.name)}.old-????????"))
    return old[-1] if old else None


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Make and lock a folder beside `target`; whatever bears its name at the end is removed."""
    folder, lock = _make_temporary(target)
    try:
        yield folder
    finally:
        _remove(folder)
        close(lock)


def _make_temporary(target: Path) -> tuple[Path, int | None]:
    while True:
        folder = target.parent / f".{target.name}.tmp-{secrets.token_hex(4)}"
        folder.mkdir()
        # Another save may take it for a stale one before the lock is ours: then make another.
        with suppress(BlockingIOError):
            lock = lock_folder(folder)
            if folder.exists():
                return folder, lock
            close(lock)


def lock_folder(folder: Path) -> int | None:
    """Lock a folder until its descriptor is closed or this process ends.

    Return None where folders cannot be locked; raise BlockingIOError when another holds the lock.
    """
    if sys.platform == "win32":
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        close(descriptor)
        raise
    except OSError:
        close(descriptor)
        return None
    return descriptor


def close(descriptor: int | None) -> None:
    """Close a descriptor, if there is one."""
    if descriptor is not None:
        os.close(descriptor)


def remove_stale(target: Path) -> None:
    """Remove what killed saves to the same target left behind; a live one holds its lock."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"(tmp|old)-[0-9a-f]{8}")
    for folder in target.parent.iterdir():
        name = pattern.fullmatch(folder.name)
        # Without the target an old one may be the only model there is.
        if not name or (name[1] == "old" and not target.exists()):
            continue
        with suppress(BlockingIOError):
            lock = lock_folder(folder)
            if lock is not None or time.time() - folder.stat().st_mtime > ABANDONED:
                _remove(folder)
            close(lock)


def _remove(folder: Path) -> None:
    """Remove a flat folder as far as possible; a folder inside it, never ours, stays."""
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                entry.unlink()
        folder.rmdir()


def move_in(folder: Path, target: Path) -> None:
    """Give the finished folder the target's name; undo that when it cannot be made durable."""
    move = _swap if os.path.lexists(target) else _rename
    back = _swap if move is _swap else _rename_back
    move(folder, target)
    try:
        sync_folder(target.parent)
    except OSError:
        with suppress(OSError):  # the first error is the one to tell
            back(folder, target)
        raise


def _rename(folder: Path, target: Path) -> None:
    folder.rename(target)


def _rename_back(folder: Path, target: Path) -> None:
    target.rename(folder)


def _swap(folder: Path, target: Path) -> None:
    """Exchange two folders' names, in one step where the system can.

    Where it cannot, there is a moment without a target; killed right then, the old model lies
    whole in `.NAME.old-XXXX`, and loading the target says so.
    """
    if _exchange(folder, target):
        return
    old = target.parent / f".{target.name}.old-{secrets.token_hex(4)}"
    target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        old.rename(target)
        raise
    old.rename(folder)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically; False where the system or the file system cannot."""
    call = _system_exchange()
    if call is None:
        return False
    if call(os.fsencode(first), os.fsencode(second)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _system_exchange() -> Callable[[bytes, bytes], int] | None:
    """Return Linux's renameat2 or macOS's renamex_np, bound to exchange its two paths."""
    if sys.platform not in ("linux", "darwin"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        return lambda first, second: int(library.renameat2(here, first, here, second, exchange))
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        swap = 2  # RENAME_SWAP
        return lambda first, second: int(library.renamex_np(first, second, swap))
    return None


def sync_folder(folder: Path) -> None:
    """Make a folder's list of names durable, where a folder can be opened at all."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
