"""Vocabulary: what labels stand for. Concepts with URIs, names in languages, and relations.

A concept has one preferred name a language, alternative names, notations (codes), broader and
related concepts, and may be deprecated and replaced by another. A label of data means the concept
whose URI, last part of the URI, notation, preferred or alternative name it is, looked for in this
order. A name that several concepts bear means the one that is not deprecated; where that does not
decide either, the label is left alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, ParameterError
from longtail.labels.cycles import find_cycle, spell_cycle
from longtail.runtime.schema import Array, Content, Schema, Texts, indices, starts
from longtail.runtime.store import Files

PREFERRED, ALTERNATIVE, NOTATION = range(3)
NO_CONCEPT = -1
AMBIGUOUS = -2  # several concepts bear the name
PREFIX = "concepts."  # of arrays and texts in a model folder
BY_CODE = 3  # the tables of URIs, their last parts and notations
_BRACKETS = {">": "<", "]": "["}

Ids = NDArray[np.int32]


@dataclass
class Concept:
    """A concept as files give it; names by language, which is empty where nobody says."""

    uri: str
    preferred: dict[str, str] = field(default_factory=dict)
    alternative: dict[str, list[str]] = field(default_factory=dict)
    notations: list[str] = field(default_factory=list)
    broader: list[str] = field(default_factory=list)
    related: list[str] = field(default_factory=list)
    deprecated: bool = False
    replaced_by: str | None = None


class Matched(NamedTuple):
    """What the labels of data mean.

    Attributes:
        concepts: (n_labels,) the concept of each label; NO_CONCEPT or AMBIGUOUS where none is.
        replaced: labels whose concept was replaced, with the URI of what replaces it.
    """

    concepts: Ids
    replaced: dict[str, str]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """All concepts, as arrays.

    Attributes:
        uris: (n,) the URI of each concept.
        languages: the languages that names are in; "" where nobody says.
        names: (n_names,) all names, those of a concept side by side.
        name_start: (n + 1,) where the names of each concept begin.
        name_language: (n_names,) the language of each.
        name_kind: (n_names,) PREFERRED, ALTERNATIVE or NOTATION.
        broader: (m, 2) a concept and one that is broader.
        related: (r, 2) a concept and one that is related to it.
        deprecated: (n,) 1 for concepts that are no longer used.
        replaced_by: (n,) the concept that takes its place; NO_CONCEPT if none does.
    """

    uris: Sequence[str]
    languages: Sequence[str]
    names: Sequence[str]
    name_start: NDArray[np.int64]
    name_language: Ids
    name_kind: NDArray[np.uint8]
    broader: Ids
    related: Ids
    deprecated: NDArray[np.uint8]
    replaced_by: Ids

    @classmethod
    def build(cls, concepts: Iterable[Concept]) -> "Vocabulary":
        """Number the concepts; relations to what is none of them are left out."""
        held = list(concepts)
        number = {concept.uri: i for i, concept in enumerate(held)}
        languages: dict[str, int] = {}
        names: list[str] = []
        kinds: list[int] = []
        spoken: list[int] = []
        ends = [0]
        for concept in held:
            for language, name, kind in _names_of(concept):
                names.append(name)
                kinds.append(kind)
                spoken.append(languages.setdefault(language, len(languages)))
            ends.append(len(names))

        def link(relations: Iterable[tuple[str, Sequence[str]]]) -> Ids:
            pairs = {
                (number[uri], number[other])
                for uri, others in relations
                for other in others
                if other in number
            }
            return np.array(sorted(pairs), np.int32).reshape(-1, 2)

        return cls(
            uris=[concept.uri for concept in held],
            languages=list(languages),
            names=names,
            name_start=np.array(ends, np.int64),
            name_language=np.array(spoken, np.int32),
            name_kind=np.array(kinds, np.uint8),
            broader=link((concept.uri, concept.broader) for concept in held),
            related=link((concept.uri, concept.related) for concept in held),
            deprecated=np.array([concept.deprecated for concept in held], np.uint8),
            replaced_by=np.array(
                [number.get(concept.replaced_by or "", NO_CONCEPT) for concept in held], np.int32
            ),
        )

    @classmethod
    def of_uris(cls, label_uris: Mapping[str, str]) -> "Vocabulary":
        """Return the vocabulary of labels of which only URIs are known."""
        concepts: dict[str, Concept] = {}
        for name, uri in label_uris.items():
            concept = concepts.setdefault(uri, Concept(uri))
            if name != uri:
                concept.alternative.setdefault("", []).append(name)
        return cls.build(concepts.values())

    def __len__(self) -> int:
        """Return the number of concepts."""
        return len(self.uris)

    def concepts(self) -> Iterable[Concept]:
        """Yield the concepts as files give them."""
        links = [_group(pairs, len(self)) for pairs in (self.broader, self.related)]
        for i, uri in enumerate(self.uris):
            replaced = int(self.replaced_by[i])
            concept = Concept(
                uri,
                broader=[self.uris[j] for j in links[0].get(i, ())],
                related=[self.uris[j] for j in links[1].get(i, ())],
                deprecated=bool(self.deprecated[i]),
                replaced_by=None if replaced == NO_CONCEPT else self.uris[replaced],
            )
            for place in range(*self.name_start[i : i + 2].tolist()):
                name, language = self.names[place], self.languages[self.name_language[place]]
                if self.name_kind[place] == PREFERRED:
                    concept.preferred[language] = name
                elif self.name_kind[place] == ALTERNATIVE:
                    concept.alternative.setdefault(language, []).append(name)
                else:
                    concept.notations.append(name)
            yield concept

    # -- names ------------------------------------------------------------------------------

    def preferred(self, language: str | None = None) -> list[str | None]:
        """Return each concept's preferred name in a language; None where it has none.

        Without a language, the first that the file gives.
        """
        code = None if language is None else self.find_language(language)
        found: list[str | None] = [None] * len(self)
        wanted = self.name_kind == PREFERRED
        if code is not None:
            wanted &= self.name_language == code
        places = np.flatnonzero(wanted)
        owners = np.searchsorted(self.name_start, places, side="right") - 1
        for place, owner in zip(places[::-1].tolist(), owners[::-1].tolist(), strict=True):
            found[owner] = self.names[place]
        return found

    def find_language(self, language: str) -> int:
        """Return the number of a language; ParameterError if no concept has a name in it."""
        if language in self.languages:
            return self.languages.index(language)
        known = ", ".join(sorted(filter(None, self.languages)))
        raise ParameterError(
            f"no concept of the vocabulary has a name in the language '{language}'; "
            + (f"there are: {known}" if known else "its names have no language")
        )

    def names_of(self, concept: int) -> list[str]:
        """Return all names of a concept but its notations."""
        places = range(*self.name_start[concept : concept + 2].tolist())
        return [self.names[place] for place in places if self.name_kind[place] != NOTATION]

    # -- what labels mean -------------------------------------------------------------------

    @cached_property
    def _numbers(self) -> list[dict[str, int]]:
        """The concepts by URI, its last part, notation, preferred and alternative name."""
        owners = np.repeat(np.arange(len(self)), np.diff(self.name_start)).tolist()
        named: list[list[tuple[str, int]]] = [[], [], []]
        for name, kind, owner in zip(self.names, self.name_kind.tolist(), owners, strict=True):
            named[kind].append((name, owner))
        by_uri = {uri: i for i, uri in enumerate(self.uris)}
        tails = [(last_part(uri), i) for uri, i in by_uri.items()]
        tables = [tails, named[NOTATION], named[PREFERRED], named[ALTERNATIVE]]
        return [by_uri, *map(self._decide, tables)]

    def _decide(self, named: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Return the concept that each name means: a deprecated one only if no other bears it."""
        current: dict[str, int] = {}
        old: dict[str, int] = {}
        deprecated = self.deprecated.tolist()
        for name, concept in named:
            found = old if deprecated[concept] else current
            if found.setdefault(name, concept) != concept:
                found[name] = AMBIGUOUS
        return old | current

    def find(self, label: str) -> int:
        """Return the concept that a label means, NO_CONCEPT or AMBIGUOUS.

        Labels of one name may be told apart by what stands behind: `bass <URI>`, `bass [code]`.
        """
        found = next((table[label] for table in self._numbers if label in table), NO_CONCEPT)
        if found >= 0 or label[-1:] not in _BRACKETS:
            return found
        code = label.rpartition(_BRACKETS[label[-1]])[2][:-1]
        return next((table[code] for table in self._numbers[:BY_CODE] if code in table), found)

    def match(self, labels: Sequence[str], uris: Mapping[str, str] | None = None) -> Matched:
        """Return the concepts that labels mean now; `uris` are those that the data give."""
        known = uris or {}
        found = np.array([self.find(known.get(label, label)) for label in labels], np.int32)
        for i in np.flatnonzero(found < 0).tolist():
            if labels[i] in known:  # the URI is unknown, but the name may not be
                found[i] = self.find(labels[i])
        current = np.where(found >= 0, self._current[found], found).astype(np.int32)
        replaced = {
            labels[i]: self.uris[current[i]] for i in np.flatnonzero(current != found).tolist()
        }
        return Matched(current, replaced)

    @cached_property
    def _current(self) -> Ids:
        """(n,) the concept that stands for each now, itself unless it was replaced."""
        if not len(self):
            return np.zeros(1, np.int32)
        own = np.arange(len(self), dtype=np.int32)
        following = np.where(self.replaced_by >= 0, self.replaced_by, own)
        current = following
        for _ in range(int(np.ceil(np.log2(len(self) + 1)))):  # each step doubles the way gone
            current = current[current]
        settled = following[current] == current
        return np.where(settled, current, own).astype(np.int32)

    def find_problems(self) -> list[str]:
        """Return a sentence for each thing that may surprise."""
        problems = []
        own = np.arange(len(self))
        circling = np.flatnonzero((self.replaced_by >= 0) & (self._current[: len(self)] == own))
        if len(circling):
            uri = self.uris[circling[0]]
            problems.append(
                f"{len(circling):,} concepts are replaced by one another in a circle, such as "
                f"<{uri}>; they are left as they are."
            )
        cycle = find_cycle(self.broader[:, ::-1], len(self))
        if cycle:
            shown = self.preferred()
            names = [shown[each] or self.uris[each] for each in cycle]
            problems.append(
                f"The hierarchy has a cycle: {spell_cycle(names)}; metrics that count what is "
                "above a label count too much there."
            )
        for code, language in enumerate(self.languages):
            places = np.flatnonzero((self.name_language == code) & (self.name_kind == PREFERRED))
            borne = Counter(self.names[place] for place in places.tolist())
            twice = [name for name, n in borne.items() if n > 1]
            if twice:
                what = f"in the language '{language}'" if language else "without a language"
                problems.append(
                    f"{len(twice):,} preferred names {what} belong to several concepts, such as "
                    f"'{min(twice)}'; labels of data that are such names are not matched, "
                    "those that are URIs are."
                )
        return problems

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add it under "concepts"."""
        for name in ("uris", "languages", "names"):
            files.texts[PREFIX + name] = getattr(self, name)
        for name in ARRAYS:
            files.arrays[PREFIX + name] = getattr(self, name)

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of what `add_to_files` adds."""
        texts = {
            "uris": Texts("n_concepts", unique=True),
            "languages": Texts("n_languages", unique=True),
            "names": Texts("n_concept_names"),
        }
        return Schema(
            arrays={PREFIX + name: array for name, array in ARRAYS.items()},
            texts={PREFIX + name: each for name, each in texts.items()},
        )

    @classmethod
    def from_files(cls, files: Files) -> "Vocabulary | None":
        """Take back what was saved, if there is a vocabulary."""
        if PREFIX + "uris" not in files.texts:
            return None
        held: dict[str, Any] = {name: files.arrays[PREFIX + name] for name in ARRAYS}
        held |= {name: files.texts[PREFIX + name] for name in ("uris", "languages", "names")}
        return cls(**held)


def last_part(uri: str) -> str:
    """Return what stands behind the last slash or number sign of a URI."""
    return uri.replace("#", "/").rstrip("/").rpartition("/")[2]


def _names_of(concept: Concept) -> Iterable[tuple[str, str, int]]:
    """Yield the language, name and kind of each name of a concept, the preferred ones first."""
    for language, name in concept.preferred.items():
        yield language, name, PREFERRED
    for language, names in concept.alternative.items():
        for name in names:
            yield language, name, ALTERNATIVE
    for name in concept.notations:
        yield "", name, NOTATION


def _group(pairs: Ids, n: int) -> dict[int, list[int]]:
    """Return for each first number of the pairs, which are in order, the second ones."""
    if not len(pairs):
        return {}
    first, begins = np.unique(pairs[:, 0], return_index=True)
    ends = [*begins.tolist(), len(pairs)]
    return {
        number: pairs[a:b, 1].tolist()
        for number, (a, b) in zip(first.tolist(), pairwise(ends), strict=True)
    }


ARRAYS: Mapping[str, Array] = {
    "name_start": starts("n_concepts", of="n_concept_names"),
    "name_language": indices("n_concept_names", into="n_languages"),
    "name_kind": indices("n_concept_names", into=NOTATION + 1, dtypes=(np.uint8,)),
    "broader": indices("n_broader", 2, into="n_concepts"),
    "related": indices("n_related", 2, into="n_concepts"),
    "deprecated": indices("n_concepts", into=2, dtypes=(np.uint8,)),
    "replaced_by": Array(
        (np.int32,),
        ("n_concepts",),
        Content(
            "numbers of concepts, or -1",
            lambda array, sizes: bool(array.min() >= -1 and array.max() < sizes["n_concepts"]),
        ),
    ),
}


def check_some(vocabulary: Vocabulary, path: object) -> Vocabulary:
    """Return a vocabulary that has concepts; DataError for one that has none."""
    if not len(vocabulary):
        raise DataError(f"{path}: holds no concept")
    return vocabulary
