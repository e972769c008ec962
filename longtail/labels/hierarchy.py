"""A hierarchy of labels given by a file, and the label graph that it stands for.

The file holds a parent and a child a line, separated by a tab (or a semicolon, bar or comma, the
first of them that occurs), or it is a SKOS vocabulary in Turtle or RDF/XML. There a concept is
known by each of its preferred labels, its notation, its address, and the last part of that.

Names that are no labels of the data stay as nodes: two labels below such a node are near each
other. A name above itself is an error, as such a hierarchy has been put together wrongly.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.data.source import Source
from longtail.errors import DataError, MissingExtraError, suggest
from longtail.labels.graph import LabelGraph, connect
from longtail.progress import SILENT, Progress

SKOS_FORMATS = {
    ".ttl": "turtle",
    ".turtle": "turtle",
    ".nt": "turtle",
    ".rdf": "xml",
    ".xml": "xml",
    ".owl": "xml",
    ".skos": "xml",
}
SEPARATORS = "\t;|,"
SHOWN = 5  # members of a cycle that an error names


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
    if not Path(path).exists():
        raise DataError("there is no such hierarchy file", path=path)
    if Path(path).is_dir():
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
    path = Path(path)
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    rdf_format = SKOS_FORMATS.get(suffix)
    hierarchy = read_pairs(path) if rdf_format is None else read_skos(path, rdf_format)
    if not len(hierarchy.pairs):
        raise DataError("holds no parent and child", path=path)
    cycle = find_cycle(hierarchy.pairs, len(hierarchy.names))
    if cycle:
        names = [f"'{hierarchy.names[node][0]}'" for node in cycle]
        if len(names) > SHOWN:
            names = [*names[: SHOWN - 1], "…", names[-1]]
        raise DataError(f"has a cycle: {' above '.join(names)}", path=path)
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


def read_skos(path: Path, rdf_format: str) -> Hierarchy:
    """Read broader and narrower concepts of a vocabulary."""
    try:
        from rdflib import Graph
        from rdflib.namespace import SKOS
    except ImportError as error:
        raise MissingExtraError(
            "Reading a SKOS vocabulary needs rdflib, which is not installed; "
            "install it with: pip install 'longtail[skos]'"
        ) from error
    graph = Graph()
    with Source(path) as source:
        content = source.seekable().read()
    try:
        graph.parse(data=content, format=rdf_format)
    except Exception as error:  # each parser of rdflib raises errors of its own
        reason = " ".join(str(error).split())
        raise DataError(f"is not a vocabulary in {rdf_format}: {reason:.200}", path=path) from error
    pairs = [(broader, narrower) for narrower, broader in graph.subject_objects(SKOS.broader)]
    pairs += graph.subject_objects(SKOS.narrower)
    concepts = sorted({str(concept) for pair in pairs for concept in pair})
    number = {concept: i for i, concept in enumerate(concepts)}
    names = dict(_names_of(graph, SKOS, number))
    return Hierarchy(
        path,
        [[*names.get(concept, []), *_parts_of(concept)] for concept in concepts],
        _as_pairs(sorted({(number[str(a)], number[str(b)]) for a, b in pairs})),
    )


def _names_of(graph: Any, skos: Any, concepts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each concept with its preferred labels and notations, in a fixed order."""
    found: dict[str, list[str]] = {concept: [] for concept in concepts}
    for relation in (skos.prefLabel, skos.notation):
        values = sorted((str(concept), str(name)) for concept, name in graph[:relation:])
        for concept, name in values:
            if concept in found:
                found[concept].append(name)
    yield from found.items()


def _parts_of(address: str) -> list[str]:
    """Return the address of a concept and the last part of it."""
    return [address, address.replace("#", "/").rstrip("/").rpartition("/")[2]]


def _as_pairs(pairs: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2)


# --------------------------------------------------------------------------------------- cycles


def find_cycle(pairs: NDArray[np.int64], n_nodes: int) -> list[int]:
    """Return the nodes of one cycle, its first node again at the end; none if there is none.

    Nodes with nothing above them are taken away until none is left to take: each node that
    remains has a parent that remains, so that going up must come back.
    """
    children: dict[int, list[int]] = {}
    parents: dict[int, list[int]] = {}
    n_above = np.zeros(n_nodes, np.int64)
    for parent, child in np.unique(pairs, axis=0).tolist():
        children.setdefault(parent, []).append(child)
        parents.setdefault(child, []).append(parent)
        n_above[child] += 1
    free = np.flatnonzero(n_above == 0).tolist()
    while free:
        for child in children.get(free.pop(), []):
            n_above[child] -= 1
            if n_above[child] == 0:
                free.append(child)
    if not n_above.any():
        return []
    way = [int(np.flatnonzero(n_above)[0])]
    while way.count(way[-1]) == 1:
        way.append(next(parent for parent in parents[way[-1]] if n_above[parent]))
    return way[way.index(way[-1]) :][::-1]
