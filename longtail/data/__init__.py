"""Documents and their labels: the Dataset, and everything that reads and writes it."""

from longtail.data.coerce import as_dataset, as_documents
from longtail.data.dataset import Dataset, Splits, build_label_matrix
from longtail.data.describe import describe
from longtail.data.folder import load, read_batches, read_splits
from longtail.data.writer import convert, pack, write_dataset
from longtail.reading import ReadOptions

__all__ = [
    "Dataset",
    "ReadOptions",
    "Splits",
    "as_dataset",
    "as_documents",
    "build_label_matrix",
    "convert",
    "describe",
    "load",
    "pack",
    "read_batches",
    "read_splits",
    "write_dataset",
]
