"""Documents as texts: JSON lines, fastText files, parallel files and plain lines.

JSON lines and tables may name their fields in several ways. The text is the field `text`, or else
those of title, body, content, abstract and description that are there, joined by a blank. The
labels are the first of labels, label, tags, subjects, keywords, categories, topics and target_ind.
A field that is null is empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.data.labels import LabelRows, LabelSpace
from longtail.data.source import Source, name_json_type, parse_object
from longtail.errors import DataError

TEXT_FIELD = "text"
TEXT_PARTS = ("title", "body", "content", "abstract", "description")
LABEL_FIELDS = (
    "labels",
    "label",
    "tags",
    "subjects",
    "keywords",
    "categories",
    "topics",
    "target_ind",
)
FASTTEXT_MARK = "__label__"


# The line where a document stands, its text, and its labels: a list, a cell to be split, or None
# where there are none or they are not wanted.
Document = tuple[int, str, list[Any] | str | None]
NumberedLines = Iterable[tuple[int, str]]


@dataclass
class TextFile:
    """The documents of one file."""

    path: Path
    texts: list[str]
    labels: LabelRows


def choose_text_fields(names: Iterable[str]) -> list[str]:
    """Return the fields that make up the text, in the order in which they are joined."""
    present = set(names)
    return [TEXT_FIELD] if TEXT_FIELD in present else [n for n in TEXT_PARTS if n in present]


def choose_label_field(names: Iterable[str]) -> str | None:
    """Return the field that holds the labels, if there is one."""
    present = set(names)
    return next((name for name in LABEL_FIELDS if name in present), None)


def json_documents(path: Path, lines: NumberedLines, *, labels: bool) -> Iterator[Document]:
    """Yield the documents of JSON objects, one a line."""
    for number, line in lines:
        if not line or line.isspace():
            continue
        document = parse_object(line, path, number)
        text = document.get(TEXT_FIELD)
        if type(text) is not str:
            text = _join_text(document, path, number)
        found = document.get("labels") if labels else None
        if labels and type(found) is not list:
            found = _other_labels(document, path, number)
        yield number, text, found


def fasttext_documents(path: Path, lines: NumberedLines, *, labels: bool) -> Iterator[Document]:
    """Yield lines of `__label__x __label__y words`; each is a document, even an empty one."""
    for number, line in lines:
        found, text = [], line.strip()
        while text.startswith(FASTTEXT_MARK):
            mark, *rest = text.split(maxsplit=1)
            found.append(mark.removeprefix(FASTTEXT_MARK))
            text = rest[0] if rest else ""
        yield number, text, [label for label in found if label]


def plain_documents(path: Path, lines: NumberedLines, *, labels: bool) -> Iterator[Document]:
    """Yield the lines of plain text, which have no labels."""
    for number, line in lines:
        yield number, line, None


def collect(documents: Iterable[Document], path: Path, space: LabelSpace) -> TextFile:
    """Gather the documents of a file whose labels are lists."""
    file = TextFile(path, [], LabelRows(space.numbering))
    for line, text, labels in documents:
        file.texts.append(text)
        try:
            file.labels.add(labels or ())
        except TypeError:
            raise _label_error(labels, path, line) from None
    return file


def collect_cells(documents: Iterable[Document], path: Path, space: LabelSpace) -> TextFile:
    """Gather the documents of a file whose labels may be cells, to be split when all are read."""
    texts: list[str] = []
    cells: list[str | list[Any]] = []
    for _, text, labels in documents:
        texts.append(text)
        cells.append(labels or "")
    return TextFile(path, texts, space.split_cells(cells))


def read_parallel(texts: Source, labels: Source, space: LabelSpace) -> TextFile:
    """Read a file of texts and a file of labels, line by line the same documents.

    The labels of a line are split as LabelSpace says.
    """
    lines = [line for _, block in texts.lines() for line in block]
    cells = [line for _, block in labels.lines() for line in block]
    if len(cells) != len(lines):
        raise DataError(
            f"{len(lines)} lines of texts, but {len(cells)} lines of labels in "
            f"{labels.path}; line n of both must be the same document",
            path=texts.path,
        )
    return TextFile(texts.path, lines, space.split_cells(cells))


def _join_text(document: dict[str, Any], path: Path, line: int) -> str:
    fields = choose_text_fields(document)
    if not fields:
        raise DataError(
            f'no "text" in the object, only {_name_keys(document)}; '
            'a document is {"text": "…", "labels": ["…"]}',
            path=path,
            line=line,
        )
    parts = [document[name] for name in fields]
    for name, value in zip(fields, parts, strict=True):
        if not isinstance(value, str | None):
            raise DataError(
                f'"{name}" must be a string; got {name_json_type(value)}', path=path, line=line
            )
    return " ".join(filter(None, parts))


def _other_labels(document: dict[str, Any], path: Path, line: int) -> list[Any]:
    name = choose_label_field(document)
    if name is None:
        raise DataError(
            f'no "labels" in the object, only {_name_keys(document)}; '
            'a document is {"text": "…", "labels": ["…"]}',
            path=path,
            line=line,
        )
    labels = document[name]
    if not isinstance(labels, list | None):
        raise DataError(
            f'"{name}" must be a list such as ["beer", "wine"]; got {name_json_type(labels)}',
            path=path,
            line=line,
        )
    return labels or []


def _label_error(labels: Any, path: Path, line: int) -> DataError:
    """Say which label cannot be one."""
    wrong = [label for label in labels if type(label) not in (str, int)]
    got = name_json_type(wrong[0]) if wrong else "an empty string"
    return DataError(f"a label must be a string; got {got}", path=path, line=line)


def _name_keys(document: dict[str, Any]) -> str:
    keys = ", ".join(f'"{key:.20}"' for key in list(document)[:5])
    return keys or "nothing"
