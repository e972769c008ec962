"""Documents and their labels: the Dataset, and everything that reads and writes it."""

from longtail.data.coerce import as_dataset, as_documents
from longtail.data.dataset import Dataset, Splits, build_label_matrix
from longtail.data.describe import describe
from longtail.data.documents import read_documents
from longtail.data.folder import load
from longtail.data.writer import convert, write_dataset

__all__ = [
    "Dataset",
    "Splits",
    "as_dataset",
    "as_documents",
    "build_label_matrix",
    "convert",
    "describe",
    "load",
    "read_documents",
    "write_dataset",
]
