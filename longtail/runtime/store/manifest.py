"""The manifest: which files a model folder holds, with the size and SHA-256 of each.

`card.json` and `card.md` say where a model comes from. They are no part of what is loaded, so the
manifest does not list them: it is the same for the same model, whenever that was trained.

A folder is opened once and all its files are read through that descriptor, so that a folder which
is replaced in between is still read as one version. If it was replaced and removed before all was
read, it is read again.
"""

import errno
import hashlib
import json
import operator
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ModelFileError
from longtail.runtime.store.atomic import find_old, identify
from longtail.version import __version__

FORMAT_VERSION = 3

MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "weights.safetensors"
CARD = "card.json"
CARD_PAGE = "card.md"
FORMAT_NAME = "longtail model"

MAX_MANIFEST_BYTES = 1 << 20
CHUNK_BYTES = 1 << 22
MOST_READINGS = 100  # of a folder that is replaced again and again while it is read
SWAP_SECONDS = 1.0  # that a replacement may leave a path without a folder
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


Result = TypeVar("Result")


class Entry(NamedTuple):
    """What the manifest says about one file."""

    size: int
    sha256: str


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
    path = folder.path / MANIFEST
    found = read_manifest_json(folder)
    version = found.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path}: has no valid format_version")
    writer = str(found.get("longtail_version", "of unknown version"))
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder.path}: was written by longtail {writer} in model format {version}; this is "
            f"longtail {__version__}, which reads formats up to {FORMAT_VERSION}; "
            "upgrade with: pip install --upgrade longtail"
        )
    if version < FORMAT_VERSION:
        raise ModelFileError(
            f"{folder.path}: was written by longtail {writer} in the older model format {version}, "
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
    if found.get("format") != FORMAT_NAME:
        raise ModelFileError(f"{folder.path}: is not a longtail model: its {MANIFEST} is another's")
    return found


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


def _check_names(folder: OpenFolder, entries: dict[str, Entry]) -> None:
    """Compare the manifest's list of files with those that are there."""
    for name in entries:
        known = name in (CONFIG, WEIGHTS) or name.endswith(".txt")
        if not known or not PLAIN_NAME.fullmatch(name):
            raise ModelFileError(
                f"{folder.path / MANIFEST}: lists {name!r}, which is no model file"
            )
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
    """Check a file's size and hash; return the very bytes that were hashed, if they are wanted."""
    path, digest, n_read = folder.path / name, hashlib.sha256(), 0
    with os.fdopen(_open_plain(folder, name), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.size:
            raise ModelFileError(f"{path}: has {size:,} bytes instead of the {entry.size:,} saved")
        block = _allocate(size if keep else min(size, CHUNK_BYTES), path)
        while n_read < size:
            start = n_read if keep else 0
            view = block.data[start : start + CHUNK_BYTES]
            n_new = file.readinto(view)
            if not n_new:
                raise ModelFileError(f"{path}: ends after {n_read:,} of its {size:,} bytes")
            digest.update(view[:n_new])
            n_read += n_new
    if digest.hexdigest() != entry.sha256:
        raise ModelFileError(f"{path}: was altered since it was saved (its SHA-256 differs)")
    return block


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
