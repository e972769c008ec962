"""Folders of files at URLs, other than models: packed data, and reports of comparisons.

A folder is made on this machine and then uploaded, one file last, which makes it count. One that is
to be mapped is copied into the cache once; its files there are those of the URL at one moment.
"""

import errno
import os
from hashlib import sha256
from pathlib import Path, PurePosixPath
from shutil import copyfileobj, move

from longtail.errors import LongtailError, StorageError
from longtail.runtime.store.cache import cache_folder, make_room, touch
from longtail.runtime.store.lock import locked
from longtail.storage import RemotePath

CHUNK_BYTES = 1 << 23


def upload_folder(folder: Path, place: RemotePath, last: str) -> None:
    """Copy all files of a folder to a URL, the one called `last` when all others are there."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in sorted(files, key=lambda file: (file.name == last, file)):
        RemotePath(place / file.relative_to(folder)).put(file)


def download_folder(place: RemotePath, target: Path) -> None:
    """Copy all files of a URL into the folder `target`, as they are at one moment."""
    files = _list(place)
    for name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with RemotePath(place / name).open("rb") as content, (target / name).open("wb") as file:
            copyfileobj(content, file, CHUNK_BYTES)
            file.flush()
            os.fsync(file.fileno())
    if _list(place) != files:
        raise StorageError(errno.EBUSY, "changed while it was read; read it again", str(place))


def fetch_folder(place: RemotePath) -> Path:
    """Return a copy of packed data at a URL in the cache, fetched if need be."""
    target = _find_copy(place)
    if target.exists():
        touch(target)
        return target
    try:
        with locked(target, wait=True):
            if not target.exists():
                make_room(sum(size for size, _ in _list(place).values()))
                unfinished = target.with_name(f"{target.name}.part")
                download_folder(place, unfinished)
                unfinished.rename(target)
    except OSError as error:
        if isinstance(error, StorageError | FileNotFoundError):
            raise
        raise LongtailError(
            f"{place}: cannot be copied into {target.parent}: {error.strerror}; free some space, "
            "or name another folder by LONGTAIL_CACHE"
        ) from None
    return target


def move_to(folder: Path, place: RemotePath, last: str) -> Path:
    """Upload a folder, and leave it in the cache as if it had been fetched; return it there."""
    upload_folder(folder, place, last)
    target = _find_copy(place)
    if not target.exists():
        make_room(sum(file.stat().st_size for file in folder.iterdir()))
        move(folder, target)
    return target


def _find_copy(place: RemotePath) -> Path:
    """Return where the cache has, or would have, what is at a URL now."""
    stamp = repr((str(place), sorted(_list(place).items())))
    return cache_folder("data") / sha256(stamp.encode()).hexdigest()[:32]


def _list(place: RemotePath) -> dict[str, tuple[int, str]]:
    """Return size and stamp of all files at a URL; none of them may lead out of a folder."""
    files = place.list_files()
    for name in files:
        if name.startswith("/") or {"..", "."} & set(PurePosixPath(name).parts):
            raise StorageError(
                errno.EINVAL,
                f"holds a file whose name no folder can hold: {name!r:.40}",
                str(place),
            )
    return files
