"""The model folder: written whole or not at all, checked before it is used, never unpickled.

A folder holds `config.json`, `weights.safetensors`, one `NAME.txt` for each list of texts, and
`manifest.json` with the size and SHA-256 of each of them; a card beside them is for people. A save
writes all of it into a new folder beside the target, the manifest last, makes it durable, and only
then gives it the target's name; so after a crash the target is the old model, the new one, or
absent.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import LongtailError, ModelFileError
from longtail.runtime.store.atomic import (
    Identity,
    find_old,
    identify,
    move_in,
    remove_stale,
    sync_folder,
    temporary_folder,
)
from longtail.runtime.store.manifest import (
    CARD,
    CARD_PAGE,
    CHUNK_BYTES,
    CONFIG,
    MANIFEST,
    PLAIN_NAME,
    WEIGHTS,
    BlockHash,
    Entry,
    Manifest,
    OpenFolder,
    Result,
    parse_json,
    read_card_json,
    read_checked,
    read_manifest,
    read_manifest_json,
    read_settled,
    reason_of,
    write_manifest,
)
from longtail.runtime.store.published import check_publishable, publish, read_published
from longtail.runtime.store.safetensors import encode_arrays, parse_arrays
from longtail.storage import RemotePath, as_place

Bytes = bytes | memoryview


@dataclass
class Files:
    """What a model folder holds.

    Attributes:
        config: settings and small facts, as JSON knows them.
        arrays: numpy arrays by name; those of `read_folder` are views of one block of memory, or
            of the file itself, whose pages all processes share until one writes into them.
        texts: lists of strings by name, such as label names; any string survives.
        card: where the model comes from, as its folder says; None if it has no card.
    """

    config: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, Sequence[str]] = field(default_factory=dict)
    card: dict[str, Any] | None = None

    @property
    def n_bytes(self) -> int:
        """How many bytes a folder with these files has, but for its manifest."""
        texts = sum(len(encode_text(entries)) for entries in self.texts.values())
        arrays = sum(array.nbytes for array in self.arrays.values())
        return arrays + texts + len(json.dumps(self.config, indent=2, default=_plain))

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


# ---------------------------------------------------------------------------------------- writing


def write_folder(
    path: str | Path,
    files: Files,
    *,
    overwrite: bool = False,
    make_card: Callable[[int], tuple[str, str]] | None = None,
) -> None:
    """Save `files` as the model folder `path`, whole or not at all.

    `make_card` returns the card as JSON and as a page, given how many bytes the model has.
    """
    place = as_place(path)
    if isinstance(place, RemotePath):
        write = partial(write_folder, files=files, make_card=make_card)
        publish(write, place, overwrite=overwrite)
        return
    target = _absolute(path)
    contents = _contents(files)
    before, new = None, None
    try:
        before = identify(target)
        _check_target(target, overwrite)
        remove_stale(target)
        with temporary_folder(target) as folder:
            entries = {name: _write_file(folder / name, parts) for name, parts in contents.items()}
            if make_card is not None:
                card = make_card(sum(entry.size for entry in entries.values()))
                for name, text in zip((CARD, CARD_PAGE), card, strict=True):
                    _write_file(folder / name, [text.encode("utf-8", "backslashreplace")])
            _write_file(folder / MANIFEST, [write_manifest(entries, files.config)])
            sync_folder(folder)
            _check_target(target, overwrite)  # it may have changed while we were writing
            new = identify(folder)
            move_in(folder, target)
    except OSError as error:
        kept = _say_what_is_there(target, before, new)
        raise LongtailError(
            f"{target}: the model could not be saved: {reason_of(error)}; {kept}"
        ) from error


def check_writable(path: str | Path, overwrite: bool = False) -> None:
    """Raise the error that saving to `path` would end in, before hours of work go into it."""
    place = as_place(path)
    if isinstance(place, RemotePath):
        check_publishable(place, overwrite)
        return
    target = _absolute(path)
    try:
        _check_target(target, overwrite)
        with temporary_folder(target):
            pass
    except OSError as error:
        raise LongtailError(f"{target}: cannot write a model here: {reason_of(error)}") from error


def _absolute(path: str | Path) -> Path:
    if "\0" in str(path):
        raise LongtailError(f"{str(path)!r}: a path cannot contain a null character")
    return Path(os.path.abspath(as_place(path)))  # noqa: PTH100 - resolve() would follow a link at the end


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
        listed = read_settled(target, read_manifest_json)["files"].keys()
    except (ModelFileError, KeyError, AttributeError):
        raise LongtailError(f"{target}: is not a longtail model, so it is not replaced") from None
    ours = listed | {MANIFEST, CARD, CARD_PAGE}
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
        WEIGHTS: encode_arrays(files.arrays),
    }
    for name, entries in files.texts.items():
        if not PLAIN_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a file name in a model folder")
        contents[f"{name}.txt"] = [encode_text(entries)]
    return contents


def to_json(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings as reading gives them back, such as lists in place of tuples."""
    found: dict[str, Any] = json.loads(json.dumps(config, default=_plain))
    return found


def _plain(value: object) -> Any:
    """Turn numpy's numbers and arrays into what JSON knows."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"config holds a {type(value).__name__}, which JSON does not know: {value!r}")


def _write_file(path: Path, parts: Iterable[Bytes]) -> Entry:
    """Write a new file, make it durable, and return its size and hash."""
    digest = BlockHash()
    with path.open("xb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                _write_all(file.fileno(), chunk)
                digest.update(chunk)
        os.fsync(file.fileno())
    return digest.entry()


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while len(chunk):
        chunk = chunk[os.write(descriptor, chunk) :]


def _say_what_is_there(target: Path, before: Identity | None, new: Identity | None) -> str:
    """Say which model bears the target's name after a save that failed, early or late."""
    try:
        now, old = identify(target), find_old(target)
    except OSError:
        return "which model is there now cannot be told"
    if now is None:
        return "no model is there" if old is None else f"what was there before is in {old}"
    if now == new:
        return "the new model is there, but may be lost if the power fails now"
    return "what was there before is untouched" if now == before else "another process replaced it"


# ---------------------------------------------------------------------------------------- reading


def read_folder(path: str | Path) -> Files:
    """Load the model folder `path`, refusing it unless every byte is as it was saved."""
    return _read(path, _read_files)


def read_card(path: str | Path) -> tuple[Manifest, dict[str, Any] | None]:
    """Return the manifest and the card of the model folder `path`, without reading the model."""
    return _read(path, lambda folder: (read_manifest(folder), read_card_json(folder)))


def _read(path: str | Path, read: Callable[[OpenFolder], Result]) -> Result:
    """Return what `read` makes of a model folder, or of the copy of one at a URL."""
    place = as_place(path)
    if isinstance(place, RemotePath):
        return read_published(place, read)
    return read_settled(place, read)


def _read_files(folder: OpenFolder) -> Files:
    files = Files(card=read_card_json(folder))
    for name, entry in read_manifest(folder).files.items():
        data = read_checked(folder, name, entry)
        if name == CONFIG:
            files.config = parse_json(data, folder.path / name)
        elif name == WEIGHTS:
            files.arrays = parse_arrays(data, folder.path / name)
        else:
            files.texts[name.removesuffix(".txt")] = parse_text(data, folder.path / name)
    return files


def verify_folder(path: str | Path) -> Verified:
    """Return what the model folder `path` holds, or raise ModelFileError unless it is whole."""
    return _read(path, _verify_files)


def _verify_files(folder: OpenFolder) -> Verified:
    manifest = read_manifest(folder)
    for name, entry in manifest.files.items():
        read_checked(folder, name, entry, keep=False)
    n_bytes = sum(entry.size for entry in manifest.files.values())
    n_bytes += (folder.path / MANIFEST).stat().st_size
    return Verified(
        files=[*manifest.files, MANIFEST],
        n_bytes=n_bytes,
        format_version=manifest.format_version,
        longtail_version=manifest.longtail_version,
        model_name=manifest.model_name,
    )


# ------------------------------------------------------------------------------------------ texts


def encode_text(entries: Iterable[str]) -> bytes:
    """Return one line for each entry; a line break inside an entry is written as backslash + n."""
    lines = (
        entry.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "\n"
        for entry in entries
    )
    # surrogatepass: half a character, as broken file names bring it, survives too
    return "".join(lines).encode("utf-8", "surrogatepass")


def parse_text(data: NDArray[np.uint8], path: Path) -> list[str]:
    """Return the entries that `encode_text` wrote."""
    try:
        text = str(data.data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not UTF-8: {error}") from error
    lines, is_plain = text.split("\n"), "\\" not in text
    if lines.pop():
        raise ModelFileError(f"{path}: its last line has no end")
    if is_plain:
        return lines
    return [_unescape(line) if "\\" in line else line for line in lines]


def _unescape(line: str) -> str:
    plain = {"\\n": "\n", "\\r": "\r"}
    return re.sub(r"\\.", lambda found: plain.get(found[0], found[0][1]), line)
