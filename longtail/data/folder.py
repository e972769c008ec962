r"""Data sets on disk: a file, or a folder with a training split and perhaps a test split.

A folder that `longtail data pack` wrote is mapped as it is (see packed.py). Any other is looked at
in this order:

1. `*_data.txt` with `*_trSplit.txt` and `*_tstSplit.txt`: the repository's small sets, ten splits
   as columns of row numbers that count from 1;
2. `trn_X_Xf.txt` with `trn_X_Y.txt`, and the same with `tst`, unless `trn.json` lies there too;
3. `train_texts.txt` with `train_labels.txt`, and the same with `test`;
4. `NAME.txt` with `NAME.tsv` or `NAME.key`: a full text corpus of Annif (see annif.py);
5. the files named train, trn or training, and those named test or tst, in any format of a single
   file (`trn.json` of the repository's raw texts among them), or those in folders of such names; or
   else the only file that can be read at all. Files named valid, validation, val or dev are left
   alone: load them by themselves.

Files whose names differ only in numbers, or that all end in `.parquet`, are parts of one split; so
are the files that a pattern such as `data/*.csv` names. Every file may be packed and then ends in
`.gz`, `.bz2`, `.xz` or `.zst`. Names of labels are taken from the same folder (see labels.py).
There, `feature_names.txt` names the columns of feature rows, one a line, `filter_labels_train.txt`
and `filter_labels_test.txt` give the pairs of document and label that must never be predicted.
"""

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.annif import find_full_texts, full_text_documents
from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import (
    Format,
    TextFile,
    choose_format,
    collect,
    read_file,
    read_parallel,
    read_texts,
    recognize,
    refuse_plain,
)
from longtail.data.frames import is_frame, read_frame, read_frames
from longtail.data.labels import (
    NO_LABELS,
    LabelSpace,
    NumberedNames,
    find_label_names,
    is_uri,
    order_labels,
)
from longtail.data.packed import find_packed, packed_batches, read_packed
from longtail.data.source import PACKED_ENDINGS, Source, drop_packed, find_file
from longtail.data.spool import space_in_files
from longtail.errors import DataError
from longtail.reading import ANYTHING, ReadOptions
from longtail.runtime.mapped import MatrixWriter

Rows = tuple[sp.csr_matrix, sp.csr_matrix]
ReadTexts = Callable[[LabelSpace], TextFile]

_ROLES = {
    "train": ("train", "trn", "training"),
    "test": ("test", "tst"),
    "other": ("valid", "validation", "val", "dev"),
}
# How a folder holds a data set, for those who make one.
LAYOUTS = {
    "training and test files": "train.csv and test.csv, or train.jsonl, trn.json.gz, …; or folders "
    "train and test; several parts of a split are numbered: train-1.parquet, train-2.parquet",
    "parallel files": "train_texts.txt with train_labels.txt, and the same with test",
    "full texts of Annif": "NAME.txt with NAME.tsv (a URI, a tab and a label a line) or NAME.key "
    "(a label a line)",
    "XC matrices": "trn_X_Xf.txt with trn_X_Y.txt, and the same with tst",
    "XC small sets": "X_data.txt with X_trSplit.txt and X_tstSplit.txt",
    "XC raw texts": "trn.json.gz, tst.json.gz, lbl.json.gz, filter_labels_test.txt",
    "packed data": "what longtail data pack writes; FOLDER/train and FOLDER/test are its splits",
}
FEATURE_NAMES = "feature_names.txt"
MEMORY_A_BYTE = 1.5  # bytes of memory that a byte of a file becomes, about
UNPACKED = 4  # bytes that a byte of a packed file becomes, about
_PACKED = r"(\.gz|\.bz2|\.xz|\.zst)?"
_BESIDE = re.compile(
    rf"(label_names\.(txt|tsv)|lbl\.json|filter_labels_\w+\.txt|feature_names\.txt){_PACKED}"
)
_TEXTS = re.compile(rf"(?P<before>.*[_.-])texts?(?P<after>\.txt{_PACKED})?")
_SMALL = re.compile(rf".*_data\.txt{_PACKED}")
_MATRIX = re.compile(rf"(?P<role>trn|tst)_X_Xf\.txt{_PACKED}")


def load(
    data: Any,
    *,
    text: str | Sequence[str] | None = None,
    labels: str | None = None,
    id: str | None = None,
    separator: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    format: str | None = None,
    keep: bool = False,
    split: int = 0,
) -> Splits:
    """Read a data set; its format is recognized, and which column is what is guessed by name.

    Args:
        data: a file, a folder, a pattern such as `data/*.csv`, `-` for standard input; or a frame
            of pandas or polars, a table of pyarrow, a data set of Hugging Face. A single file is
            the training split, and there is no test split.
        text: the column with the text, or several to be joined.
        labels: the column with the labels.
        id: the column with the documents' ids.
        separator: what stands between the labels of a cell, "none" if each is one label.
        delimiter: what stands between the cells of a CSV file.
        encoding: the encoding of the text.
        format: one of `documents.FORMATS`, where recognizing it does not do.
        keep: keep all columns in `Dataset.columns`.
        split: which of the ten divisions of the repository's small sets to take.
    """
    options = ReadOptions(text, labels, id, separator, delimiter, encoding, format, keep)
    return read_splits(data, options, split)


def read_splits(data: Any, options: ReadOptions = ANYTHING, split: int = 0) -> Splits:
    """Do what `load` does, with its options in one object."""
    if is_frame(data):
        return Splits(read_frame(data, options), None)
    if isinstance(data, Mapping):
        return Splits(*read_frames(data, options))
    form = choose_format(options.format)
    if str(data) == "-" or not isinstance(data, str | Path):
        return _read_files(None, [[data]], options)
    path = Path(data)
    if (packed := find_packed(path, options)) is not None:
        return read_packed(*packed)
    if not path.exists() and (files := _match(path)):
        return _load_roles(files[0].parent, files, options, are_parts=True)
    if not path.exists():
        raise DataError("no such file or folder", path=path)
    if not path.is_dir():
        return _load_file(path, form, options)
    files = _list_files(path)
    for read in (_load_small_set, _load_matrices, _load_parallel) if form is None else ():
        splits = read(path, files, split, options)
        if splits is not None:
            return _add_filters(path, splits)
    texts = _load_full_texts(path, files, options) if form is None else None
    return texts or _add_filters(path, _load_roles(path, files, options))


def find_evaluated(data: Any, options: ReadOptions) -> tuple[list[Path], Path]:
    """Return the files with the documents to evaluate on, and the folder that may name labels.

    They are the test split of a folder or pattern, or a single file, in a format of a single file.
    There are none where `data` is anything else, or has pairs that are excluded.
    """
    path = Path(data) if isinstance(data, str | Path) and str(data) != "-" else Path()
    if find_packed(path, options) is not None:
        return [], path
    if path.is_file():
        is_one_of_two = _TEXTS.fullmatch(path.name) or _MATRIX.fullmatch(path.name)
        return [] if is_one_of_two and options.format is None else [path], path.parent
    if path == Path() or not (path.is_dir() or (files := _match(path))):
        return [], path
    if not path.is_dir():
        return _find_roles(files[0].parent, files, options, are_parts=True)[-1], files[0].parent
    files = _list_files(path)
    is_layout = options.format is None and (
        any(map(_is_of_layout, files)) or _find_full_texts(path, files)
    )
    if is_layout or find_file(path, "filter_labels_test.txt"):
        return [], path
    return _find_roles(path, files, options)[-1], path


def _is_of_layout(file: Path) -> bool:
    """Return whether the name of a file says that it is one of several that hold a split."""
    return bool(
        _SMALL.fullmatch(file.name) or _MATRIX.fullmatch(file.name) or _TEXTS.fullmatch(file.name)
    )


def estimate_bytes(data: str | Path) -> int:
    """Return about how much memory the data at a path take once they are read; 0 if unknown."""
    path = Path(data)
    if str(path) == "-" or find_packed(path, ANYTHING) is not None:
        return 0
    if path.is_dir():  # its files, and those in folders called train and test
        files = [file for pattern in ("*", "*/*") for file in path.glob(pattern)]
    else:
        files = [path] if path.is_file() else _match(path)
    total = 0
    for file in files:
        with suppress(OSError):  # whatever is wrong with it, reading will say
            size = file.stat().st_size if file.is_file() else 0
            total += size * (UNPACKED if file.suffix in PACKED_ENDINGS else 1)
    return int(MEMORY_A_BYTE * total)


def read_batches(data: str | Path | BinaryIO, options: ReadOptions = ANYTHING) -> Iterator[Dataset]:
    """Yield batches of documents to be labelled, from whatever `load` reads but splits.

    A batch is a Dataset without labels; `documents.read_file` says what is in it.
    """
    path = Path(data) if isinstance(data, str | Path) else None
    packed = None if path is None else find_packed(path, options)
    if packed is not None:
        yield from packed_batches(*packed)
    elif path is None or str(path) == "-" or path.is_file():
        yield from read_file(data, options)
    elif path.is_dir():
        files = [file for file in _list_files(path) if not _BESIDE.fullmatch(file.name)]
        texts = find_full_texts(files)
        if texts:
            yield _read_full_texts(texts, options, LabelSpace()).without_labels()
        elif len(files) > 1 and _are_parts(files):
            yield from _read_parts_in_turn(files, options)
        else:
            raise DataError("is a folder; give one of its files", path=path)
    else:
        yield from _read_parts_in_turn(_match(path) or [path], options)


def _read_parts_in_turn(files: list[Path], options: ReadOptions) -> Iterator[Dataset]:
    for file in files:
        yield from read_file(file, options)


def _match(pattern: Path) -> list[Path]:
    """Return the files that a pattern names, none if it is no pattern."""
    if not glob.has_magic(str(pattern)):
        return []
    # A pattern may begin anywhere, which Path.glob does not know.
    found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207
    files = sorted(map(Path, found))
    files = [file for file in files if file.is_file()]
    if not files:
        raise DataError("no file has a name of this pattern", path=pattern)
    return files


def _list_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=folder) from None


def _load_file(path: Path, form: Format | None, options: ReadOptions) -> Splits:
    """Read a single file, or the pair of files of which it is one."""
    folder = path.parent
    if match := _TEXTS.fullmatch(path.name) if form is None else None:
        labels = find_file(folder, f"{match['before']}labels{(match['after'] or '')}")
        if labels is not None:
            return _text_splits(folder, [partial(_pair, path, labels, options)], options)
    if form is None and _MATRIX.fullmatch(path.name):
        return _row_splits(folder, [_read_matrices(path, options)])
    return _read_files(folder, [[path]], options)


def _load_small_set(
    folder: Path, files: list[Path], split: int, options: ReadOptions
) -> Splits | None:
    """Read `*_data.txt` and take the rows that the split files name."""
    data = [file for file in files if _SMALL.fullmatch(file.name)]
    if len(data) != 1:
        return None
    stem = re.sub(rf"_data\.txt{_PACKED}$", "", data[0].name)
    train, test = (find_file(folder, f"{stem}_{name}Split.txt") for name in ("tr", "tst"))
    if train is None:
        return None
    whole = _read_files(folder, [data], options).train
    n = whole.n_documents
    return Splits(
        whole.take(_read_split(train, split, n)),
        None if test is None else whole.take(_read_split(test, split, n)),
    )


def _load_matrices(folder: Path, files: list[Path], _: int, options: ReadOptions) -> Splits | None:
    train, test = (find_file(folder, f"{name}_X_Xf.txt") for name in ("trn", "tst"))
    if train is None or find_file(folder, "trn.json") is not None:
        return None
    found = [path for path in (train, test) if path is not None]
    return _row_splits(folder, [_read_matrices(path, options) for path in found])


def _load_parallel(folder: Path, files: list[Path], _: int, options: ReadOptions) -> Splits | None:
    pairs: dict[str, tuple[Path, Path]] = {}
    for file in files:
        match = _TEXTS.fullmatch(file.name)
        role = _role(file)
        if match is None or role not in ("train", "test"):
            continue
        name = f"{match['before']}labels{drop_packed(match['after'] or '')}"
        labels = find_file(folder, name)
        if labels is None:
            raise DataError(f"the labels of these texts are missing: no {name}", path=file)
        pairs[role] = (file, labels)
    if "train" not in pairs:
        return None
    found = [pairs[role] for role in ("train", "test") if role in pairs]
    return _text_splits(folder, [partial(_pair, *pair, options) for pair in found], options)


def _load_full_texts(folder: Path, files: list[Path], options: ReadOptions) -> Splits | None:
    """Read a corpus of full texts, or the two in folders called train and test."""
    splits = _find_full_texts(folder, files)
    reads = [partial(_read_full_texts, pairs, options) for pairs in splits]
    return _text_splits(folder, reads, options) if reads else None


def _find_full_texts(folder: Path, files: list[Path]) -> list[list[tuple[Path, Path | None]]]:
    """Return the texts of each split with their labels; nothing if there are no such texts."""
    splits = [_full_texts(files)]
    if not splits[0]:
        inside = _inside(folder)
        splits = [_full_texts(inside[role]) for role in ("train", "test") if role in inside]
    return splits if all(splits) else []


def _full_texts(files: list[Path]) -> list[tuple[Path, Path | None]]:
    named = [f for f in files if not _BESIDE.fullmatch(f.name) and _role(f) is None]
    return find_full_texts(named)


def _read_full_texts(
    pairs: list[tuple[Path, Path | None]], options: ReadOptions, space: LabelSpace
) -> TextFile:
    documents = full_text_documents(pairs, space, options.encoding)
    return collect(documents, pairs[0][0].parent, space)


def _inside(folder: Path) -> dict[str, list[Path]]:
    """Return the files in folders that are called train or test, by role."""
    folders = sorted(each for each in folder.iterdir() if each.is_dir())
    return {role: _list_files(each) for each in folders if (role := _role(each)) is not None}


def _load_roles(
    folder: Path,
    files: list[Path],
    options: ReadOptions,
    *,
    are_parts: bool = False,
) -> Splits:
    """Read the files that their names make the training and the test split."""
    return _read_files(folder, _find_roles(folder, files, options, are_parts=are_parts), options)


def _find_roles(
    folder: Path, files: list[Path], options: ReadOptions, *, are_parts: bool = False
) -> list[list[Path]]:
    """Return the files of the training and of the test split, if there is one, by their names.

    Files without such a name are parts of one split if the user says so, by a pattern.
    """
    candidates = [file for file in files if not _BESIDE.fullmatch(file.name)]
    choose = partial(_choose, options=options, are_parts=are_parts)
    inside = {} if are_parts else _inside(folder)
    train, test = (
        choose([f for f in candidates if _role(f) == role] or inside.get(role, []), name)
        for role, name in (("train", "training"), ("test", "test"))
    )
    if not train and test and not are_parts:
        raise DataError(
            f"has a test split but no training split; to use {test[0].name} alone, give its path",
            path=folder,
        )
    if not train:
        others = [f for f in candidates if _role(f) is None or are_parts]
        readable = [f for f in others if are_parts or _fault(f, options) is None]
        train, test = choose(readable, "training"), []
    if not train:
        raise DataError(
            "no data found in this folder; name the files train and test, "
            "for example train.jsonl and test.jsonl",
            path=folder,
        )
    return [train, test] if test else [train]


def _choose(
    files: list[Path],
    split: str,
    *,
    options: ReadOptions,
    are_parts: bool,
) -> list[Path]:
    """Return the files that can be read, or raise an error that says why there are none."""
    faults = {file: _fault(file, options) for file in files}
    readable = [file for file, fault in faults.items() if fault is None]
    if len(readable) > 1 and not (are_parts or _are_parts(readable)):
        raise DataError(
            f"both {readable[0].name} and {readable[1].name} could be the {split} split; "
            "move one of them away, or give the path of a file, or a pattern that names them all",
            path=readable[0].parent,
        )
    for fault in faults.values():
        if fault is not None and (not readable or are_parts):
            raise fault
    return readable


def _are_parts(files: list[Path]) -> bool:
    """Return whether the names of files say that they are parts of one split."""
    if all(file.suffix == ".parquet" for file in files):
        return True
    return len({re.sub(r"\d+", "0", file.name) for file in files}) == 1


def _fault(file: Path, options: ReadOptions) -> DataError | None:
    """Return why a file cannot be a split of a data set."""
    try:
        with Source(file, options.encoding) as source:
            recognize_labelled(source, options)
            return None
    except DataError as error:
        return error


def recognize_labelled(source: Source, options: ReadOptions) -> Format:
    """Return the format of a file, which must be one that holds labels."""
    form = choose_format(options.format) or recognize(source, options)
    if form is Format.MATRIX:
        raise DataError(NO_LABELS, path=source.path)
    if form is Format.PLAIN:
        raise refuse_plain(source)
    return form


def _role(file: Path) -> str | None:
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((role for role, names in _ROLES.items() if set(names) & set(words)), None)


def _read_files(
    folder: Path | None,
    splits: Sequence[Sequence[str | Path | BinaryIO]],
    options: ReadOptions,
) -> Splits:
    """Read one or two splits of any single-file format that share one label space."""
    with ExitStack() as stack:
        # Each is opened once: what comes through a pipe cannot be read again.
        sources = [stack.enter_context(Source(files[0], options.encoding)) for files in splits]
        forms = [recognize_labelled(source, options) for source in sources]
        holds_rows = [form is Format.SPARSE for form in forms]
        if any(holds_rows) and not all(holds_rows):
            raise DataError(
                f"one split holds feature rows and the other texts ({sources[0].path.name} is "
                f"{forms[0]}, {sources[1].path.name} is {forms[1]})",
                path=folder,
            )
        parts = [
            _Parts(source, form, files[1:])
            for source, form, files in zip(sources, forms, splits, strict=True)
        ]
        if holds_rows[0]:
            return _row_splits(folder, [each.read_rows(options) for each in parts])
        return _text_splits(folder, [partial(each.read, options) for each in parts], options)


@contextmanager
def naming_first(first: Path, file: Path) -> Iterator[None]:
    """Name the first file of a split in what is wrong with another."""
    try:
        yield
    except DataError as error:
        if file == first:
            raise
        raise DataError(f"{error} (the first file of the split is {first})") from None


@dataclass(frozen=True)
class _Parts:
    """The files of a split: the first is open, the others are opened in turn."""

    first: Source
    form: Format
    others: Sequence[Any]

    def read(self, options: ReadOptions, space: LabelSpace) -> TextFile:
        """Read texts; the first file of the first split decides which column is what."""
        like = space.columns or options.like
        whole = read_texts(self.first, self.form, replace(options, like=like), space)
        space.columns = whole.columns
        pinned = options if whole.columns is None else whole.columns.pin(options)
        for file in self.others:
            with naming_first(self.first.path, file), Source(file, options.encoding) as source:
                whole.extend(read_texts(source, self.form, pinned, space))
        return whole

    def read_rows(self, options: ReadOptions) -> Rows:
        """Read feature rows."""
        if options.in_files:
            return self._write_rows(options)
        rows = [_read_sparse(self.first)]
        for file in self.others:
            with Source(file, options.encoding) as source:
                rows.append(_read_sparse(source))
        n_features, n_labels = (max(part[i].shape[1] for part in rows) for i in (0, 1))
        X = sp.vstack([_widen(X, n_features) for X, _ in rows], format="csr")
        Y = sp.vstack([_widen(Y, n_labels) for _, Y in rows], format="csr")
        return sp.csr_matrix(X), sp.csr_matrix(Y)

    def _write_rows(self, options: ReadOptions) -> Rows:
        """Do as `read_rows` does, into files."""
        from longtail.data.sparse import labelled_batches

        X, Y = MatrixWriter(), MatrixWriter()
        for features, labels in labelled_batches(self.first):
            X.add(features)
            Y.add(labels)
        for file in self.others:
            with Source(file, options.encoding) as source:
                for features, labels in labelled_batches(source):
                    X.add(features)
                    Y.add(labels)
        return X.map(), Y.map()


def _read_sparse(source: Source) -> Rows:
    from longtail.data.sparse import read_sparse  # compiles its parser, which texts never need

    X, Y = read_sparse(source)
    if Y is None:
        raise DataError(NO_LABELS, path=source.path)
    return X, Y


def _read_matrices(path: Path, options: ReadOptions) -> Rows:
    """Read `trn_X_Xf.txt` and the `trn_X_Y.txt` beside it."""
    from longtail.data.sparse import read_label_matrix, read_sparse, write_sparse

    labels = find_file(path.parent, f"{path.name[:3]}_X_Y.txt")
    if labels is None:
        raise DataError(
            f"the labels of these rows are missing: no {path.name[:3]}_X_Y.txt", path=path
        )
    with Source(path) as source:
        X, own = write_sparse(source) if options.in_files else read_sparse(source)
    if own is not None:
        raise DataError(
            "the header has three numbers; a feature matrix starts with 'N D'", path=path, line=1
        )
    with Source(labels) as source:
        Y = read_label_matrix(source)
    if X.shape[0] != Y.shape[0]:
        raise DataError(
            f"{X.shape[0]} rows of features, but {Y.shape[0]} rows of labels in {labels}; "
            "row n of both must be the same document",
            path=path,
        )
    return X, Y


def _pair(texts: Path, labels: Path, options: ReadOptions, space: LabelSpace) -> TextFile:
    encoding = options.encoding
    with Source(texts, encoding) as text_source, Source(labels, encoding) as label_source:
        return read_parallel(text_source, label_source, space)


def _row_splits(folder: Path | None, splits: list[Rows]) -> Splits:
    """Make the splits as wide as the widest and name their labels."""
    n_features = max(X.shape[1] for X, _ in splits)
    n_labels = max(Y.shape[1] for _, Y in splits)
    named = None if folder is None else find_label_names(folder)
    names = named.of_columns(n_labels) if named else NumberedNames(n_labels)
    words = None if folder is None else _read_feature_names(folder, n_features)
    datasets = [
        Dataset(_widen(Y, n_labels), names, X=_widen(X, n_features), feature_names=words)
        for X, Y in splits
    ]
    return Splits(datasets[0], datasets[1] if len(datasets) > 1 else None)


def _read_feature_names(folder: Path, n_features: int) -> list[str] | None:
    """Return the names of the columns of feature rows, where the folder has them."""
    path = find_file(folder, FEATURE_NAMES)
    if path is None:
        return None
    with Source(path) as source:
        names = [line.strip() for _, lines in source.lines() for line in lines]
    while len(names) > n_features and not names[-1]:
        names.pop()
    if len(names) != n_features:
        raise DataError(
            f"{len(names)} names, but the data has {n_features} features; "
            "the file must have one line for each feature id",
            path=path,
        )
    return names


def _widen(matrix: sp.csr_matrix, n_columns: int) -> sp.csr_matrix:
    arrays = (matrix.data, matrix.indices, matrix.indptr)
    return sp.csr_matrix(arrays, shape=(matrix.shape[0], n_columns))


def _text_splits(folder: Path | None, reads: Sequence[ReadTexts], options: ReadOptions) -> Splits:
    """Read text files into one label space and name its labels."""
    new_space = space_in_files if options.in_files else LabelSpace
    space = new_space(options.separator)
    found = [read(space) for read in reads]
    named = None if folder is None else find_label_names(folder)
    columns, names = order_labels(space.numbering.names, named)
    uris = (named.uris if named else {}) | space.uris
    known = {name: uris.get(name, name) for name in names if name in uris or is_uri(name)}
    datasets = [file.as_dataset(columns, names, known or None) for file in found]
    return Splits(datasets[0], datasets[1] if len(datasets) > 1 else None)


def _read_numbers(path: Path, n_columns: int | None, what: str) -> NDArray[np.int64]:
    """Read lines of whole numbers, as many on each as on the first unless `n_columns` says."""
    rows: list[list[int]] = []
    with Source(path) as source:
        for first, lines in source.lines():
            for number, line in enumerate(lines, first):
                fields = line.split()
                if not fields:
                    continue
                n_columns = n_columns or len(fields)
                digits = all(f.isdecimal() and f.isascii() and len(f) < 19 for f in fields)
                if len(fields) != n_columns or not digits:
                    raise DataError(f"a line is {what}; got '{line:.40}'", path=path, line=number)
                rows.append([int(field) for field in fields])
    return np.array(rows, dtype=np.int64).reshape(len(rows), n_columns or 0)


def _read_split(path: Path, split: int, n_documents: int) -> NDArray[np.int64]:
    """Return the row numbers of one split, counted from 0."""
    numbers = _read_numbers(path, None, "row numbers, one for each split")
    if not 0 <= split < numbers.shape[1]:
        raise DataError(
            f"there is no split {split}; the file has {numbers.shape[1]}, counted from 0", path=path
        )
    wrong = np.flatnonzero((numbers[:, split] < 1) | (numbers[:, split] > n_documents))
    if len(wrong):
        raise DataError(
            f"row number {numbers[wrong[0], split]} is outside 1 to {n_documents}, "
            "the rows of the data",
            path=path,
            line=int(wrong[0]) + 1,
        )
    return numbers[:, split] - 1


def _add_filters(folder: Path, splits: Splits) -> Splits:
    """Read the pairs that must not be predicted, where the folder has them."""
    train, test = (find_file(folder, f"filter_labels_{name}.txt") for name in ("train", "test"))
    if (train or test) and splits.train.texts is not None and find_label_names(folder) is None:
        raise DataError(
            "names labels by id, but nothing says which id is which label; "
            "put a label_names.txt beside it",
            path=train or test,
        )
    return Splits(
        _with_filter(splits.train, train),
        None if splits.test is None else _with_filter(splits.test, test),
    )


def _with_filter(data: Dataset, path: Path | None) -> Dataset:
    if path is None or path.stat().st_size == 0:
        return data
    pairs = _read_numbers(path, 2, "a document number and a label id")
    wrong = np.flatnonzero((pairs >= data.Y.shape).any(axis=1))
    if len(wrong):
        document, label = pairs[wrong[0]].tolist()
        raise DataError(
            f"the pair {document} {label} is outside the data "
            f"({data.n_documents} documents, {data.n_labels} labels)",
            path=path,
            line=int(wrong[0]) + 1,
        )
    ones = np.ones(len(pairs), dtype=np.float32)
    exclude = sp.csr_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=data.Y.shape)
    exclude.data.fill(1)
    return replace(data, exclude=exclude)
