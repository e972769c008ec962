r"""Data sets on disk: a file, or a folder with a training split and perhaps a test split.

A folder is looked at in this order:

1. `*_data.txt` with `*_trSplit.txt` and `*_tstSplit.txt`: the repository's small sets, ten splits
   as columns of row numbers that count from 1;
2. `trn_X_Xf.txt` with `trn_X_Y.txt`, and the same with `tst`, unless `trn.json` lies there too;
3. `train_texts.txt` with `train_labels.txt`, and the same with `test`;
4. one file named train, trn or training, and one named test or tst, in any format of a single
   file (`trn.json` of the repository's raw texts among them); or else the only file that can be
   read at all. Files named valid, validation, val or dev are left alone: load them by themselves.

Every file may be gzipped and then ends in `.gz`. Names of labels are taken from the same folder
(see labels.py). There, `feature_names.txt` names the columns of feature rows, one a line, and
`filter_labels_train.txt` and `filter_labels_test.txt` give the pairs of document and label that
must never be predicted.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import (
    Format,
    TextFile,
    choose_format,
    read_parallel,
    read_texts,
    recognize,
    refuse_plain,
)
from longtail.data.labels import LabelSpace, NumberedNames, find_label_names, order_labels
from longtail.data.source import Source
from longtail.errors import DataError

Rows = tuple[sp.csr_matrix, sp.csr_matrix]
ReadTexts = Callable[[LabelSpace], TextFile]

_ROLES = {
    "train": ("train", "trn", "training"),
    "test": ("test", "tst"),
    "other": ("valid", "validation", "val", "dev"),
}
FEATURE_NAMES = "feature_names.txt"
_BESIDE = re.compile(
    r"(label_names\.(txt|tsv)|lbl\.json|filter_labels_\w+\.txt|feature_names\.txt)(\.gz)?"
)
_TEXTS = re.compile(r"(?P<before>.*[_.-])texts?(?P<after>\.txt(\.gz)?)?")
_MATRIX = re.compile(r"(?P<role>trn|tst)_X_Xf\.txt(\.gz)?")


def load(path: str | Path, *, split: int = 0, format: str | None = None) -> Splits:
    """Read a data set from a file or a folder; its format is recognized.

    A single file is the training split, and there is no test split. `split` chooses one of the ten
    divisions of the repository's small sets. `format` (one of `documents.FORMATS`) is that of the
    file, or of the files called train and test in a folder, where recognizing it does not do.
    """
    path, form = Path(path), choose_format(format)
    if not path.exists():
        raise DataError("no such file or folder", path=path)
    if not path.is_dir():
        return _load_file(path) if form is None else _read_files(path.parent, [path], form)
    try:
        files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from None
    for read in (_load_small_set, _load_matrices, _load_parallel) if form is None else ():
        splits = read(path, files, split)
        if splits is not None:
            return _add_filters(path, splits)
    return _add_filters(path, _load_roles(path, files, form))


def _load_file(path: Path) -> Splits:
    """Read a single file, or the pair of files of which it is one."""
    folder = path.parent
    if match := _TEXTS.fullmatch(path.name):
        labels = _find(folder, f"{match['before']}labels{(match['after'] or '')}")
        if labels is not None:
            return _text_splits(folder, [lambda space: _pair(path, labels, space)])
    if match := _MATRIX.fullmatch(path.name):
        return _row_splits(folder, [_read_matrices(path)])
    return _read_files(folder, [path])


def _load_small_set(folder: Path, files: list[Path], split: int) -> Splits | None:
    """Read `*_data.txt` and take the rows that the split files name."""
    data = [file for file in files if re.fullmatch(r".*_data\.txt(\.gz)?", file.name)]
    if len(data) != 1:
        return None
    stem = re.sub(r"_data\.txt(\.gz)?$", "", data[0].name)
    train, test = (_find(folder, f"{stem}_{name}Split.txt") for name in ("tr", "tst"))
    if train is None:
        return None
    whole = _read_files(folder, data).train
    n = whole.n_documents
    return Splits(
        whole.take(_read_split(train, split, n)),
        None if test is None else whole.take(_read_split(test, split, n)),
    )


def _load_matrices(folder: Path, files: list[Path], _: int) -> Splits | None:
    train, test = (_find(folder, f"{name}_X_Xf.txt") for name in ("trn", "tst"))
    if train is None or _find(folder, "trn.json") is not None:
        return None
    return _row_splits(folder, [_read_matrices(path) for path in (train, test) if path is not None])


def _load_parallel(folder: Path, files: list[Path], _: int) -> Splits | None:
    pairs: dict[str, tuple[Path, Path]] = {}
    for file in files:
        match = _TEXTS.fullmatch(file.name)
        role = _role(file)
        if match is None or role not in ("train", "test"):
            continue
        name = f"{match['before']}labels{(match['after'] or '').removesuffix('.gz')}"
        labels = _find(folder, name)
        if labels is None:
            raise DataError(f"the labels of these texts are missing: no {name}", path=file)
        pairs[role] = (file, labels)
    if "train" not in pairs:
        return None
    found = [pairs[role] for role in ("train", "test") if role in pairs]
    return _text_splits(folder, [partial(_pair, *pair) for pair in found])


def _load_roles(folder: Path, files: list[Path], form: Format | None) -> Splits:
    """Read the files that their names make the training and the test split."""
    candidates = [file for file in files if not _BESIDE.fullmatch(file.name)]
    train = _choose([file for file in candidates if _role(file) == "train"], "training", form)
    test = _choose([file for file in candidates if _role(file) == "test"], "test", form)
    if train is None and test is not None:
        raise DataError(
            f"has a test split but no training split; to use {test.name} alone, give its path",
            path=folder,
        )
    if train is None:
        readable = [f for f in candidates if _role(f) is None and _fault(f, form) is None]
        train = _choose(readable, "training", form)
    if train is None:
        raise DataError(
            "no data found in this folder; name the files train and test, "
            "for example train.jsonl and test.jsonl",
            path=folder,
        )
    return _read_files(folder, [train] if test is None else [train, test], form)


def _choose(files: list[Path], split: str, form: Format | None) -> Path | None:
    """Return the one file that can be read, or raise an error that says why there is none."""
    faults = {file: _fault(file, form) for file in files}
    readable = [file for file, fault in faults.items() if fault is None]
    if len(readable) > 1:
        raise DataError(
            f"both {readable[0].name} and {readable[1].name} could be the {split} split; "
            "move one of them away, or give the path of a file",
            path=readable[0].parent,
        )
    for fault in faults.values():
        if not readable and fault is not None:
            raise fault
    return readable[0] if readable else None


def _fault(file: Path, form: Format | None) -> DataError | None:
    """Return why a file cannot be a split of a data set."""
    try:
        with Source(file) as source:
            _recognize_labelled(source, form)
            return None
    except DataError as error:
        return error


def _recognize_labelled(source: Source, form: Format | None) -> Format:
    """Return the format of a file, which must be one that holds labels."""
    form = form or recognize(source)
    if form is Format.MATRIX:
        raise DataError("rows without labels; a data file starts with 'N D L'", path=source.path)
    if form is Format.PLAIN:
        raise refuse_plain(source)
    return form


def _role(file: Path) -> str | None:
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((role for role, names in _ROLES.items() if set(names) & set(words)), None)


def _find(folder: Path, name: str) -> Path | None:
    """Return the file of that name, plain or gzipped."""
    plain = name.removesuffix(".gz")
    return next((p for p in (folder / plain, folder / f"{plain}.gz") if p.is_file()), None)


def _read_files(folder: Path, paths: list[Path], form: Format | None = None) -> Splits:
    """Read one or two files of any single-file format that share one label space."""
    with ExitStack() as stack:
        # Each is opened once: what comes through a pipe cannot be read again.
        sources = [stack.enter_context(Source(path)) for path in paths]
        forms = [_recognize_labelled(source, form) for source in sources]
        holds_rows = [form is Format.SPARSE for form in forms]
        if any(holds_rows) and not all(holds_rows):
            raise DataError(
                f"one split holds feature rows and the other texts ({paths[0].name} is "
                f"{forms[0]}, {paths[1].name} is {forms[1]})",
                path=folder,
            )
        if holds_rows[0]:
            return _row_splits(folder, [_read_sparse(source) for source in sources])
        both = zip(sources, forms, strict=True)
        return _text_splits(folder, [partial(read_texts, source, form) for source, form in both])


def _read_sparse(source: Source) -> Rows:
    from longtail.data.sparse import read_sparse  # compiles its parser, which texts never need

    X, Y = read_sparse(source)
    if Y is None:
        raise DataError("rows without labels; a data file starts with 'N D L'", path=source.path)
    return X, Y


def _read_matrices(path: Path) -> Rows:
    """Read `trn_X_Xf.txt` and the `trn_X_Y.txt` beside it."""
    from longtail.data.sparse import read_label_matrix, read_sparse

    labels = _find(path.parent, f"{path.name[:3]}_X_Y.txt")
    if labels is None:
        raise DataError(
            f"the labels of these rows are missing: no {path.name[:3]}_X_Y.txt", path=path
        )
    with Source(path) as source:
        X, own = read_sparse(source)
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


def _pair(texts: Path, labels: Path, space: LabelSpace) -> TextFile:
    with Source(texts) as text_source, Source(labels) as label_source:
        return read_parallel(text_source, label_source, space)


def _row_splits(folder: Path, splits: list[Rows]) -> Splits:
    """Make the splits as wide as the widest and name their labels."""
    n_features = max(X.shape[1] for X, _ in splits)
    n_labels = max(Y.shape[1] for _, Y in splits)
    named = find_label_names(folder)
    names = named.of_columns(n_labels) if named else NumberedNames(n_labels)
    words = _read_feature_names(folder, n_features)
    datasets = [
        Dataset(_widen(Y, n_labels), names, X=_widen(X, n_features), feature_names=words)
        for X, Y in splits
    ]
    return Splits(datasets[0], datasets[1] if len(datasets) > 1 else None)


def _read_feature_names(folder: Path, n_features: int) -> list[str] | None:
    """Return the names of the columns of feature rows, where the folder has them."""
    path = _find(folder, FEATURE_NAMES)
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


def _text_splits(folder: Path, reads: list[ReadTexts]) -> Splits:
    """Read text files into one label space and name its labels."""
    space = LabelSpace()
    found = [read(space) for read in reads]
    columns, names = order_labels(space.numbering.names, find_label_names(folder))
    datasets = [
        Dataset(file.labels.matrix(columns, len(names)), names, texts=file.texts) for file in found
    ]
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
    train, test = _find(folder, "filter_labels_train.txt"), _find(folder, "filter_labels_test.txt")
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
