"""Frames: what holds columns by name, of whatever package, without importing any of them.

pandas and polars have `columns`, pyarrow's tables and Hugging Face's data sets `column_names`, and
all give a column by `frame[name]`. A dictionary of columns and a list of dictionaries will do as
well. Columns are chosen as those of files are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from longtail.data.columns import choose_columns
from longtail.data.dataset import Dataset
from longtail.data.documents import TextFile, collect_cells, note_separator
from longtail.data.labels import LabelSpace, order_labels
from longtail.data.parquet import SAMPLED, as_cell
from longtail.data.table import Document, join_texts, spell_id
from longtail.errors import DataError
from longtail.reading import ReadOptions

_NAMED_BY = ("column_names", "columns")
_MISSING = ("NAType", "NaTType")  # what pandas calls a value that is not there
_NO_TEXTS: dict[type[Any], str] = {list: "a list", dict: "a dictionary", bytes: "bytes"}


def is_frame(data: Any) -> bool:
    """Return whether `data` holds columns by name."""
    if isinstance(data, Dataset) or sp.issparse(data):  # scipy's dok_matrix is a mapping
        return False
    if isinstance(data, Mapping):
        return bool(data) and not any(map(is_frame, data.values()))
    if isinstance(data, list):
        return bool(data) and all(isinstance(row, Mapping) for row in data[:SAMPLED])
    return _find_names(data) is not None


def read_frame(frame: Any, options: ReadOptions) -> Dataset:
    """Return the documents of a frame with their labels."""
    space = LabelSpace(options.separator)
    file = _read(frame, options, space)
    columns, names = order_labels(space.numbering.names, None)
    return file.as_dataset(columns, names, None)


def read_frame_texts(frame: Any, options: ReadOptions) -> Dataset:
    """Return the documents of a frame alone, whatever labels it has."""
    return _read(frame, options, None).without_labels()


def read_frames(frames: Mapping[Any, Any], options: ReadOptions) -> tuple[Dataset, Dataset | None]:
    """Return the frames called train and test in a dictionary, as Hugging Face keeps them."""
    if "train" not in frames:
        there = ", ".join(f"'{name}'" for name in frames)
        raise DataError(f"none of these frames is called 'train': {there}; give one of them")
    space = LabelSpace(options.separator)
    found = [_read(frames[name], options, space) for name in ("train", "test") if name in frames]
    columns, names = order_labels(space.numbering.names, None)
    train, *others = (file.as_dataset(columns, names, None) for file in found)
    return train, others[0] if others else None


def _read(frame: Any, options: ReadOptions, space: LabelSpace | None) -> TextFile:
    held = _as_columns(frame)
    values = {name: _Column(take) for name, take in held.items()}

    def sample() -> dict[str, list[Any]]:
        return {name: column.values[:SAMPLED] for name, column in values.items()}

    columns = choose_columns(list(held), sample, options, None, labels=space is not None)
    if space is not None and space.separator is None:
        space.separator = columns.separator
    named = _find_class_names(frame, columns.labels)
    kept = {name: column.values for name, column in values.items()} if options.keep else {}
    n = len(values[columns.text[0]].values)
    for name in filter(None, (*columns.text, columns.labels, columns.id, *kept)):
        if len(values[name].values) != n:
            raise DataError(
                f"the column '{name}' has {len(values[name].values)} values, and "
                f"'{columns.text[0]}' has {n}"
            )

    def documents() -> Iterator[Document]:
        parts = [values[name].values for name in columns.text]
        cells = values[columns.labels].values if columns.labels else [None] * n
        ids = values[columns.id].values if columns.id else [None] * n
        for i, (*texts, cell, id) in enumerate(zip(*parts, cells, ids, strict=True)):
            wrong = next((kind for text in texts if (kind := _NO_TEXTS.get(type(text)))), None)
            if wrong is not None:
                raise DataError(f"the text of row {i} is {wrong}; it must be a string")
            yield (
                i,
                join_texts(texts),
                as_cell(_name_classes(cell, named), None, i, options),
                spell_id(id) if columns.id else None,
                {name: column[i] for name, column in kept.items()} if kept else None,
            )

    file = collect_cells(documents(), Path("the frame"), space or LabelSpace(options.separator))
    file.columns = columns if space is None else note_separator(columns, space, options)
    file.read_as = columns.describe("" if space is None else space.said)
    return file


class _Column:
    """A column whose values are taken when they are first asked for."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take
        self._values: list[Any] | None = None

    @property
    def values(self) -> list[Any]:
        if self._values is None:
            self._values = list(map(_plain, _as_list(self._take())))
        return self._values


def _find_names(frame: Any) -> list[Any] | None:
    """Return the names of the columns, None for what is no frame."""
    kind = type(frame)  # as asking a frame itself may take time
    attribute = next((each for each in _NAMED_BY if hasattr(kind, each)), None)
    if attribute is None or not hasattr(kind, "__getitem__"):
        return None
    if hasattr(kind, "collect") and not hasattr(kind, "__len__"):
        raise DataError("this frame is lazy; give it collected: frame.collect()")
    names = getattr(frame, attribute)
    return None if names is None or callable(names) else list(names)


def _as_columns(frame: Any) -> dict[str, Callable[[], Any]]:
    """Return for each column what takes its values out of the frame."""
    if isinstance(frame, list):
        keys = dict.fromkeys(key for row in frame for key in row)
        return {str(key): _taker([row.get(key) for row in frame], None) for key in keys}
    names = list(frame) if isinstance(frame, Mapping) else _find_names(frame) or []
    if len(set(map(str, names))) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"the column '{twice}' stands there twice")
    return {str(name): _taker(frame, name) for name in names}


def _taker(frame: Any, name: Any) -> Callable[[], Any]:
    return lambda: frame if name is None else frame[name]


def _as_list(column: Any) -> list[Any]:
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _plain(value: Any) -> Any:
    """Return a value as Python knows it: None for what is missing, lists for arrays of any kind."""
    if isinstance(value, str | int | bytes | None):
        return value
    if isinstance(value, float):
        if value != value:
            return None
        return int(value) if value.is_integer() else value
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, Sequence | set | frozenset) or hasattr(value, "tolist"):
        found = value.tolist() if hasattr(value, "tolist") else list(value)
        return list(map(_plain, found)) if isinstance(found, list) else found
    return value


def _find_class_names(frame: Any, column: str | None) -> Sequence[str] | None:
    """Return what the numbers of a column of labels mean, where a Hugging Face data set says it."""
    features = getattr(frame, "features", None)
    if column is None or not isinstance(features, Mapping):
        return None
    feature = features.get(column)
    return getattr(getattr(feature, "feature", feature), "names", None)


def _name_classes(cell: Any, names: Sequence[str] | None) -> Any:
    if names is None or cell is None:
        return cell
    return [names[each] for each in cell] if isinstance(cell, list) else [names[cell]]
