"""JSON lines: an object a line, with a text, labels and perhaps an id.

Fields are recognized as the columns of tables are, by the first objects. An object may still name
its fields otherwise, and a field that is null is empty. A label is a string, a whole number, or an
object with `label` and `uri`, as Annif writes it; fields within `metadata` count as well.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from longtail.data.columns import Columns, choose_columns, find_labels, find_text
from longtail.data.labels import LabelSpace
from longtail.data.source import Source, name_json_type, parse_object
from longtail.data.table import Document, parse_cell, spell_id
from longtail.errors import DataError
from longtail.reading import ReadOptions

NumberedLines = Iterable[tuple[int, str]]
STANDARD = Columns(("text",), "labels")
_SAMPLED = 100  # objects
_SHAPE = 'a document is {"text": "…", "labels": ["…"]}'


class JsonReader:
    """Reads objects whose fields are chosen by the first of them.

    Attributes:
        columns: the fields.
        has_cells: whether labels are strings to be split, as in tables, and not lists.
    """

    def __init__(
        self,
        path: Path,
        options: ReadOptions,
        space: LabelSpace | None,
        columns: Columns,
        has_cells: bool,
    ) -> None:
        """Read these fields; the URIs of labels go into `space`, None if nobody wants labels."""
        self.path, self.options, self.space = path, options, space
        self.columns, self.has_cells = columns, has_cells

    @classmethod
    def open(cls, source: Source, options: ReadOptions, space: LabelSpace | None) -> "JsonReader":
        """Look at the first objects of a source to choose the fields."""
        objects = [_flatten(each) for each in _read_first(source)]
        names = list(dict.fromkeys(key for each in objects for key in each))
        columns = STANDARD  # reading will say what is wrong with the first object
        if objects:
            columns = choose_columns(
                names,
                lambda: {name: [each.get(name) for each in objects] for name in names},
                options,
                source.path,
                labels=space is not None,
            )
        label = columns.labels or ""
        first = next((each[label] for each in objects if each.get(label)), None)
        return cls(source.path, options, space, columns, isinstance(first, str))

    def read(self, lines: NumberedLines) -> Iterator[Document]:
        """Yield the documents of lines."""
        field, label, id = self.columns.text[0], self.columns.labels or "", self.columns.id
        is_single, keep = len(self.columns.text) == 1, self.options.keep
        for number, line in lines:
            if not line or line.isspace():
                continue
            document = parse_object(line, self.path, number)
            text = document.get(field) if is_single else None
            if type(text) is not str:
                text = self._join_text(document, number)
            found = None
            if self.space is not None:
                found = document.get(label)
                if type(found) is not list:
                    found = self._other_labels(document, number)
                if type(found) is list and dict in map(type, found):
                    found = [self._name(each, number) for each in found]
            name = None if id is None else spell_id(document.get(id))
            yield number, text, found, name, document if keep else None

    def _join_text(self, document: dict[str, Any], line: int) -> str:
        document = _flatten(document)
        fields = [name for name in self.columns.text if name in document]
        if not fields and self.options.text is None:
            fields = find_text(document)
        if not fields:
            wanted = '"text"' if self.options.text is None else f'"{self.columns.text[0]}"'
            raise DataError(
                f"no {wanted} in the object, only {_name_keys(document)}; {_SHAPE}",
                path=self.path,
                line=line,
            )
        parts = [document[name] for name in fields]
        for name, value in zip(fields, parts, strict=True):
            if not isinstance(value, str | None):
                raise DataError(
                    f'"{name}" must be a string; got {name_json_type(value)}',
                    path=self.path,
                    line=line,
                )
        return " ".join(filter(None, parts))

    def _other_labels(self, document: dict[str, Any], line: int) -> list[Any] | str:
        name = self.columns.labels
        if name not in document and self.options.labels is None:
            name = find_labels(document)
        if name is None or name not in document:
            raise DataError(
                f'no "{self.options.labels or "labels"}" in the object, only '
                f"{_name_keys(document)}; {_SHAPE}",
                path=self.path,
                line=line,
            )
        labels = document[name]
        if self.has_cells and isinstance(labels, str):
            return parse_cell(labels, self.path, line, self.options)
        if not isinstance(labels, list | None):
            raise DataError(
                f'"{name}" must be a list such as ["beer", "wine"]; got {name_json_type(labels)}',
                path=self.path,
                line=line,
            )
        return labels or []

    def _name(self, label: Any, line: int) -> Any:
        """Return the name of a label that is an object with `label`, `uri` or both."""
        if type(label) is not dict or self.space is None:
            return label
        uri, name = label.get("uri"), label.get("label")
        if not isinstance(uri, str | None) or not isinstance(name, str | None) or not (uri or name):
            raise DataError(
                'a label that is an object must be {"label": "…", "uri": "…"}',
                path=self.path,
                line=line,
            )
        return self.space.name_concept(uri, name)


def _read_first(source: Source) -> list[dict[str, Any]]:
    """Return the objects at the beginning; whatever is wrong there, reading will say."""
    lines = source.head.decode(errors="replace").split("\n")
    found: list[dict[str, Any]] = []
    for line in lines if source.is_whole else lines[:-1]:
        if len(found) < _SAMPLED and line.strip():
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
                if type(value) is dict:
                    found.append(value)
    return found


def _flatten(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the fields of its metadata."""
    metadata = document.get("metadata")
    return {**metadata, **document} if type(metadata) is dict else document


def _name_keys(document: dict[str, Any]) -> str:
    keys = ", ".join(f'"{key:.20}"' for key in list(document)[:5])
    return keys or "nothing"
