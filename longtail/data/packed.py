"""Packed data sets: folders of arrays that are mapped, so that reading one takes no time.

`longtail-data.json` says how many values each array has; NAME.bin holds them, in the order of
bytes of most processors (little endian). A list of texts is two arrays, `text` (UTF-8, one behind
the other) and `start`; a sparse matrix is `start`, `columns` and, unless all are 1, `values`. So
are the words of the training texts, where they were asked for: `words` in `train.tokens`.

A folder may be a stranger's: sizes, starts and labels are checked when it is opened, the columns
and values of rows by `as_dataset` before compiled code sees them, and texts when they are read.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Dataset, Splits
from longtail.data.describe import Description, describe
from longtail.data.labels import MAX_FEATURES, MAX_LABELS, NumberedNames
from longtail.errors import DataError
from longtail.reading import ReadOptions, option_fields
from longtail.runtime.mapped import (
    BLOCK,
    Texts,
    WordsOfTexts,
    build_csr,
    cut_ends,
    encode_texts,
    map_file,
)
from longtail.runtime.parallel import in_threads
from longtail.runtime.store import fetch_folder
from longtail.runtime.store.atomic import move_in, remove_stale, sync_folder, temporary_folder
from longtail.storage import RemotePath, is_there
from longtail.version import __version__

MANIFEST = "longtail-data.json"
FORMAT, VERSION = "longtail data", 1
ROLES = ("train", "test")
WORDS, TOKENS = "words", "train.tokens"
BATCH = 8192  # documents
MOST_BYTES = 1 << 24  # of a manifest

_TYPES: dict[str, np.dtype[Any]] = {
    "text": np.dtype("u1"),
    "start": np.dtype("<i8"),
    "columns": np.dtype("<i4"),
    "values": np.dtype("<f4"),
}


# -- reading ----------------------------------------------------------------------------------


def find_packed(path: Path, options: ReadOptions) -> tuple[Path, str | None] | None:
    """Return the packed folder that a path names, and which split of it; None for other data."""
    if is_there(path) and is_there(path / MANIFEST):
        found, role = path, None
    elif path.name in ROLES and not path.exists() and is_there(path.parent / MANIFEST):
        found, role = path.parent, path.name
    else:
        return None
    for name in (each.name for each in option_fields()):
        if getattr(options, name) is not None:
            raise DataError(
                f"is packed, so that nothing is to be said about its {name}; leave out --{name}, "
                "or give it to longtail data pack",
                path=found,
            )
    if options.keep:
        raise DataError(
            "is packed, without the other columns of its source; leave out --keep, or give the "
            "source",
            path=found,
        )
    return fetch_folder(found) if isinstance(found, RemotePath) else found, role


def read_packed(folder: Path, role: str | None = None) -> Splits:
    """Map the splits of a packed folder, or only the one that `role` names, as the training one."""
    packed = _Packed(folder)
    if role is not None:
        return Splits(packed.split(role), None)
    return Splits(packed.split("train"), packed.split("test") if packed.has("test.Y") else None)


def packed_batches(folder: Path, role: str | None = None) -> Iterator[Dataset]:
    """Yield batches of the documents of a packed folder, of its test split if there are two."""
    splits = read_packed(folder, role)
    data = splits.train if splits.test is None else say_split(splits.test, folder)
    for first in range(0, len(data), BATCH):
        rows = slice(first, first + BATCH)
        n = min(BATCH, len(data) - first)
        yield Dataset(
            sp.csr_matrix(np.empty((n, 0), np.float32)),
            [],
            X=None if data.X is None else data.X[rows],
            texts=None if data.texts is None else data.texts[rows],
            ids=None if data.ids is None else data.ids[rows],
            read_as=data.read_as,
        )


def say_split(data: Dataset, folder: Path) -> Dataset:
    """Return the documents, which say that they are the test split of a folder."""
    said = f"these are the documents of the test split of {folder}"
    return replace(data, read_as=f"{said}; {data.read_as}" if data.read_as else said)


def read_description(path: Path, options: ReadOptions) -> Description | None:
    """Return what packing has counted, if the path is that of a packed folder."""
    packed = find_packed(path, options)
    if packed is None or packed[1] is not None:
        return None
    found = _Packed(packed[0])
    try:
        return Description.from_dict(found.manifest["description"])
    except (KeyError, TypeError, ValueError) as error:
        raise found.refuse(f"its description is not one ({error})") from None


class _Packed:
    """A packed folder, of which arrays are mapped as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = self._read_manifest()
        self.n_labels = self._count("labels", MAX_LABELS)
        self.arrays: Mapping[str, int] = self._expect("arrays", dict)
        kinds = (".text", ".start", ".columns", ".values")
        for name, n in self.arrays.items():
            if type(n) is not int or n < 0 or not name.endswith(kinds):
                raise self.refuse(f"its array {name!r:.40} has the length {n!r:.40}")

    @cached_property
    def label_names(self) -> Sequence[str]:
        """The names of labels, read when they are asked for."""
        return self._read_names("label_names", self.n_labels)

    def refuse(self, reason: str) -> DataError:
        """Return the error for a folder that cannot be read."""
        return DataError(
            f"is no sound packed data: {reason}; pack the data again (longtail data pack)",
            path=self.folder,
        )

    def has(self, part: str) -> bool:
        """Whether the folder holds a list of texts or a matrix."""
        return f"{part}.start" in self.arrays

    def split(self, role: str) -> Dataset:
        """Map one split."""
        if not self.has(f"{role}.Y"):
            raise DataError(f"holds no {role} split", path=self.folder)
        n = self.arrays[f"{role}.Y.start"] - 1
        Y = self._matrix(f"{role}.Y", n, self.n_labels)
        uris = self._read_names("label_uris", self.n_labels) if self.has("label_uris") else ()
        is_rows = self.has(f"{role}.X")
        width = self._count("features", MAX_FEATURES) if is_rows else 0
        words = self._read_names("feature_names", width) if self.has("feature_names") else None
        return Dataset(
            Y,
            self.label_names,
            X=self._matrix(f"{role}.X", n, width, check=False) if is_rows else None,
            texts=None if is_rows else self._texts_of_split(role, n),
            exclude=self._matrix(f"{role}.exclude", n, self.n_labels)
            if self.has(f"{role}.exclude")
            else None,
            feature_names=words if is_rows else None,
            ids=self._texts(f"{role}.ids", n) if self.has(f"{role}.ids") else None,
            label_uris={name: uri for name, uri in zip(self.label_names, uris, strict=False) if uri}
            or None,
            read_as=self._expect("read_as", str),
        )

    def _texts_of_split(self, role: str, n: int) -> Texts:
        texts = self._texts(f"{role}.texts", n)
        if role == "train" and self.has(TOKENS):
            names = self._texts(WORDS, self.arrays.get(f"{WORDS}.start", 0) - 1)
            ids = self._array(f"{TOKENS}.columns")
            start = self._starts(TOKENS, n, len(ids))
            texts.words = WordsOfTexts(names, start, ids, self._expect("word_rule", str))
        return texts

    def _read_manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            with self._open(MANIFEST) as file:
                held = json.loads(file.read(MOST_BYTES))
        except (ValueError, RecursionError):
            raise self.refuse(f"{path.name} is not JSON") from None
        if not isinstance(held, dict) or held.get("format") != FORMAT:
            raise self.refuse(f"{path.name} does not say 'format': '{FORMAT}'")
        if held.get("version") != VERSION:
            raise self.refuse(
                f"its format has the version {held.get('version')!r:.20}, and this longtail "
                f"reads version {VERSION}"
            )
        return held

    def _expect(self, name: str, kind: type) -> Any:
        value = self.manifest.get(name)
        if type(value) is not kind:
            raise self.refuse(f"{MANIFEST} has no '{name}'")
        return value

    def _count(self, name: str, most: int) -> int:
        n = self._expect(name, int)
        if not 0 <= n <= most:
            raise self.refuse(f"it has {n} {name}, and 0 to {most} are possible")
        return int(n)

    def _open(self, name: str) -> Any:
        """Open a file of the folder, and no link, pipe or device."""
        path = self.folder / name
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            number = os.open(path, flags | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise self.refuse(f"{name} is missing") from None
        except OSError as error:
            raise self.refuse(f"{name} cannot be read ({error.strerror})") from None
        file = os.fdopen(number, "rb")
        if not stat.S_ISREG(os.fstat(number).st_mode):
            file.close()
            raise self.refuse(f"{name} is not a file")
        return file

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self.arrays:
            raise self.refuse(f"the array {name} is missing")
        dtype, n = _TYPES[name.rpartition(".")[2]], self.arrays[name]
        with self._open(f"{name}.bin") as file:
            size = os.fstat(file.fileno()).st_size
            if size != n * dtype.itemsize:
                raise self.refuse(
                    f"{name}.bin has {size:,} bytes, and {n * dtype.itemsize:,} were written"
                )
            return map_file(file, dtype, n)

    def _starts(self, part: str, n: int, end: int) -> NDArray[np.int64]:
        start = self._array(f"{part}.start")
        blocks = range(0, n + 1, BLOCK)
        tasks = [(start[first : first + BLOCK + 1],) for first in blocks]
        if n < 0 or len(start) != n + 1 or start[0] != 0 or start[-1] != end:
            raise self.refuse(f"{part}.start does not lead through {part}")
        if not all(in_threads(_rises, tasks)):
            raise self.refuse(f"{part}.start does not rise")
        return start

    def _texts(self, part: str, n: int) -> Texts:
        letters = self._array(f"{part}.text")
        return Texts(letters, self._starts(part, n, len(letters)))

    def _read_names(self, part: str, n: int) -> Sequence[str]:
        """Return the names of labels or features; numbers, where labels have no names."""
        if part == "label_names" and not self.has(part):
            return NumberedNames(n)
        try:
            names = self._texts(part, n).as_list()
        except DataError as error:
            raise self.refuse(f"{part}: {error}") from None
        if part == "label_names" and len(set(names)) != n:
            raise self.refuse("two labels have the same name")
        return names

    def _matrix(self, part: str, n: int, width: int, *, check: bool = True) -> sp.csr_matrix:
        """Map a matrix; `check` for one whose columns are used before `as_dataset` sees it."""
        columns = self._array(f"{part}.columns")
        start = self._starts(part, n, len(columns))
        values = np.ones(len(columns), np.float32) if check else self._array(f"{part}.values")
        if len(values) != len(columns):
            raise self.refuse(f"{part} has {len(values)} values in {len(columns)} columns")
        if check:
            pieces = cut_ends(start[1:], BLOCK)
            tasks = [(start[a : b + 1], columns, width) for a, b in pieces]
            if not all(in_threads(_are_rows, tasks)):
                raise self.refuse(f"{part}.columns must rise in each row and be below {width}")
        return build_csr(values, columns, start, (n, width))


def _rises(start: NDArray[np.int64]) -> bool:
    return bool((start[1:] >= start[:-1]).all())


def _are_rows(start: NDArray[np.int64], columns: NDArray[np.int32], width: int) -> bool:
    """Whether the columns of some rows are in order, each once and below `width`."""
    own = columns[start[0] : start[-1]]
    if not len(own):
        return True
    rises = own[1:] > own[:-1]
    borders = start[1:-1] - start[0] - 1  # where a row ends, the next may begin anywhere
    rises[borders[(borders >= 0) & (borders < len(rises))]] = True
    return bool(own.min() >= 0 and own.max() < width and rises.all())


# -- writing ----------------------------------------------------------------------------------


FindWords = Callable[[Sequence[str]], WordsOfTexts]


def write_packed(splits: Splits, out: Path, find_words: FindWords | None = None) -> None:
    """Write splits that share their labels to the new folder `out`, whole or not at all.

    With `find_words`, the words of training texts are written, too.
    """
    if os.path.lexists(out):
        raise DataError("exists already; choose another name or remove it", path=out)
    try:
        remove_stale(out)
        with temporary_folder(out) as folder:
            writer = _Writer(folder)
            writer.write(splits, find_words)
            move_in(folder, out)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", path=out) from None


class _Writer:
    """Writes arrays into a folder, and at last the manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, int] = {}

    def write(self, splits: Splits, find_words: FindWords | None) -> None:
        """Write everything."""
        train = splits.train
        if not isinstance(train.label_names, NumberedNames) or not train.label_names.are_numbers:
            self._add_texts("label_names", train.label_names)
        if train.label_uris:
            uris = train.label_uris
            self._add_texts("label_uris", [uris.get(name, "") for name in train.label_names])
        if train.feature_names is not None:
            self._add_texts("feature_names", train.feature_names)
        for role, data in zip(ROLES, splits, strict=True):
            if data is not None:
                self._add_split(role, data)
        rule = None
        if find_words is not None and train.texts is not None:
            rule = self._add_words(find_words(train.texts))
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "longtail": __version__,
            "documents": "texts" if train.X is None else "rows",
            "labels": train.n_labels,
            "features": 0 if train.X is None else int(train.X.shape[1]),
            "read_as": train.read_as,
            **({} if rule is None else {"word_rule": rule}),
            "arrays": self.arrays,
            "description": describe(splits).as_dict(),
        }
        with (self.folder / MANIFEST).open("x", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.folder)

    def _add_split(self, role: str, data: Dataset) -> None:
        self._add_matrix(f"{role}.Y", data.Y)
        if data.exclude is not None:
            self._add_matrix(f"{role}.exclude", data.exclude)
        if data.ids is not None:
            self._add_texts(f"{role}.ids", data.ids)
        if data.X is not None:
            self._add_matrix(f"{role}.X", data.X)
            self._add(f"{role}.X.values", [data.X.data])
        else:
            self._add_texts(f"{role}.texts", data.texts or ())

    def _add_words(self, words: WordsOfTexts) -> str:
        self._add_texts(WORDS, words.names)
        self._add(f"{TOKENS}.start", [words.start])
        self._add(f"{TOKENS}.columns", [words.ids])
        return words.rule

    def _add_matrix(self, part: str, matrix: sp.csr_matrix) -> None:
        self._add(f"{part}.start", [matrix.indptr])
        self._add(f"{part}.columns", [matrix.indices])

    def _add_texts(self, part: str, texts: Sequence[str]) -> None:
        if isinstance(texts, Texts) and texts.rows is None:
            self._add(f"{part}.text", [texts.letters])
            self._add(f"{part}.start", [texts.start])
            return
        sizes = [np.zeros(1, np.int64)]

        def encode() -> Iterator[NDArray[Any]]:
            for first in range(0, len(texts), BATCH):
                letters, own = encode_texts(texts[first : first + BATCH])
                sizes.append(own)
                yield np.frombuffer(letters, np.uint8)

        self._add(f"{part}.text", encode())
        self._add(f"{part}.start", [np.cumsum(np.concatenate(sizes))])

    def _add(self, name: str, parts: Sequence[NDArray[Any]] | Iterator[NDArray[Any]]) -> None:
        dtype, n = _TYPES[name.rpartition(".")[2]], 0
        with (self.folder / f"{name}.bin").open("xb") as file:
            for part in parts:
                for first in range(0, len(part), BLOCK):
                    block = part[first : first + BLOCK].astype(dtype, copy=False)
                    file.write(np.ascontiguousarray(block).data)
                n += len(part)
            file.flush()
            os.fsync(file.fileno())
        self.arrays[name] = n
