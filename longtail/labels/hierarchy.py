"""A hierarchy of labels given by a file, and the label graph that it stands for.

The file holds a parent and a child a line, separated by a tab (or a semicolon, bar or comma, the
first of them that occurs), or it is a SKOS vocabulary in Turtle, RDF/XML or JSON-LD. There a
concept is known by each of its preferred labels, its notation, its address, and the last part of
that.

Names that are no labels of the data stay as nodes: two labels below such a node are near each
other. A name above itself is an error, as such a hierarchy has been put together wrongly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longtail.data.source import Source
from longtail.errors import DataError, suggest
from longtail.labels.cycles import find_cycle, spell_cycle
from longtail.labels.graph import LabelGraph, connect
from longtail.labels.vocabulary import ALTERNATIVE, Vocabulary, last_part
from longtail.labels.vocabulary_files import rdf_format_of, read_skos
from longtail.progress import SILENT, Progress
from longtail.storage import as_place

SEPARATORS = "\t;|,"


@dataclass(frozen=True)
class Hierarchy:
    """Nodes and which of them stand above others.

    Attributes:
        path: the file, for messages.
        names: what each node is called; the first name is shown.
        pairs: (m, 2) parent and child, as numbers of nodes.
    """

    path: Path
    names: list[list[str]]
    pairs: NDArray[np.int64]


def check_hierarchy(path: str | Path) -> None:
    """Raise DataError if there is no file `path`, before hours of work go into it."""
    if not as_place(path).exists():
        raise DataError("there is no such hierarchy file", path=path)
    if as_place(path).is_dir():
        raise DataError("is a folder; a hierarchy is one file", path=path)


def link_labels(
    path: str | Path, label_names: Sequence[str], progress: Progress = SILENT
) -> LabelGraph:
    """Return the graph of the labels, numbered first, and of the file's other nodes."""
    hierarchy = read_hierarchy(path)
    number = {name: i for i, name in enumerate(label_names)}
    ids = np.empty(len(hierarchy.names), np.int64)
    n_nodes = len(label_names)
    for node, names in enumerate(hierarchy.names):
        known = next((number[name] for name in names if name in number), None)
        ids[node] = n_nodes if known is None else known
        n_nodes += known is None
    n_known = len(np.unique(ids[ids < len(label_names)]))
    if not n_known:
        raise DataError(_describe_strangers(hierarchy, label_names), path=path)
    progress.stage("hierarchy", 1)
    progress.note(
        f"{n_known:,} of {len(label_names):,} labels are in the hierarchy; "
        f"{n_nodes - len(label_names):,} of its names are no labels"
    )
    progress.advance(1)
    return connect(ids[hierarchy.pairs], n_nodes)


def _describe_strangers(hierarchy: Hierarchy, label_names: Sequence[str]) -> str:
    theirs = hierarchy.names[0][0]
    hint = suggest(theirs, label_names)
    return (
        f"none of its {len(hierarchy.names):,} names is a label of the data; it names "
        f"'{theirs}', the data '{label_names[0]}'{hint}"
    )


def read_hierarchy(path: str | Path) -> Hierarchy:
    """Read a file of parents and children, or a SKOS vocabulary; cycles are refused."""
    check_hierarchy(path)
    path = as_place(path)
    rdf_format = rdf_format_of(path)
    hierarchy = read_pairs(path) if rdf_format is None else read_concepts(path, rdf_format)
    if not len(hierarchy.pairs):
        raise DataError("holds no parent and child", path=path)
    cycle = find_cycle(hierarchy.pairs, len(hierarchy.names))
    if cycle:
        names = [hierarchy.names[node][0] for node in cycle]
        raise DataError(f"has a cycle: {spell_cycle(names)}", path=path)
    return hierarchy


# --------------------------------------------------------------------------------------- reading


def read_pairs(path: Path) -> Hierarchy:
    """Read a parent and a child a line."""
    with Source(path) as source:
        lines = [
            (first + i, line)
            for first, block in source.lines()
            for i, line in enumerate(block)
            if line.strip()
        ]
    text = {mark for _, line in lines for mark in SEPARATORS if mark in line}
    separator = next((mark for mark in SEPARATORS if mark in text), None)
    numbers: dict[str, int] = {}
    pairs = []
    for line_number, line in lines:
        cells = [cell.strip() for cell in line.split(separator)]
        if len(cells) != 2 or not all(cells):
            raise DataError(
                f"a line must hold a parent and a child, separated by a tab; got {line!r:.60}",
                path=path,
                line=line_number,
            )
        pairs.append([numbers.setdefault(cell, len(numbers)) for cell in cells])
    return Hierarchy(path, [[name] for name in numbers], _as_pairs(pairs))


def read_concepts(path: Path, rdf_format: str) -> Hierarchy:
    """Read broader and narrower concepts of a vocabulary."""
    vocabulary = read_skos(path, rdf_format)
    linked = np.unique(vocabulary.broader)
    number = np.zeros(len(vocabulary), np.int64)
    number[linked] = np.arange(len(linked))
    pairs = number[vocabulary.broader[:, ::-1]]
    return Hierarchy(
        path, [_names_of(vocabulary, i) for i in linked.tolist()], np.unique(pairs, axis=0)
    )


def _names_of(vocabulary: Vocabulary, concept: int) -> list[str]:
    """Return the preferred names, notations, address of a concept and the last part of that."""
    places = range(*vocabulary.name_start[concept : concept + 2].tolist())
    kinds = vocabulary.name_kind
    names = [vocabulary.names[place] for place in places if kinds[place] != ALTERNATIVE]
    return [*names, vocabulary.uris[concept], last_part(vocabulary.uris[concept])]


def _as_pairs(pairs: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2)
