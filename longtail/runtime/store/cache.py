"""The cache: copies of what lies at URLs, in a folder of this machine that does not grow for ever.

It is `LONGTAIL_CACHE`, or else `~/.cache/longtail`. Models are in `models/`, each in a folder named
by the hash of its manifest, so the same model is there once, whatever URLs it has; packed data are
in `data/`. Before another is fetched, those that were used longest ago are removed until all are
within `LONGTAIL_CACHE_GB`, 20 unless set.
"""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from longtail.errors import ParameterError
from longtail.runtime.store.atomic import ABANDONED
from longtail.storage import RemotePath

FOLDER, MOST = "LONGTAIL_CACHE", "LONGTAIL_CACHE_GB"
USUAL_GB = 20.0
COPIES = ("models", "data")  # folders of the cache
IN_USE = 600.0  # seconds from the last use of a copy in which it is not removed


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, made if need be."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longtail"
    folder = Path(os.environ.get(FOLDER) or usual).absolute() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def stand_in(place: RemotePath, name: str) -> Path:
    """Return the path of this machine where what belongs to a URL lies, such as its lock."""
    digest = sha256(str(place).encode()).hexdigest()[:16]
    return cache_folder(name) / f"{place.name}-{digest}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for what is about to be uploaded; those that killed saves left are removed."""
    home = cache_folder("uploads")
    for left in home.iterdir():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=home) as folder:
        yield Path(folder)


def touch(folder: Path) -> None:
    """Note that a copy in the cache is used now."""
    with suppress(OSError):
        os.utime(folder)


def make_room(n_bytes: int) -> None:
    """Remove copies that were used longest ago, until so many bytes more are within the limit."""
    limit = _read_limit()
    found = []
    for folder in chain.from_iterable(cache_folder(name).iterdir() for name in COPIES):
        with suppress(OSError):
            if folder.is_dir():
                facts = [file.stat() for file in folder.iterdir()]
                # A file that is being fetched is newer than its folder.
                used = max(each.st_mtime for each in (folder.stat(), *facts))
                found.append((used, sum(each.st_size for each in facts), folder))
    total = n_bytes + sum(size for _, size, _ in found)
    for used, size, folder in sorted(found):
        if total <= limit or time.time() - used < IN_USE:
            return
        with suppress(OSError):  # at once: who looks for it finds all of it or nothing
            gone = folder.rename(folder.with_name(f".gone-{secrets.token_hex(4)}"))
            rmtree(gone, ignore_errors=True)
        total -= size


def _read_limit() -> float:
    given = os.environ.get(MOST)
    try:
        limit = USUAL_GB if given is None else float(given)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise ParameterError(f"{MOST} must be a number of gigabytes. Got '{given}' instead.")
    return limit * 1e9
