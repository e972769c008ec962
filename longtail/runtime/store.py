"""The model folder: written whole or not at all, checked before it is used, never unpickled.

A folder holds `config.json`, `weights.safetensors`, one `NAME.txt` for each list of texts, and
`manifest.json` with the size and SHA-256 of each of them. A save writes all of it into a new
folder `.NAME.tmp-XXXX` beside the target, the manifest last, makes it durable, and only then gives
it the target's name; so after a crash the target is the old model, the new one, or absent.

The safetensors format is read and written here and not by its library: a save has to hash and sync
what it writes in one pass and to see a full disk as such, a load has to parse the very bytes that
it has hashed, without a second copy of them.
"""

import ctypes
import errno
import hashlib
import json
import math
import operator
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.errors import LongtailError, ModelFileError
from longtail.version import __version__

if sys.platform != "win32":
    import fcntl

FORMAT_VERSION = 1

MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "weights.safetensors"
MARK = "longtail model"

MAX_MANIFEST_BYTES = 1 << 20
MAX_HEADER_BYTES = 100_000_000  # the limit that the safetensors format sets
CHUNK_BYTES = 1 << 22

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Bytes = bytes | memoryview


@dataclass
class Files:
    """What a model folder holds.

    Attributes:
        config: settings and small facts, as JSON knows them.
        arrays: numpy arrays by name; those of `read_folder` are views of one block of memory.
        texts: lists of strings by name, such as label names; any string survives.
    """

    config: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, Sequence[str]] = field(default_factory=dict)

    def nest(self, name: str, inner: "Files") -> None:
        """Take in the files of another model, which `inner(name)` gives back."""
        self.config.setdefault("inner", {})[name] = inner.config
        prefix = f"inner.{name}."
        self.arrays.update({prefix + key: array for key, array in inner.arrays.items()})
        self.texts.update({prefix + key: lines for key, lines in inner.texts.items()})

    def inner(self, name: str) -> "Files":
        """Return the files that were taken in as `name`; KeyError if there are none."""
        prefix = f"inner.{name}."

        def under(held: Mapping[str, Any]) -> dict[str, Any]:
            return {key.removeprefix(prefix): held[key] for key in held if key.startswith(prefix)}

        return Files(self.config["inner"][name], under(self.arrays), under(self.texts))


@dataclass(frozen=True)
class Verified:
    """A model folder that is whole: its file names, their size in all, and who wrote it."""

    files: list[str]
    n_bytes: int
    format_version: int
    longtail_version: str
    model_name: str


class _Entry(NamedTuple):
    """What the manifest says about one file."""

    size: int
    sha256: str


class _Manifest(NamedTuple):
    files: dict[str, _Entry]
    format_version: int
    longtail_version: str
    model_name: str


# ---------------------------------------------------------------------------------------- writing


def write_folder(path: str | Path, files: Files, *, overwrite: bool = False) -> None:
    """Save `files` as the model folder `path`, whole or not at all."""
    target = _absolute(path)
    _check_target(target, overwrite)
    contents = _contents(files)
    _remove_stale(target)
    try:
        with _temporary_folder(target) as folder:
            entries = {name: _write_file(folder / name, parts) for name, parts in contents.items()}
            _write_file(folder / MANIFEST, [_manifest(entries, files.config)])
            _sync_folder(folder)
            _check_target(target, overwrite)  # it may have changed while we were writing
            _move_in(folder, target)
    except OSError as error:
        raise LongtailError(_failure(target, error)) from error


def check_writable(path: str | Path, overwrite: bool = False) -> None:
    """Raise the error that saving to `path` would end in, before hours of work go into it."""
    target = _absolute(path)
    _check_target(target, overwrite)
    try:
        with _temporary_folder(target):
            pass
    except OSError as error:
        raise LongtailError(f"{target}: cannot write a model here: {_reason(error)}") from error


def _absolute(path: str | Path) -> Path:
    if "\0" in str(path):
        raise LongtailError(f"{str(path)!r}: a path cannot contain a null character")
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link at the end


def _check_target(target: Path, overwrite: bool) -> None:
    parent = target.parent
    if not parent.is_dir():
        problem = "is not a folder" if os.path.lexists(parent) else "does not exist"
        raise LongtailError(f"{target}: cannot write a model here: {parent} {problem}")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise LongtailError(
            f"{target}: already exists; choose another path, or replace it with overwrite=True"
        )
    if target.is_symlink():
        raise LongtailError(f"{target}: is a link; name the folder that it points to")
    _check_replaceable(target)


def _check_replaceable(target: Path) -> None:
    """Make sure that nothing but a longtail model, or an empty folder, is ever deleted."""
    if not target.is_dir():
        raise LongtailError(f"{target}: is not a folder, so it is not replaced")
    found = sorted(entry.name for entry in target.iterdir())
    if not found:
        return
    try:
        with _opened_folder(target) as folder:
            ours = _read_manifest_json(folder)["files"].keys() | {MANIFEST}
    except (ModelFileError, KeyError, AttributeError):
        raise LongtailError(f"{target}: is not a longtail model, so it is not replaced") from None
    foreign = [name for name in found if name not in ours]
    if foreign:
        raise LongtailError(
            f"{target}: holds '{foreign[0]}', which is no part of the model, "
            "so it is not replaced; move that file away first"
        )


def _contents(files: Files) -> dict[str, Iterable[Bytes]]:
    """Return each file's name and its bytes, in parts."""
    contents: dict[str, Iterable[Bytes]] = {
        CONFIG: [(json.dumps(files.config, indent=2, default=_plain) + "\n").encode()],
        WEIGHTS: _weights_parts(files.arrays),
    }
    for name, entries in files.texts.items():
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a file name in a model folder")
        contents[f"{name}.txt"] = [_text_bytes(entries)]
    return contents


def _plain(value: object) -> Any:
    """Turn numpy's numbers and arrays into what JSON knows."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"config holds a {type(value).__name__}, which JSON does not know: {value!r}")


def _manifest(entries: dict[str, _Entry], config: dict[str, Any]) -> bytes:
    manifest = {
        "format": MARK,
        "format_version": FORMAT_VERSION,
        "longtail_version": __version__,
        "model": str(config.get("model", "")),
        "files": {name: entry._asdict() for name, entry in entries.items()},
    }
    return (json.dumps(manifest, indent=2) + "\n").encode()


def _write_file(path: Path, parts: Iterable[Bytes]) -> _Entry:
    """Write a new file, make it durable, and return its size and hash."""
    size, digest = 0, hashlib.sha256()
    with path.open("xb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                _write_all(file.fileno(), chunk)
                digest.update(chunk)
            size += len(view)
        os.fsync(file.fileno())
    return _Entry(size, digest.hexdigest())


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while len(chunk):
        chunk = chunk[os.write(descriptor, chunk) :]


def _failure(target: Path, error: OSError) -> str:
    existed = os.path.lexists(target)
    kept = "what was there before is untouched" if existed else "nothing was left behind"
    return f"{target}: the model could not be saved: {_reason(error)}; {kept}"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


# ------------------------------------------------------ the temporary folder and its way into place


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Make and lock a folder beside `target`; whatever bears its name at the end is removed."""
    folder, lock = _make_temporary(target)
    try:
        yield folder
    finally:
        _remove(folder)
        _close(lock)


def _make_temporary(target: Path) -> tuple[Path, int | None]:
    while True:
        folder = target.parent / f".{target.name}.tmp-{secrets.token_hex(4)}"
        folder.mkdir()
        # Another save may take it for a stale one before the lock is ours: then make another.
        with suppress(BlockingIOError):
            lock = _lock(folder)
            if folder.exists():
                return folder, lock
            _close(lock)


def _lock(folder: Path) -> int | None:
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
        _close(descriptor)
        raise
    except OSError:
        _close(descriptor)
        return None
    return descriptor


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _remove_stale(target: Path) -> None:
    """Remove what killed saves to the same target left behind; a live one holds its lock."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"(tmp|old)-[0-9a-f]{8}")
    for folder in target.parent.iterdir():
        kind = pattern.fullmatch(folder.name)
        # Without the target an old one may be the only model there is.
        if not kind or (kind[1] == "old" and not target.exists()):
            continue
        with suppress(BlockingIOError):
            lock = _lock(folder)
            if lock is not None:
                _remove(folder)
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a flat folder as far as possible; a folder inside it, never ours, stays."""
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                entry.unlink()
        folder.rmdir()


def _move_in(folder: Path, target: Path) -> None:
    """Give the finished folder the target's name; undo that when it cannot be made durable."""
    move = _swap if os.path.lexists(target) else _rename
    back = _swap if move is _swap else _rename_back
    move(folder, target)
    try:
        _sync_folder(target.parent)
    except OSError:
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


def _sync_folder(folder: Path) -> None:
    """Make a folder's list of names durable, where a folder can be opened at all."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------- reading


def read_folder(path: str | Path) -> Files:
    """Load the model folder `path`, refusing it unless every byte is as it was saved."""
    with _opened_folder(Path(path)) as folder:
        manifest = _read_manifest(folder)
        files = Files()
        for name, entry in manifest.files.items():
            data = _read_checked(folder, name, entry)
            if name == CONFIG:
                files.config = _parse_json(data, folder.path / name)
            elif name == WEIGHTS:
                files.arrays = _parse_weights(data, folder.path / name)
            else:
                files.texts[name.removesuffix(".txt")] = _parse_text(data, folder.path / name)
    return files


def verify_folder(path: str | Path) -> Verified:
    """Return what the model folder `path` holds, or raise ModelFileError unless it is whole."""
    with _opened_folder(Path(path)) as folder:
        manifest = _read_manifest(folder)
        for name, entry in manifest.files.items():
            _read_checked(folder, name, entry, keep=False)
        n_bytes = sum(entry.size for entry in manifest.files.values())
        n_bytes += (folder.path / MANIFEST).stat().st_size
    return Verified(
        files=[*manifest.files, MANIFEST],
        n_bytes=n_bytes,
        format_version=manifest.format_version,
        longtail_version=manifest.longtail_version,
        model_name=manifest.model_name,
    )


class _Folder(NamedTuple):
    """An opened model folder; the descriptor stays with it even if its name goes to another."""

    path: Path
    descriptor: int | None


@contextmanager
def _opened_folder(path: Path) -> Iterator[_Folder]:
    descriptor = None
    try:
        if not path.is_dir():
            raise ModelFileError(f"{path}: {_why_no_folder(path)}")
        if os.open in os.supports_dir_fd:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        yield _Folder(path, descriptor)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {_reason(error)}") from error
    finally:
        _close(descriptor)


def _why_no_folder(path: Path) -> str:
    if path.exists():
        return "is a file; a model is a folder"
    old = sorted(path.absolute().parent.glob(f".{path.name}.old-????????"))
    if old:
        return f"an interrupted save left the model that was here in {old[-1]}; rename it back"
    return "no such model folder"


def _read_manifest(folder: _Folder) -> _Manifest:
    path = folder.path / MANIFEST
    found = _read_manifest_json(folder)
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
    try:
        entries = {
            str(name): _Entry(operator.index(entry["size"]), str(entry["sha256"]))
            for name, entry in found["files"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path}: its list of files is damaged") from error
    _check_names(folder, entries)
    return _Manifest(entries, version, writer, str(found.get("model", "")))


def _read_manifest_json(folder: _Folder) -> dict[str, Any]:
    path = folder.path / MANIFEST
    try:
        descriptor = _open_plain(folder, MANIFEST)
    except FileNotFoundError:
        raise ModelFileError(
            f"{folder.path}: is not a longtail model: it has no {MANIFEST}"
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{path}: is larger than any manifest can be")
    found = _parse_json(data, path)
    if found.get("format") != MARK:
        raise ModelFileError(f"{folder.path}: is not a longtail model: its {MANIFEST} is another's")
    return found


def _check_names(folder: _Folder, entries: dict[str, _Entry]) -> None:
    """Compare the manifest's list of files with those that are there."""
    for name in entries:
        known = name in (CONFIG, WEIGHTS) or name.endswith(".txt")
        if not known or not _PLAIN_NAME.fullmatch(name):
            raise ModelFileError(
                f"{folder.path / MANIFEST}: lists {name!r}, which is no model file"
            )
    listed = entries.keys() | {MANIFEST, CONFIG, WEIGHTS}
    with os.scandir(folder.path if folder.descriptor is None else folder.descriptor) as there:
        found = {entry.name for entry in there}
    if missing := sorted(listed - found) or sorted({CONFIG, WEIGHTS} - entries.keys()):
        raise ModelFileError(f"{folder.path}: the file '{missing[0]}' is missing")
    if extra := sorted(found - listed):
        raise ModelFileError(f"{folder.path}: '{extra[0]}' is no part of this model; remove it")


def _open_plain(folder: _Folder, name: str) -> int:
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
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be read: {_reason(error)}"
        raise ModelFileError(f"{folder.path / name}: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelFileError(f"{folder.path / name}: is not a plain file")
    return descriptor


def _read_checked(
    folder: _Folder, name: str, entry: _Entry, *, keep: bool = True
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


# ---------------------------------------------------------------------------- what is in the files


def _parse_json(data: Bytes | NDArray[np.uint8], path: Path) -> dict[str, Any]:
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds a JSON {type(value).__name__} instead of an object")
    return value


def _text_bytes(entries: Iterable[str]) -> bytes:
    """Return one line for each entry; a line break inside an entry is written as backslash + n."""
    lines = (
        entry.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "\n"
        for entry in entries
    )
    # surrogatepass: half a character, as broken file names bring it, survives too
    return "".join(lines).encode("utf-8", "surrogatepass")


def _parse_text(data: NDArray[np.uint8], path: Path) -> list[str]:
    try:
        text = str(data.data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not UTF-8: {error}") from error
    lines = text.split("\n")
    if lines.pop():
        raise ModelFileError(f"{path}: its last line has no end")
    return [_unescape(line) if "\\" in line else line for line in lines]


def _unescape(line: str) -> str:
    plain = {"\\n": "\n", "\\r": "\r"}
    return re.sub(r"\\.", lambda found: plain.get(found[0], found[0][1]), line)


def _weights_parts(arrays: dict[str, NDArray[Any]]) -> Iterator[Bytes]:
    """Yield the safetensors form of `arrays`: the header's length, the header, the values.

    Wide types come first, so that every array starts at a multiple of its own width.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        array = arrays[name]
        dtype = _DTYPE_NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise TypeError(f"the array '{name}' has a type that is not stored: {array.dtype}")
        start, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C", copy=False)
        yield little.reshape(-1).view(np.uint8).data


def _parse_weights(block: NDArray[np.uint8], path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file as views of the block of bytes that it is."""
    try:
        n_header = int.from_bytes(bytes(block[:8]), "little")
        if n_header > min(MAX_HEADER_BYTES, len(block) - 8):
            raise ValueError("the header is longer than the file")
        header = _parse_json(block[8 : 8 + n_header], path)
        header.pop("__metadata__", None)
        values = block[8 + n_header :]
        return {name: _array(values, **facts) for name, facts in header.items()}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{path}: is not a valid safetensors file: {error}") from error


def _array(
    values: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    start, end = data_offsets
    if not 0 <= start <= end <= len(values) or any(extent < 0 for extent in shape):
        raise ValueError(f"offsets {data_offsets} and shape {shape} do not fit the file")
    if math.prod(shape) * _DTYPES[dtype].itemsize != end - start:
        raise ValueError(f"shape {shape} of {dtype} does not take {end - start} bytes")
    return values[start:end].view(_DTYPES[dtype]).reshape(shape)
