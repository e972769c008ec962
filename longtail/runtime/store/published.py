"""Model folders at URLs: uploaded beside what is there, then named by one small file.

At `s3://bucket/m` lie `version-TIME-XXXX/`, an ordinary model folder, and `current.json`, which
says which version counts and the hash of its manifest. A save uploads a new version, its manifest
last, and then writes `current.json`: one object, so a reader finds the old model or the new one,
and a save that is killed leaves the old one. The version that counted before is removed then, and
so are those that killed saves left a day ago. Of two saves at once, the one that ends last counts.
A model folder that another program copied to a URL, with `manifest.json` right there, is read too.

Loading fetches a model into the cache (see cache.py), once: one process fetches and the others
wait, and what a killed one left is gone on with. Each file is compared with the manifest's hashes.
"""

import errno
import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from longtail.errors import LongtailError, ModelFileError, StorageError
from longtail.runtime.store.atomic import ABANDONED
from longtail.runtime.store.atomic import identify as identify_folder
from longtail.runtime.store.cache import cache_folder, make_room, scratch_folder, touch
from longtail.runtime.store.lock import locked
from longtail.runtime.store.manifest import (
    CARD,
    CARD_PAGE,
    CHUNK_BYTES,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    BlockHash,
    Entry,
    OpenFolder,
    Result,
    parse_json,
    parse_manifest,
    read_settled,
    reason_of,
)
from longtail.storage import RemotePath, as_place

CURRENT = "current.json"
FORMAT_NAME = "longtail model at a URL"
_VERSION = "version-"
_TIME = "%Y%m%dT%H%M%S"
MOST_TRIES = 5  # to fetch a model that is replaced meanwhile


class Version(NamedTuple):
    """The model that counts at a URL: its folder, and its manifest."""

    folder: RemotePath
    manifest: bytes

    @property
    def digest(self) -> str:
        """The hash of the manifest, which holds those of all files."""
        return sha256(self.manifest).hexdigest()


# -- which version counts -----------------------------------------------------------------------


def find_version(place: RemotePath) -> Version | None:
    """Return the model at a URL; None if nothing is there."""
    for _ in range(MOST_TRIES):
        found = _read_small(place / CURRENT)
        folder = place if found is None else _read_current(place, found)
        manifest = _read_small(folder / MANIFEST)
        if manifest is not None:
            return Version(folder, manifest)
        if found is None or found == _read_small(place / CURRENT):
            break  # else another version counts by now
    if not place.exists():
        return None
    raise ModelFileError(
        f"{place}: is not complete, as it has no {MANIFEST}; it is being uploaded, or that was "
        "stopped, or it is no longtail model"
    )


def _read_current(place: RemotePath, found: bytes) -> RemotePath:
    held = parse_json(found, place / CURRENT)
    name = held.get("folder")
    is_ours = held.get("format") == FORMAT_NAME and isinstance(name, str)
    if not is_ours or not str(name).startswith(_VERSION) or "/" in str(name):
        raise ModelFileError(f"{place / CURRENT}: names no version of a longtail model")
    return place / str(name)


def _read_small(path: RemotePath) -> bytes | None:
    try:
        data = path.read_start(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{path}: is larger than any manifest can be")
    return data


def identify(path: Path) -> object:
    """Return what tells the model at a path or a URL from any other; None without one."""
    place = as_place(path)
    if not isinstance(place, RemotePath):
        return identify_folder(place)
    try:
        return find_version(place)
    except ModelFileError:
        return None


def read_digest(path: Path) -> str | None:
    """Return the hash of the manifest of a model folder, here or at a URL; None without one."""
    place = as_place(path)
    try:
        if not isinstance(place, RemotePath):
            return sha256((place / MANIFEST).read_bytes()).hexdigest()
        version = find_version(place)
    except (OSError, ModelFileError):
        return None
    return None if version is None else version.digest


def count_bytes(path: Path) -> int:
    """Return how large the model at a path or a URL is."""
    place = as_place(path)
    if not isinstance(place, RemotePath):
        return sum(file.stat().st_size for file in place.iterdir())
    version = find_version(place)
    entries = {} if version is None else parse_manifest(version.manifest, place).files
    return sum(entry.size for entry in entries.values())


# -- saving -------------------------------------------------------------------------------------


def check_publishable(place: RemotePath, overwrite: bool) -> None:
    """Raise the error that saving to a URL would end in."""
    _find_replaced(place, overwrite)
    place.check_writable()


def _find_replaced(place: RemotePath, overwrite: bool) -> Version | None:
    """Return the model that a save would replace, if it may."""
    try:
        before = find_version(place)
    except ModelFileError:
        names = [each.name for each in place.iterdir()]
        if any(not name.startswith(_VERSION) for name in names):
            raise LongtailError(
                f"{place}: is not a longtail model, so it is not replaced"
            ) from None
        return None  # what killed saves left
    if before is not None and not overwrite:
        raise LongtailError(
            f"{place}: already exists; choose another URL, or replace it with overwrite=True"
        )
    return before


def publish(write: Callable[[Path], None], place: RemotePath, *, overwrite: bool) -> None:
    """Save the model that `write` makes in a new folder of this machine to a URL."""
    before = _find_replaced(place, overwrite)
    with scratch_folder() as scratch:
        folder = scratch / "model"
        write(folder)
        try:
            _upload(folder, place)
        except OSError as error:
            kept = "no model is there" if before is None else "what was there before is untouched"
            raise LongtailError(
                f"{place}: the model could not be saved: {reason_of(error)}; {kept}"
            ) from None
    with suppress(OSError):  # what is left is removed by a later save
        _remove_others(place, before)


def _upload(folder: Path, place: RemotePath) -> None:
    """Upload a folder as a new version, and let that count."""
    name = f"{_VERSION}{time.strftime(_TIME, time.gmtime())}-{secrets.token_hex(4)}"
    files = sorted(folder.iterdir(), key=lambda file: (file.name == MANIFEST, file.name))
    for file in files:
        (place / name / file.name).put(file)
    digest = sha256((folder / MANIFEST).read_bytes()).hexdigest()
    current = folder / CURRENT
    held = {"format": FORMAT_NAME, "folder": name, "manifest_sha256": digest}
    current.write_text(json.dumps(held, indent=2) + "\n")
    (place / CURRENT).put(current)


def _remove_others(place: RemotePath, before: Version | None) -> None:
    """Remove the version that counted before, and those that killed saves left."""
    if before is not None and before.folder == place:  # put there by another program
        names = parse_manifest(before.manifest, place).files
        for name in (MANIFEST, CARD, CARD_PAGE, *names):
            (place / name).unlink(missing_ok=True)
    elif before is not None:
        before.folder.remove_all()
    found = _read_small(place / CURRENT)
    counts = None if found is None else _read_current(place, found)
    for folder in place.iterdir():
        if folder != counts and _is_abandoned(folder.name):
            folder.remove_all()


def _is_abandoned(name: str) -> bool:
    """Return whether a version is so old that nobody uploads it any more, by its name."""
    if not name.startswith(_VERSION):
        return False
    oldest = time.strftime(_TIME, time.gmtime(time.time() - ABANDONED))
    return name.removeprefix(_VERSION) < oldest


# -- loading ------------------------------------------------------------------------------------


def read_published(place: RemotePath, read: Callable[[OpenFolder], Result]) -> Result:
    """Return what `read` makes of the copy of a model."""
    for _ in range(MOST_TRIES):
        folder = fetch(place)
        try:
            return read_settled(folder, read)
        except ModelFileError:
            if folder.exists():  # else another process made room in the cache
                raise
    raise ModelFileError(f"{place}: is removed from the cache again and again; make that larger")


def fetch(place: RemotePath) -> Path:
    """Return the folder of this machine that holds the model at a URL, fetched if need be."""
    for _ in range(MOST_TRIES):
        version = find_version(place)
        if version is None:
            raise ModelFileError(f"{place}: no such model folder")
        try:
            return _fetch(version, place)
        except (FileNotFoundError, ModelFileError) as error:
            if find_version(place) == version:
                raise ModelFileError(_say_what_is_wrong(error, place)) from None
    raise ModelFileError(f"{place}: is replaced again and again while it is read")


def _say_what_is_wrong(error: Exception, place: RemotePath) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{place}: is not complete: {error.filename} is missing"
    return str(error)


def _fetch(version: Version, place: RemotePath) -> Path:
    """Copy a version into the cache, unless it is there."""
    target = cache_folder("models") / version.digest[:32]
    if target.exists():
        touch(target)
        return target
    entries = parse_manifest(version.manifest, place).files
    try:
        with locked(target, wait=True):
            if not target.exists():
                make_room(sum(entry.size for entry in entries.values()))
                _copy(version, entries, target)
    except OSError as error:
        if isinstance(error, StorageError | FileNotFoundError):
            raise
        hint = "; free some, or name another folder by LONGTAIL_CACHE"
        hint = hint if error.errno == errno.ENOSPC else ""
        raise LongtailError(
            f"{place}: cannot be copied into {target.parent}: {reason_of(error)}{hint}"
        ) from None
    return target


def _copy(version: Version, entries: dict[str, Entry], target: Path) -> None:
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.mkdir(mode=0o700, exist_ok=True)
    for name, entry in entries.items():
        _copy_file(version.folder / name, unfinished / name, entry)
    for name in (CARD, CARD_PAGE):
        content = _read_small(version.folder / name)
        if content is not None:
            (unfinished / name).write_bytes(content)
    (unfinished / MANIFEST).write_bytes(version.manifest)
    unfinished.rename(target)


def _copy_file(source: RemotePath, target: Path, entry: Entry) -> None:
    """Copy a file, or what is still missing of it; again from the start if that was wrong."""
    for _ in range(2):
        with target.open("ab") as file:
            if file.tell() > entry.size:
                file.truncate(0)
            _append(source, file, entry.size)
            os.fsync(file.fileno())
        if _hash(target) == entry:
            return
        target.unlink()
    raise ModelFileError(
        f"{source}: is not the file that was saved (its size or SHA-256 differs); upload the "
        "model again"
    )


def _append(source: RemotePath, file: BinaryIO, size: int) -> None:
    """Add to a file what `source` holds behind as many bytes."""
    begin = file.seek(0, os.SEEK_END)
    if begin >= size:
        return
    with source.open("rb") as content:
        content.seek(begin)
        while (left := size - file.tell()) > 0 and (part := content.read(min(left, CHUNK_BYTES))):
            file.write(part)


def _hash(path: Path) -> Entry:
    digest = BlockHash()
    with path.open("rb") as file:
        while part := file.read(CHUNK_BYTES):
            digest.update(memoryview(part))
    return digest.entry()
