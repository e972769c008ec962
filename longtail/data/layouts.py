"""Layouts: folders in which several files hold one split, and the pairs that are excluded."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.annif import full_text_documents
from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import TextFile, collect, read_parallel
from longtail.data.labels import LabelSpace, find_label_names
from longtail.data.roles import PACKED, find_full_texts_of_splits, find_role
from longtail.data.source import Source, drop_packed, find_file
from longtail.data.splits import Rows, read_files, row_splits, text_splits
from longtail.errors import DataError
from longtail.reading import ReadOptions

_TEXTS = re.compile(rf"(?P<before>.*[_.-])texts?(?P<after>\.txt{PACKED})?")
_SMALL = re.compile(rf".*_data\.txt{PACKED}")
_MATRIX = re.compile(rf"(?P<role>trn|tst)_X_Xf\.txt{PACKED}")


def load_layout(folder: Path, files: list[Path], split: int, options: ReadOptions) -> Splits | None:
    """Read a folder of one of these layouts; None if it is of none."""
    for read in (_load_small_set, _load_matrices, _load_parallel):
        splits = read(folder, files, split, options)
        if splits is not None:
            return add_filters(folder, splits)
    return _load_full_texts(folder, files, options)


def load_pair(path: Path, options: ReadOptions) -> Splits | None:
    """Read the two files that hold one split, of which `path` is one; None if it stands alone."""
    folder = path.parent
    if match := _TEXTS.fullmatch(path.name):
        labels = find_file(folder, f"{match['before']}labels{(match['after'] or '')}")
        if labels is not None:
            return text_splits(folder, [partial(_pair, path, labels, options)], options)
    if _MATRIX.fullmatch(path.name):
        return row_splits(folder, [_read_matrices(path, options)])
    return None


def is_one_of_two(file: Path) -> bool:
    """Return whether the name of a file says that another holds its labels."""
    return bool(_TEXTS.fullmatch(file.name) or _MATRIX.fullmatch(file.name))


def is_layout(folder: Path, files: list[Path]) -> bool:
    """Return whether several files of a folder hold one split."""
    named = any(_SMALL.fullmatch(file.name) or is_one_of_two(file) for file in files)
    return named or bool(find_full_texts_of_splits(folder, files))


def _load_small_set(
    folder: Path, files: list[Path], split: int, options: ReadOptions
) -> Splits | None:
    """Read `*_data.txt` and take the rows that the split files name."""
    data = [file for file in files if _SMALL.fullmatch(file.name)]
    if len(data) != 1:
        return None
    stem = re.sub(rf"_data\.txt{PACKED}$", "", data[0].name)
    train, test = (find_file(folder, f"{stem}_{name}Split.txt") for name in ("tr", "tst"))
    if train is None:
        return None
    whole = read_files(folder, [data], options).train
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
    return row_splits(folder, [_read_matrices(path, options) for path in found])


def _load_parallel(folder: Path, files: list[Path], _: int, options: ReadOptions) -> Splits | None:
    pairs: dict[str, tuple[Path, Path]] = {}
    for file in files:
        match = _TEXTS.fullmatch(file.name)
        role = find_role(file)
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
    return text_splits(folder, [partial(_pair, *pair, options) for pair in found], options)


def _load_full_texts(folder: Path, files: list[Path], options: ReadOptions) -> Splits | None:
    """Read a corpus of full texts, or the two in folders called train and test."""
    splits = find_full_texts_of_splits(folder, files)
    reads = [partial(read_full_texts, pairs, options) for pairs in splits]
    return text_splits(folder, reads, options) if reads else None


def read_full_texts(
    pairs: list[tuple[Path, Path | None]], options: ReadOptions, space: LabelSpace
) -> TextFile:
    """Read texts that each lie in a file of their own, with the files of their labels."""
    documents = full_text_documents(pairs, space, options.encoding)
    return collect(documents, pairs[0][0].parent, space)


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


def add_filters(folder: Path, splits: Splits) -> Splits:
    """Read the pairs that must not be predicted, where the folder has them."""
    train, test = (find_file(folder, f"filter_labels_{name}.txt") for name in ("train", "test"))
    if (train or test) and splits.train.texts is not None and not _names_columns(folder):
        raise DataError(
            "names labels by id, but nothing says which id is which label; "
            "put a label_names.txt beside it",
            path=train or test,
        )
    return Splits(
        _with_filter(splits.train, train),
        None if splits.test is None else _with_filter(splits.test, test),
    )


def _names_columns(folder: Path) -> bool:
    """Return whether a list names the labels of texts, so that ids are places in it."""
    named = find_label_names(folder)
    return named is not None and named.ids is None


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
