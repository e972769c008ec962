"""The columns that a model was trained with: it reads other files of the same columns alike."""

from dataclasses import replace

from longtail.data import Dataset
from longtail.data.columns import Columns
from longtail.reading import ReadOptions
from longtail.runtime.schema import Config, ListOf, Schema, Sizes, Value
from longtail.runtime.store import Files

KEY = "columns"
ORIGIN = "as in training"
MOST = 1000  # columns that make up a text
_OPTIONAL = ("labels", "id", "separator", "delimiter")


def remember_columns(dataset: Dataset) -> Columns | None:
    """Return the columns that the training documents came from; None if from none."""
    columns = dataset.read_columns
    return None if columns is None else replace(columns, origin=ORIGIN)


def add_columns(files: Files, columns: Columns | None) -> None:
    """Add them to the config."""
    if columns is not None:
        held = {name: getattr(columns, name) for name in _OPTIONAL}
        files.config[KEY] = {"text": list(columns.text), **held}


def describe_columns(files: Files) -> Schema:
    """Return the schema of what `add_columns` adds, if it is there."""
    if KEY not in files.config:
        return Schema()
    optional = {name: Value(str | None) for name in _OPTIONAL}
    config: Config = {KEY: {"text": ListOf(Value(str), 1, MOST), **optional}}
    return Schema(config=config, rules=[_check_delimiter])


def _check_delimiter(files: Files, sizes: Sizes) -> None:
    """Raise ValueError unless the delimiter is one that a table can have."""
    ReadOptions(delimiter=files.config[KEY]["delimiter"])


def columns_from(files: Files) -> Columns | None:
    """Take back what `add_columns` wrote."""
    held = files.config.get(KEY)
    return None if held is None else Columns(**{**held, "text": tuple(held["text"])}, origin=ORIGIN)
