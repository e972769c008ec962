"""Corpora of Annif, the indexing tool of libraries: TSV files, and folders of full texts.

A line of the TSV is a text, a tab, and the URIs of its subjects with blanks between them, each
perhaps in angle brackets. In a folder each document is `NAME.txt`; its subjects stand in
`NAME.tsv`, a URI and a label a line, or in `NAME.key`, a label a line. Annif's CSV and
JSON lines are read as any others are.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from longtail.data.labels import LabelSpace, is_uri, strip_uri
from longtail.data.source import HEAD, Source
from longtail.data.table import Document
from longtail.errors import DataError

SUBJECT_ENDINGS = (".tsv", ".key")
_JUDGED = 100  # lines
_MOST_OTHERS = 0.1  # share of lines that may have no subjects


def is_annif(lines: list[str]) -> bool:
    """Return whether lines are texts with URIs behind a tab; the last may be cut."""
    judged = lines[: min(_JUDGED, max(len(lines) - 1, 1))]
    n_with = sum(map(_has_subjects, judged))
    return n_with > 0 and len(judged) - n_with <= _MOST_OTHERS * len(judged)


def _has_subjects(line: str) -> bool:
    _, tab, subjects = line.partition("\t")
    return bool(tab) and bool(subjects.split()) and all(map(is_uri, subjects.split()))


def annif_documents(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Document]:
    """Yield the documents of a TSV file."""
    for number, line in lines:
        if not line.strip():
            continue
        text, _, subjects = line.partition("\t")
        uris = [strip_uri(uri) for uri in subjects.split()]
        for uri in uris:
            if not is_uri(uri):
                raise DataError(
                    f"behind the tab stand URIs with blanks between them; got '{uri:.40}'",
                    path=path,
                    line=number,
                )
        yield number, text, uris, None, None


def find_full_texts(files: Iterable[Path]) -> list[tuple[Path, Path | None]]:
    """Return the texts of a folder with the files of their subjects; nothing if none has any."""
    there = {file.name: file for file in files}
    texts = [file for name, file in there.items() if name.endswith(".txt")]
    pairs = [
        (text, next((there[n] for e in SUBJECT_ENDINGS if (n := text.stem + e) in there), None))
        for text in texts
    ]
    return pairs if any(subjects is not None for _, subjects in pairs) else []


def full_text_documents(
    pairs: Iterable[tuple[Path, Path | None]], space: LabelSpace, encoding: str | None
) -> Iterator[Document]:
    """Yield the documents of a folder; one without a file of subjects has no labels."""
    for text, subjects in pairs:
        labels = [] if subjects is None else _read_subjects(subjects, space, encoding)
        yield 1, _read_whole(text, encoding), labels, text.stem, None


def _read_whole(path: Path, encoding: str | None) -> str:
    if path.stat().st_size < HEAD and not path.read_bytes().strip():
        return ""  # a document without words, or without subjects
    with Source(path, encoding) as source:
        return "\n".join(line for _, lines in source.lines() for line in lines)


def _read_subjects(path: Path, space: LabelSpace, encoding: str | None) -> list[str]:
    found = []
    for line in filter(str.strip, _read_whole(path, encoding).split("\n")):
        first, tab, label = line.partition("\t")
        if path.suffix == ".key" or not (tab or is_uri(first.strip())):
            found.append(line.strip())
        else:
            found.append(space.name_concept(strip_uri(first.strip()), label.strip()))
    return found
