"""Files of vocabularies: SKOS, tables of names, plain lists, and our own format.

SKOS is read in RDF/XML, Turtle and JSON-LD, by rdflib. A table holds a URI, a name and perhaps a
language a line, or has a header: `uri`, `label`, `language`, `notation`, `label_fi`, …. A list has
a name a line; the name is then the URI as well. Ours has a JSON object a line, the first of which
says that it is ours:

    {"longtail_vocabulary": 1, "concepts": 2}
    {"uri": "http://ex.org/p1", "preferred": {"en": "beer", "fi": "olut"}, "broader": [ … ]}
"""

import csv
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO
from xml.parsers.expat import ParserCreate

from longtail.data.labels import is_uri, strip_uri
from longtail.data.source import Source, drop_packed, parse_object
from longtail.errors import DataError, MissingExtraError
from longtail.labels.vocabulary import Concept, Vocabulary, check_some
from longtail.storage import as_place

SKOS_FORMATS = {
    ".ttl": "turtle",
    ".turtle": "turtle",
    ".nt": "turtle",
    ".rdf": "xml",
    ".xml": "xml",
    ".owl": "xml",
    ".skos": "xml",
    ".jsonld": "json-ld",
    ".json": "json-ld",
}
MARK, VERSION = "longtail_vocabulary", 1
LONGEST_ENTITY = 200  # characters; the entities of RDF/XML are short for namespaces
HEADINGS = {
    "uri": ("uri", "concept", "id", "iri"),
    "label": ("label", "name", "preflabel", "preferred"),
    "alternative": ("alternative", "altlabel", "alias", "synonym"),
    "language": ("language", "lang"),
    "notation": ("notation", "code"),
}
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", re.IGNORECASE)
_LABEL_IN = re.compile(r"(?:pref)?label[_@-]([a-z]{2,3}(?:-[a-z0-9]+)*)", re.IGNORECASE)


def rdf_format_of(path: Path) -> str | None:
    """Return what rdflib calls the format of a file, by its name; None if that is not RDF."""
    return SKOS_FORMATS.get(Path(drop_packed(path.name)).suffix.lower())


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary in any of the formats."""
    path = as_place(path)
    with Source(path) as source:
        if source.head.lstrip().startswith(b'{"' + MARK.encode()):
            return check_some(Vocabulary.build(_read_ours(source)), path)
    rdf_format = rdf_format_of(path)
    if rdf_format is not None:
        return check_some(read_skos(path, rdf_format), path)
    return check_some(Vocabulary.build(_read_table(path)), path)


# -- ours -------------------------------------------------------------------------------------


def write_vocabulary(vocabulary: Vocabulary, file: TextIO) -> None:
    """Write a vocabulary in our format."""
    file.write(json.dumps({MARK: VERSION, "concepts": len(vocabulary)}) + "\n")
    for concept in vocabulary.concepts():
        held = {key: value for key, value in vars(concept).items() if value}
        file.write(json.dumps(held, ensure_ascii=False) + "\n")


def _read_ours(source: Source) -> Iterator[Concept]:
    path, seen = source.path, set()
    n_concepts = None
    for first, block in source.lines():
        for number, line in enumerate(block, first):
            if not line.strip():
                continue
            held = parse_object(line, path, number)
            if n_concepts is None:
                n_concepts = _check_head(held, path)
                continue
            concept = _parse_concept(held, path, number)
            if concept.uri in seen:
                raise DataError(
                    f"the concept <{concept.uri}> is there twice", path=path, line=number
                )
            seen.add(concept.uri)
            yield concept
    if len(seen) != n_concepts:
        raise DataError(
            f"should hold {n_concepts:,} concepts and holds {len(seen):,}; the file was cut off or "
            "changed; write it again with longtail vocab load",
            path=path,
        )


def _check_head(held: Mapping[str, Any], path: Path) -> int:
    if held[MARK] != VERSION or not isinstance(held.get("concepts"), int):
        raise DataError(
            f"is a vocabulary of version {held[MARK]!r:.20}, and this longtail reads version "
            f"{VERSION}; write it again with longtail vocab load",
            path=path,
        )
    return int(held["concepts"])


def _parse_concept(held: dict[str, Any], path: Path, line: int) -> Concept:
    """Return the concept of one line, after checking the type of each of its values."""
    for key, value in held.items():
        check = _CHECKS.get(key)
        if check is None:
            raise DataError(f"a concept has no '{key:.40}'", path=path, line=line)
        if not check(value):
            raise DataError(f"the value of '{key}' is not of its type", path=path, line=line)
    if not held.get("uri"):
        raise DataError("a concept must have a uri", path=path, line=line)
    return Concept(**held)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_names(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "uri": lambda value: isinstance(value, str),
    "preferred": _is_names,
    "alternative": lambda value: isinstance(value, dict) and all(map(_is_texts, value.values())),
    "notations": _is_texts,
    "broader": _is_texts,
    "related": _is_texts,
    "deprecated": lambda value: isinstance(value, bool),
    "replaced_by": lambda value: isinstance(value, str),
}


# -- tables and lists -------------------------------------------------------------------------


def _read_table(path: Path) -> Iterable[Concept]:
    """Read a table of names, or a list."""
    with Source(path) as source:
        lines = [line for _, block in source.lines() for line in block]
    filled = [line for line in lines if line.strip()]
    if filled and filled[0].lstrip().startswith(("{", "<?xml", "<rdf", "@prefix")):
        raise DataError(
            f"is no list of names, by its first line {filled[0]!r:.60}; the name of a SKOS file "
            f"must end in {', '.join(SKOS_FORMATS)}",
            path=path,
        )
    delimiter = next((mark for mark in "\t;," if filled and mark in filled[0]), None)
    if delimiter in (";", ",") and not path.name.lower().endswith((".csv", ".csv.gz")):
        delimiter = None  # names may contain commas
    if delimiter is None:
        return _read_list(filled)
    try:
        rows = [(number, row) for number, row in _split(lines, delimiter) if any(row)]
    except csv.Error as error:
        raise DataError(f"is not a readable table ({error})", path=path) from None
    columns = _find_columns([row for _, row in rows], path)
    header = rows[0][1] if _has_header(rows[0][1]) else None
    return _gather(rows[header is not None :], columns, path)


def _split(lines: Sequence[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL, strict=True)
    for row in reader:
        yield reader.line_num, [cell.strip() for cell in row]


def _read_list(lines: Sequence[str]) -> Iterator[Concept]:
    for name in dict.fromkeys(strip_uri(line.strip()) for line in lines):
        yield Concept(name) if is_uri(name) else Concept(name, {"": name})


def _heading(cell: str) -> tuple[str, str] | None:
    """Return what a column holds, and in which language, by its heading."""
    plain = cell.strip().lower().lstrip("#")
    in_language = _LABEL_IN.fullmatch(plain)
    if in_language:
        return "label", in_language[1]
    return next(((what, "") for what, words in HEADINGS.items() if plain in words), None)


def _has_header(row: Sequence[str]) -> bool:
    return any(map(_heading, row)) and not any(map(is_uri, row))


def _find_columns(rows: Sequence[Sequence[str]], path: Path) -> list[tuple[str, str] | None]:
    """Return what each column holds: by its heading, or else by what it looks like."""
    if _has_header(rows[0]):
        columns = [_heading(cell) for cell in rows[0]]
        if not any(each and each[0] in ("label", "uri") for each in columns):
            raise DataError(
                f"has neither a column 'uri' nor 'label'; its columns are {', '.join(rows[0])}",
                path=path,
            )
        return columns
    some = rows[:1000]
    columns = [("uri", ""), ("label", "")]
    if len(rows[0]) > 2:
        spoken = all(len(row) > 2 and _LANGUAGE.fullmatch(row[2]) for row in some)
        columns.append(("language" if spoken else "notation", ""))
    return [*columns]


def _gather(
    rows: Sequence[tuple[int, list[str]]], columns: Sequence[tuple[str, str] | None], path: Path
) -> Iterable[Concept]:
    """Return the concepts of a table; a concept may have several lines."""
    found: dict[str, Concept] = {}
    for number, row in rows:
        cells: dict[str, str] = {}
        labels: list[tuple[str, str]] = []
        for column, cell in zip(columns, row, strict=False):
            if column is None or not cell:
                continue
            if column[0] == "label":
                labels.append((column[1], cell))
            else:
                cells[column[0]] = cell
        uri = strip_uri(cells.get("uri", labels[0][1] if labels else ""))
        if not uri:
            raise DataError(
                f"a line must hold a URI and a name; got {', '.join(row)!r:.60}",
                path=path,
                line=number,
            )
        concept = found.setdefault(uri, Concept(uri))
        for language, label in labels:
            _add_name(concept, language or cells.get("language", ""), label)
        if "alternative" in cells:
            names = concept.alternative.setdefault(cells.get("language", ""), [])
            names.append(cells["alternative"])
        if "notation" in cells and cells["notation"] not in concept.notations:
            concept.notations.append(cells["notation"])
    return found.values()


def _add_name(concept: Concept, language: str, name: str) -> None:
    """Make a name the preferred one of its language, or an alternative if there is one already."""
    if concept.preferred.setdefault(language, name) != name:
        names = concept.alternative.setdefault(language, [])
        if name not in names:
            names.append(name)


# -- SKOS -------------------------------------------------------------------------------------


def read_skos(path: Path, rdf_format: str) -> Vocabulary:
    """Read the concepts of a vocabulary in RDF."""
    graph = _parse_graph(path, rdf_format)
    concepts = {uri: Concept(uri) for uri in sorted(_find_concepts(graph))}
    _take_names(graph, concepts)
    _take_relations(graph, concepts)
    return Vocabulary.build(concepts.values())


def _find_concepts(graph: Any) -> set[str]:
    """Return the URIs of what is a concept, has a preferred name or is above or below another."""
    from rdflib import URIRef
    from rdflib.namespace import RDF, SKOS

    nodes = set(graph[: RDF.type : SKOS.Concept]) | set(graph.subjects(SKOS.prefLabel))
    for relation in (SKOS.broader, SKOS.narrower):
        nodes |= {each for pair in graph[:relation:] for each in pair}
    for kind in (SKOS.ConceptScheme, SKOS.Collection, SKOS.OrderedCollection):
        nodes -= set(graph[: RDF.type : kind])  # they have preferred names, too
    # A blank node has another name at each read, and a literal is no concept.
    return {str(node) for node in nodes if isinstance(node, URIRef)}


def _take_names(graph: Any, concepts: Mapping[str, Concept]) -> None:
    """Give the concepts their names, in a fixed order."""
    from rdflib.namespace import SKOS

    for relation, add in (
        (SKOS.prefLabel, _add_name),
        (SKOS.altLabel, _add_alternative),
        (SKOS.hiddenLabel, _add_alternative),
        (SKOS.notation, _add_notation),
    ):
        values = (
            (str(a), getattr(b, "language", None) or "", str(b)) for a, b in graph[:relation:]
        )
        for uri, language, name in sorted(values):
            if uri in concepts:
                add(concepts[uri], language, name)


def _take_relations(graph: Any, concepts: Mapping[str, Concept]) -> None:
    """Give the concepts what is above and beside them, and what replaces them."""
    from rdflib.namespace import DCTERMS, OWL, SKOS

    def pairs(relation: Any) -> list[tuple[Concept, str]]:
        values = sorted((str(a), str(b)) for a, b in graph[:relation:])
        return [(concepts[uri], other) for uri, other in values if uri in concepts]

    for concept, other in pairs(SKOS.broader):
        concept.broader.append(other)
    for concept, other in pairs(SKOS.narrower):
        if other in concepts:
            concepts[other].broader.append(concept.uri)
    for concept, other in pairs(SKOS.related):
        concept.related.append(other)
    for concept, said in pairs(OWL.deprecated):
        concept.deprecated = said.lower() in ("true", "1")
    for concept, other in pairs(DCTERMS.isReplacedBy):
        concept.deprecated, concept.replaced_by = True, other


def _add_alternative(concept: Concept, language: str, name: str) -> None:
    concept.alternative.setdefault(language, []).append(name)


def _add_notation(concept: Concept, language: str, name: str) -> None:
    concept.notations.append(name)


def _parse_graph(path: Path, rdf_format: str) -> Any:
    """Return the statements of a file."""
    try:
        from rdflib import Graph
    except ImportError as error:
        raise MissingExtraError.of("Reading a SKOS vocabulary needs rdflib", "skos") from error
    graph = Graph()
    with Source(path) as source:
        content = source.seekable().read()
    try:
        if rdf_format == "json-ld":
            _check_contexts(json.loads(content), path)
        if rdf_format == "xml":
            _check_entities(content, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # rdflib's, of its own code
            graph.parse(data=content, format=rdf_format)
    except DataError:
        raise
    except Exception as error:  # each parser of rdflib raises errors of its own
        reason = " ".join(str(error).split())
        raise DataError(f"is not a vocabulary in {rdf_format}: {reason:.200}", path=path) from error
    return graph


class _PrologueOver(Exception):
    """The first element begins, before which all entities are declared."""


def _check_entities(content: bytes, path: Path) -> None:
    """Raise DataError for entities that open files or grow without bound; namespaces do neither."""

    def check(name: str, is_parameter: bool, value: str | None, *_: object) -> None:
        plain = not is_parameter and value is not None
        if not plain or len(value or "") > LONGEST_ENTITY or set("&%") & set(value or ""):
            raise DataError(
                f"its entity '{name:.40}' is not plain text of up to {LONGEST_ENTITY} characters, "
                "and could open files or fill the memory; write it out",
                path=path,
            )

    def stop(*_: object) -> None:
        raise _PrologueOver

    parser = ParserCreate()
    parser.EntityDeclHandler = check
    parser.StartElementHandler = stop
    with suppress(_PrologueOver):
        parser.Parse(content, True)


def _check_contexts(held: Any, path: Path) -> None:
    """Raise DataError where a parser would fetch a context from elsewhere."""
    waiting = [held]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            context = each.get("@context")
            listed = context if isinstance(context, list) else [context]
            links = [link for link in listed if isinstance(link, str)]
            if links or "@import" in each:
                link = links[0] if links else each["@import"]
                raise DataError(
                    f"its context is the link '{link!s:.60}', which is not followed; put the "
                    "context itself into the file",
                    path=path,
                )
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
