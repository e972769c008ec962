"""The manifest: which files a model folder holds, with the size and SHA-256 of each.

`card.json` and `card.md` say where a model comes from. They are no part of what is loaded, so the
manifest does not list them: it is the same for the same model, whenever that was trained.

A folder is opened once and all its files are read through that descriptor, so that a folder which
is replaced in between is still read as one version. If it was replaced and removed before all was
read, it is read again.
"""

import errno
import hashlib
import io
import json
import mmap
import operator
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ModelFileError
from longtail.runtime.parallel import in_threads
from longtail.runtime.store.atomic import find_old, identify
from longtail.version import __version__

FORMAT_VERSION = 4

MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "weights.safetensors"
CARD = "card.json"
CARD_PAGE = "card.md"
FORMAT_NAME = "longtail model"

MAX_MANIFEST_BYTES = 1 << 20
CHUNK_BYTES = 1 << 22
BLOCK_BYTES = 1 << 24  # that are hashed together
MAPPED_BYTES = 1 << 20  # from which a file is mapped and not read
MOST_READINGS = 100  # of a folder that is replaced again and again while it is read
SWAP_SECONDS = 1.0  # that a replacement may leave a path without a folder
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


Result = TypeVar("Result")


class Entry(NamedTuple):
    """What the manifest says about one file.

    Attributes:
        size: its bytes.
        sha256: the hashes of its blocks of `BLOCK_BYTES`, one behind the other, so that several
            can be computed at once; of a small file that is its own.
    """

    size: int
    sha256: str


class BlockHash:
    """The size and the hash of bytes that come in parts."""

    def __init__(self) -> None:
        """Begin with none."""
        self._size = 0
        self._digests = [hashlib.sha256()]

    def update(self, part: memoryview) -> None:
        """Take in the next part."""
        while len(part):
            room = BLOCK_BYTES - self._size % BLOCK_BYTES
            if room == BLOCK_BYTES and self._size:
                self._digests.append(hashlib.sha256())
            self._digests[-1].update(part[:room])
            self._size += len(part[:room])
            part = part[room:]

    def entry(self) -> Entry:
        """Return what the manifest says about them."""
        return Entry(self._size, "".join(digest.hexdigest() for digest in self._digests))


class Manifest(NamedTuple):
    """The files of a model folder, and who wrote it."""

    files: dict[str, Entry]
    format_version: int
    longtail_version: str
    model_name: str


def write_manifest(entries: dict[str, Entry], config: dict[str, Any]) -> bytes:
    """Return the manifest of a model with this config, ready to be written."""
    manifest = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "longtail_version": __version__,
        "model": str(config.get("model", "")),
        "package": str(config.get("package", "longtail")),
        "files": {name: entry._asdict() for name, entry in entries.items()},
    }
    return (json.dumps(manifest, indent=2) + "\n").encode()


class OpenFolder(NamedTuple):
    """An opened model folder; the descriptor stays with it even if its name goes to another."""

    path: Path
    descriptor: int | None


def read_settled(path: Path, read: Callable[[OpenFolder], Result]) -> Result:
    """Return what `read` makes of a model folder; begin again if it is replaced meanwhile."""
    for _ in range(MOST_READINGS - 1):
        before = _identify_settled(path)
        try:
            with opened_folder(path) as folder:
                return read(folder)
        except ModelFileError:
            if _identify_settled(path) == before:
                raise
    with opened_folder(path) as folder:
        return read(folder)


def _identify_settled(path: Path) -> object:
    """Identify a folder, once a replacement that leaves none for a moment is over."""
    end = time.monotonic() + SWAP_SECONDS
    try:
        while (found := identify(path)) is None and find_old(path) and time.monotonic() < end:
            time.sleep(0.002)
    except (OSError, ValueError):  # opening it will say why
        return None
    return found


@contextmanager
def opened_folder(path: Path) -> Iterator[OpenFolder]:
    """Open a model folder; raise ModelFileError where that, or reading in it, fails."""
    descriptor = None
    try:
        if not path.is_dir():
            raise ModelFileError(f"{path}: {_why_no_folder(path)}")
        if os.open in os.supports_dir_fd:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        yield OpenFolder(path, descriptor)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {reason_of(error)}") from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _why_no_folder(path: Path) -> str:
    if path.exists():
        return "is a file; a model is a folder"
    if old := find_old(path):
        return f"an interrupted save left the model that was here in {old}; rename it back"
    return "no such model folder"


def read_manifest(folder: OpenFolder) -> Manifest:
    """Read the manifest, and check that the folder holds the files it lists and no others."""
    manifest = _understand(read_manifest_json(folder), folder.path)
    _check_there(folder, manifest.files)
    return manifest


def parse_manifest(data: bytes, folder: Path) -> Manifest:
    """Return what the manifest of a folder says, which is named in errors."""
    found = parse_json(data, folder / MANIFEST)
    _check_format(found, folder)
    return _understand(found, folder)


def _understand(found: dict[str, Any], folder: Path) -> Manifest:
    """Check a manifest as it stands."""
    path = folder / MANIFEST
    version = found.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path}: has no valid format_version")
    writer = str(found.get("longtail_version", "of unknown version"))
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder}: was written by longtail {writer} in model format {version}; this is "
            f"longtail {__version__}, which reads formats up to {FORMAT_VERSION}; "
            "install a newer longtail"
        )
    if version < FORMAT_VERSION:
        raise ModelFileError(
            f"{folder}: was written by longtail {writer} in the older model format {version}, "
            "which this version does not read; train the model again"
        )
    try:
        entries = {
            str(name): Entry(operator.index(entry["size"]), str(entry["sha256"]))
            for name, entry in found["files"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path}: its list of files is damaged") from error
    _check_names(folder, entries)
    return Manifest(entries, version, writer, str(found.get("model", "")))


def read_manifest_json(folder: OpenFolder) -> dict[str, Any]:
    """Return the manifest as it stands, of any format version."""
    path = folder.path / MANIFEST
    try:
        descriptor = _open_plain(folder, MANIFEST)
    except FileNotFoundError:
        raise ModelFileError(
            f"{folder.path}: is not a longtail model: it has no {MANIFEST}"
        ) from None
    found = _parse_small(descriptor, path, "manifest")
    _check_format(found, folder.path)
    return found


def _check_format(found: dict[str, Any], folder: Path) -> None:
    if found.get("format") != FORMAT_NAME:
        raise ModelFileError(f"{folder}: is not a longtail model: its {MANIFEST} is another's")


def read_card_json(folder: OpenFolder) -> dict[str, Any] | None:
    """Return the card as it stands, or None if the folder has none."""
    try:
        descriptor = _open_plain(folder, CARD)
    except FileNotFoundError:
        return None
    return _parse_small(descriptor, folder.path / CARD, "card")


def _parse_small(descriptor: int, path: Path, what: str) -> dict[str, Any]:
    """Read an opened JSON file that is small, or else not what it should be."""
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{path}: is larger than any {what} can be")
    return parse_json(data, path)


def _check_names(folder: Path, entries: dict[str, Entry]) -> None:
    """Make sure that a manifest lists files that a model may have, under names of files."""
    for name in entries:
        known = name in (CONFIG, WEIGHTS) or name.endswith(".txt")
        if not known or not PLAIN_NAME.fullmatch(name):
            raise ModelFileError(f"{folder / MANIFEST}: lists {name!r}, which is no model file")


def _check_there(folder: OpenFolder, entries: dict[str, Entry]) -> None:
    """Compare the manifest's list of files with those that are there."""
    listed = entries.keys() | {MANIFEST, CONFIG, WEIGHTS}
    with os.scandir(folder.path if folder.descriptor is None else folder.descriptor) as there:
        found = {entry.name for entry in there}
    if missing := sorted(listed - found) or sorted({CONFIG, WEIGHTS} - entries.keys()):
        raise ModelFileError(f"{folder.path}: the file '{missing[0]}' is missing")
    if extra := sorted(found - listed - {CARD, CARD_PAGE}):
        raise ModelFileError(f"{folder.path}: '{extra[0]}' is no part of this model; remove it")


def _open_plain(folder: OpenFolder, name: str) -> int:
    """Open a file for reading, unless it is a link or anything else that is not a plain file."""
    where = folder.path / name if folder.descriptor is None else name
    # O_NONBLOCK, so that a pipe in place of a file cannot make us wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0)
    try:
        if folder.descriptor is None and (folder.path / name).is_symlink():
            raise OSError(errno.ELOOP, "is a link")
        descriptor = os.open(where, flags, dir_fd=folder.descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        reason = "is a link" if is_link else f"cannot be read: {reason_of(error)}"
        raise ModelFileError(f"{folder.path / name}: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelFileError(f"{folder.path / name}: is not a plain file")
    return descriptor


def read_checked(
    folder: OpenFolder, name: str, entry: Entry, *, keep: bool = True
) -> NDArray[np.uint8]:
    """Check a file's size and hash; return the very bytes that were hashed, if they are wanted.

    A large file is mapped, so that processes which read the same one share its memory.
    """
    path = folder.path / name
    with os.fdopen(_open_plain(folder, name), "rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        size = facts.st_size
        if size != entry.size:
            raise ModelFileError(f"{path}: has {size:,} bytes instead of the {entry.size:,} saved")
        mapped = _map(file) if keep and size >= MAPPED_BYTES and _is_ours(facts) else None
        block = mapped if mapped is not None else _allocate(size if keep else 0, path)
        one_reads = Lock()

        def read(first: int) -> str:
            last = min(first + BLOCK_BYTES, size)
            part = block[first:last] if keep else np.empty(last - first, np.uint8)
            if mapped is None:
                with one_reads:
                    _fill(part, file, first, path)
            return hashlib.sha256(part.data).hexdigest()

        found = in_threads(read, [(first,) for first in range(0, max(size, 1), BLOCK_BYTES)])
    if "".join(found) != entry.sha256:
        raise ModelFileError(f"{path}: was altered since it was saved (its SHA-256 differs)")
    return block


def _fill(part: NDArray[np.uint8], file: io.FileIO, first: int, path: Path) -> None:
    """Read what the file holds from `first` on."""
    file.seek(first)
    n_read = 0
    while n_read < len(part):
        n_new = file.readinto(part[n_read:].data)
        if not n_new:
            raise ModelFileError(f"{path}: ends after {first + n_read:,} bytes")
        n_read += n_new


def _is_ours(facts: os.stat_result) -> bool:
    """Whether only this user or the system's can change a file, which is safe to map then.

    What changes in a mapped file changes in memory, after it was checked.
    """
    if sys.platform == "win32":  # where a mapped file cannot be replaced
        return False
    others_write = facts.st_mode & stat.S_IWOTH
    group_writes = facts.st_mode & stat.S_IWGRP and facts.st_gid != os.getegid()
    return facts.st_uid in (0, os.geteuid()) and not others_write and not group_writes


def _map(file: io.FileIO) -> NDArray[np.uint8] | None:
    """Map a file into memory; None where that cannot be done."""
    try:
        # It can be written in memory, so that compiled code meets no further type of arrays.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):
        return None
    if hasattr(mmap, "MADV_WILLNEED"):
        with suppress(OSError):
            mapped.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapped, np.uint8)


def _allocate(size: int, path: Path) -> NDArray[np.uint8]:
    try:
        return np.empty(size, dtype=np.uint8)
    except MemoryError as error:
        raise ModelFileError(f"{path}: its {size:,} bytes do not fit into memory") from error


def reason_of(error: OSError) -> str:
    """Return what went wrong, in the system's words."""
    return error.strerror or str(error) or type(error).__name__


def parse_json(data: bytes | NDArray[np.uint8], path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds a JSON {type(value).__name__} instead of an object")
    return value
