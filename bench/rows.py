"""Data sets as the rows that every method gets: found, read, turned into features once.

All rows have unit length. Omikuji and napkinXC make them so by themselves; PECOS does not, and on
bibtex's own rows, about ten long, that alone would cost it ten points of P@1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import longtail
from longtail.compare.split import as_plain_rows
from longtail.data.dataset import Dataset
from longtail.data.debian import load_debian
from longtail.text.tfidf import Tfidf


@dataclass(frozen=True)
class Rows:
    """One data set, its two splits with the same features and labels."""

    name: str
    train: Dataset
    test: Dataset

    @property
    def X(self) -> Any:
        """The training rows."""
        return self.train.X

    @property
    def n_empty(self) -> int:
        """The number of training documents without any feature."""
        return int((np.diff(self.X.indptr) == 0).sum())

    def write(self, folder: Path) -> None:
        """Store what the runners read: features and training labels, never the test labels."""
        folder.mkdir(parents=True, exist_ok=True)
        matrices: dict[str, Any] = {
            "train_X": self.X,
            "train_Y": self.train.Y,
            "test_X": self.test.X,
        }
        for name, matrix in matrices.items():
            sp.save_npz(folder / f"{name}.npz", matrix, compressed=False)

    def describe(self) -> dict[str, int]:
        """Return the counts that head each table."""
        return {
            "train": self.train.n_documents,
            "test": self.test.n_documents,
            "features": int(self.X.shape[1]),
            "labels": self.train.n_labels,
            "empty": self.n_empty,
        }


def find_rows(
    folder: Path | None, wanted: list[str] | None, tfidf: dict[str, Any] | None = None
) -> Iterator[Rows]:
    """Yield the bundled set and every data set in `folder`; say what is left out, and why."""
    paths: dict[str, Path | None] = {"bundled": None}
    if folder is not None:
        paths |= {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    if unknown := sorted(set(wanted or []) - set(paths)):
        raise SystemExit(f"no such data set: {', '.join(unknown)}; there are {', '.join(paths)}")
    for name, path in paths.items():
        if wanted is not None and name not in wanted:
            continue
        try:
            yield _read(name, path, tfidf or {})
        except longtail.LongtailError as error:
            print(f"left out {name}: {error}", flush=True)


def _read(name: str, path: Path | None, tfidf: dict[str, Any]) -> Rows:
    train, test = load_debian() if path is None else longtail.load(path)
    if test is None:
        train, test = train.split(0.2)
    return to_rows(name, train, test.align(train.label_names), tfidf)


def to_rows(name: str, train: Dataset, test: Dataset, tfidf: dict[str, Any] | None = None) -> Rows:
    """Give both splits the same labels, and texts tf-idf rows: our defaults, changed by `tfidf`."""
    # a label that only the test split has stays: no method can predict it, but it is counted
    train = train.align(test.label_names)
    if train.texts is None or test.texts is None:
        train_X, test_X = train.X, test.X
    else:
        features = Tfidf(**(tfidf or {}))
        train_X, test_X = features.fit_transform(train.texts), features.transform(test.texts)
    return Rows(
        name,
        Dataset(train.Y, train.label_names, X=as_plain_rows(train_X)),
        Dataset(test.Y, test.label_names, X=as_plain_rows(test_X), exclude=test.exclude),
    )
