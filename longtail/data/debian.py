"""The bundled data set: 28,998 descriptions of Debian packages with 539 labels (see DEBIAN.md)."""

import gzip
import json
from pathlib import Path

import numpy as np

from longtail.data.dataset import Dataset, Splits, build_label_matrix

PATH = Path(__file__).with_name("debian.jsonl.gz")


def load_debian(n: int | None = None) -> Splits:
    """Return the training and the test split, which share no source package and no text.

    With `n`, each holds at most so many documents, spread evenly over the packages' names.
    """
    with gzip.open(PATH, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    Y, label_names = build_label_matrix(row["labels"] for row in rows)
    data = Dataset(Y, label_names, texts=[row["text"] for row in rows])
    is_test = np.array([row["part"] == "test" for row in rows])
    return Splits(
        data.take(_spread(np.flatnonzero(~is_test), n)),
        data.take(_spread(np.flatnonzero(is_test), n)),
    )


def _spread(rows: np.ndarray, n: int | None) -> np.ndarray:
    """Return `n` of the rows, equally far from one another."""
    n = len(rows) if n is None else min(n, len(rows))
    return rows[np.arange(n) * len(rows) // max(n, 1)]
