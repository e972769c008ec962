"""The documents that all methods get: the same for training, the same for testing."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset, read_splits
from longtail.errors import DataError
from longtail.reading import ANYTHING, ReadOptions
from longtail.runtime.rows import scale_to_unit
from longtail.runtime.settings import parse_settings
from longtail.text.tfidf import Tfidf
from longtail.visible import spell_count

HELD_OUT = 0.2  # of the documents, where the data have no test split
N_SINGLE = 200  # documents turned into rows one by one, to measure the time


@dataclass(frozen=True)
class TrainTestSplit:
    """A training and a test split with the same label ids.

    Attributes:
        train: what methods learn from.
        test: what they are measured on; no method gets its labels.
        origin: where the test split comes from, in words.
        clean: with --noise, training documents that nobody is trained on; else None.
    """

    train: Dataset
    test: Dataset
    origin: str
    clean: Dataset | None = None

    @property
    def to_label(self) -> Dataset:
        """What methods label: the test split, and below it the clean documents if there are any."""
        return self.test if self.clean is None else _join(self.test, self.clean)

    @property
    def document_type(self) -> str:
        """What the documents are: texts or rows."""
        return "rows" if self.train.texts is None else "texts"

    @property
    def n_excluded(self) -> int:
        """The largest number of labels that are excluded for one test document."""
        exclude = self.test.exclude
        return 0 if exclude is None or not exclude.nnz else int(np.diff(exclude.indptr).max())

    def describe(self) -> dict[str, Any]:
        """Return counts and checksums, ready for JSON."""
        train, test, clean = self.train, self.test, self.clean
        sums = {"train": checksum(train), "test": checksum(test)}
        return {
            "document_type": self.document_type,
            "origin": self.origin,
            "n_train": train.n_documents,
            "n_test": test.n_documents,
            "n_labels": train.n_labels,
            "n_features": None if train.X is None else int(train.X.shape[1]),
            "n_test_without_labels": int((np.diff(test.Y.indptr) == 0).sum()),
            "labels_per_document": train.Y.nnz / train.n_documents,
            "sha256": sums if clean is None else sums | {"clean": checksum(clean)},
        }


def read_split(path: Path, valid: float | None, reading: ReadOptions = ANYTHING) -> TrainTestSplit:
    """Read DATA: its own splits, or with `valid` a held-out share of the training split."""
    train, test = read_splits(path, reading)
    if valid is None and test is not None:
        origin = "the test split of the data"
    else:
        share = HELD_OUT if valid is None else valid
        if len(train) < 2:
            raise DataError(
                f"{len(train)} document cannot be divided into a training and a test split",
                path=path,
            )
        train, test = train.split(share)
        origin = f"{share:.0%} of the training documents, held out at random (seed 0)"
    test = test.align(train.label_names)
    split = TrainTestSplit(replace(train.align(test.label_names), exclude=None), test, origin)
    _check(split, path)
    return split


def _check(split: TrainTestSplit, path: Path) -> None:
    for name, documents in (("training", split.train), ("test", split.test)):
        if not len(documents):
            raise DataError(f"the {name} split has no documents", path=path)
        if not documents.Y.nnz:
            raise DataError(
                f"of {spell_count(len(documents), f'{name} document')}, none carries a label; "
                "there is nothing to compare",
                path=path,
            )


# ------------------------------------------------------------------------------------ handing over


@dataclass(frozen=True)
class RowsMade:
    """How long it took to make rows of texts for the peers; 0 if the documents were rows.

    Attributes:
        n_empty: training documents without any feature.
        train_seconds: to learn the features and make the training rows.
        each_seconds: to make one test row among many.
        single_ms: to make one test row alone.
    """

    n_empty: int = 0
    train_seconds: float = 0.0
    each_seconds: float = 0.0
    single_ms: float = 0.0


def write_given(
    split: TrainTestSplit, folder: Path, *, with_rows: bool, tfidf: Mapping[str, str]
) -> RowsMade:
    """Write the files that methods read; `with_rows` adds the rows for peers."""
    folder.mkdir(parents=True)
    train, test = split.train, split.to_label
    sp.save_npz(folder / "train_Y.npz", train.Y, compressed=False)
    (folder / "label_names.json").write_text(json.dumps(list(train.label_names)))
    if train.texts is None or test.texts is None:
        sp.save_npz(folder / "train_X.npz", _rows_of(train), compressed=False)
        sp.save_npz(folder / "test_X.npz", _rows_of(test), compressed=False)
    else:
        (folder / "train_texts.json").write_text(json.dumps(list(train.texts)))
        (folder / "test_texts.json").write_text(json.dumps(list(test.texts)))
    return _write_rows(split, folder / "rows", tfidf) if with_rows else RowsMade()


def _write_rows(split: TrainTestSplit, folder: Path, tfidf: Mapping[str, str]) -> RowsMade:
    """Write rows of unit length for the peers: PECOS expects that, the others do it themselves."""
    folder.mkdir()
    learned, labelled = split.train, split.to_label
    if learned.texts is None or labelled.texts is None:
        train, test, made = _rows_of(learned), _rows_of(labelled), RowsMade()
    else:
        features = Tfidf(**parse_settings(Tfidf, tfidf))
        train, test, made = _time_rows(features, list(learned.texts), list(labelled.texts))
    sp.save_npz(folder / "train_X.npz", as_plain_rows(train), compressed=False)
    sp.save_npz(folder / "test_X.npz", as_plain_rows(test), compressed=False)
    sp.save_npz(folder / "train_Y.npz", split.train.Y, compressed=False)
    return replace(made, n_empty=int((np.diff(train.indptr) == 0).sum()))


def _time_rows(
    features: Tfidf, train: list[str], test: list[str]
) -> tuple[sp.csr_matrix, sp.csr_matrix, RowsMade]:
    start = time.perf_counter()
    train_X = features.fit_transform(train)
    learned = time.perf_counter()
    test_X = features.transform(test)
    made = time.perf_counter()
    singles = test[:N_SINGLE]
    for text in singles:
        features.transform([text])
    single_ms = 1e3 * (time.perf_counter() - made) / len(singles)
    each = (made - learned) / len(test)
    return train_X, test_X, RowsMade(0, learned - start, each, single_ms)


def _join(one: Dataset, other: Dataset) -> Dataset:
    """Return the documents of both, which have the same labels."""
    Y = sp.vstack([one.Y, other.Y], format="csr")
    if one.texts is None or other.texts is None:
        rows = sp.vstack([_rows_of(one), _rows_of(other)], format="csr")
        return Dataset(Y, one.label_names, X=rows)
    return Dataset(Y, one.label_names, texts=[*one.texts, *other.texts])


def _rows_of(documents: Dataset) -> sp.csr_matrix:
    if documents.X is None:
        raise DataError("one split holds texts and the other rows; both must hold the same")
    return documents.X


def as_plain_rows(matrix: Any) -> sp.csr_matrix:
    """Return rows of unit length in the form that every peer takes: float32 and int32, sorted."""
    plain = scale_to_unit(sp.csr_matrix(matrix, dtype=np.float32, copy=True))
    plain.sort_indices()
    plain.indices, plain.indptr = plain.indices.astype(np.int32), plain.indptr.astype(np.int32)
    return plain


# -------------------------------------------------------------------------------------- checksums


def checksum(data: Dataset) -> str:
    """Return the SHA-256 of documents and labels; it does not depend on the file format."""
    total = hashlib.sha256()
    for block in _blocks(data):
        total.update(block)
    return total.hexdigest()


def _blocks(data: Dataset) -> Iterator[bytes]:
    for text in data.texts or ():
        yield text.encode("utf-8", "surrogatepass") + b"\0"
    for name in data.label_names:
        yield name.encode("utf-8", "surrogatepass") + b"\0"
    for matrix in (data.X, data.Y, data.exclude):
        if matrix is not None:
            yield matrix.indptr.astype("<i8").tobytes()
            yield matrix.indices.astype("<i8").tobytes()
            yield matrix.data.astype("<f4").tobytes()


def checksum_files(path: Path) -> dict[str, str]:
    """Return the SHA-256 of the file `path`, or of each file in the folder, as `sha256sum` does."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: _hash_file(file) for file in files if file.is_file()}


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
