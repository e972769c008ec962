"""One or two splits, read into one space of labels from files of any format, or from matrices."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import scipy.sparse as sp

from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import Format, TextFile, read_texts
from longtail.data.labels import (
    NO_LABELS,
    LabelSpace,
    NumberedNames,
    find_label_names,
    is_uri,
    order_labels,
)
from longtail.data.roles import recognize_labelled
from longtail.data.source import Source, find_file
from longtail.data.spool import space_in_files
from longtail.errors import DataError
from longtail.reading import ReadOptions
from longtail.runtime.mapped import MatrixWriter

Rows = tuple[sp.csr_matrix, sp.csr_matrix]
ReadTexts = Callable[[LabelSpace], TextFile]

FEATURE_NAMES = "feature_names.txt"


def read_files(
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
            return row_splits(folder, [each.read_rows(options) for each in parts])
        return text_splits(folder, [partial(each.read, options) for each in parts], options)


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


def row_splits(folder: Path | None, splits: list[Rows]) -> Splits:
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


def text_splits(folder: Path | None, reads: Sequence[ReadTexts], options: ReadOptions) -> Splits:
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
