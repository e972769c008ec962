"""One writer at a time: a lock beside a model that names its owner and ends with its process."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from longtail.errors import LongtailError
from longtail.runtime.store.cache import stand_in
from longtail.storage import RemotePath, as_place

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

PAUSE = 0.1  # seconds from one try to lock to the next
FAR = 1 << 20  # where Windows locks a byte, as nobody else could read what is locked


@contextmanager
def locked(target: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from training into `target` meanwhile; with `wait`, in turn.

    What other machines do at a URL this cannot know.

    Raises:
        LongtailError: another process does so already; the message names it.
    """
    # Beside the target, as a save replaces the target itself.
    place = as_place(target)
    target = stand_in(place, "locks") if isinstance(place, RemotePath) else place
    target = Path(os.path.abspath(target))  # noqa: PTH100 - resolve() would follow a link
    path = target.with_name(f".{target.name}.lock")
    try:
        descriptor = _take(path, place, wait=wait)
    except OSError as error:
        raise LongtailError(f"{target}: cannot write a model here: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)
        if sys.platform == "win32":  # which removes no open file
            with suppress(OSError):
                path.unlink()


def _take(path: Path, target: Path, *, wait: bool) -> int:
    """Lock the file and write into it who we are."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        owner = os.read(descriptor, 200).decode("utf-8", "replace").split()
        try:
            while not _lock(descriptor, owner):
                if wait:
                    time.sleep(PAUSE)
                    continue
                raise LongtailError(
                    f"{target}: {_describe(owner, path)} is at work on it; wait until that has "
                    "ended, or choose another path"
                )
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it before it was ours


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _describe(owner: list[str], path: Path) -> str:
    if not owner:
        return "another process"
    if owner[1:] and owner[1] != socket.gethostname():  # whose end we may not learn of
        return f"process {owner[0]} on {owner[1]} (if it has ended, remove {path})"
    return f"process {owner[0]}"


def _lock(descriptor: int, owner: list[str]) -> bool:
    """Lock a file until its descriptor is closed or this process ends; False if another has."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return not _is_alive(owner)
    return True


def _is_alive(owner: list[str]) -> bool:
    """Whether the process that wrote the file, on this machine or another, may still run."""
    if len(owner) < 2 or not owner[0].isdecimal():
        return False
    if owner[1] != socket.gethostname() or sys.platform == "win32":
        return True
    try:
        os.kill(int(owner[0]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True
