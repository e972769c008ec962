"""Labels of training data in the terms of a vocabulary: matched, replaced where deprecated."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longtail.data.dataset import Dataset
from longtail.data.labels import is_uri
from longtail.errors import DataError
from longtail.labels.state import list_labels, tell_apart
from longtail.labels.vocabulary import AMBIGUOUS, NO_CONCEPT, Ids, Vocabulary
from longtail.labels.vocabulary_files import read_vocabulary


class Adopted(NamedTuple):
    """Documents whose labels a vocabulary names, and what there is to say about that."""

    dataset: Dataset
    notes: list[str]


def adopt(dataset: Dataset, vocabulary: Vocabulary, language: str | None = None) -> Adopted:
    """Return the documents with labels as the vocabulary has them.

    Labels of one concept become one; a deprecated concept becomes the one that replaces it. Labels
    keep the names of the data, or have their preferred names in `language`.
    """
    labels = dataset.label_names
    concepts, replaced = vocabulary.match(labels, dataset.label_uris)
    if not (concepts >= 0).any():
        raise DataError(
            f"none of the {len(labels):,} labels of the data is in the vocabulary: the data have "
            f"'{labels[0] if labels else ''}', the vocabulary has '{vocabulary.uris[0]}' "
            f"('{vocabulary.preferred()[0] or ''}')"
        )
    names = _name_labels(labels, concepts, set(replaced), vocabulary, language)
    renamed = dataset.rename(names)
    place = {name: i for i, name in enumerate(renamed.label_names)}
    concept_of = np.full(len(place), NO_CONCEPT, np.int32)
    concept_of[[place[name] for name in names]] = concepts
    known = [
        (name, concept)
        for name, concept in zip(renamed.label_names, concept_of.tolist(), strict=True)
        if concept >= 0
    ]
    found = replace(
        renamed,
        label_uris={name: vocabulary.uris[concept] for name, concept in known},
        other_names={name: vocabulary.names_of(concept) for name, concept in known},
    )
    return Adopted(found, say_matches(labels, concepts, replaced))


def compare_labels(dataset: Dataset, path: str | Path) -> list[str]:
    """Return a sentence for each way in which labels and a vocabulary do not fit."""
    matched = read_vocabulary(path).match(dataset.label_names, dataset.label_uris)
    notes = say_matches(dataset.label_names, *matched)
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def say_matches(labels: Sequence[str], concepts: Ids, replaced: dict[str, str]) -> list[str]:
    """Say which labels are unknown, which mean several concepts, and which were replaced."""

    def pick(which: int) -> list[str]:
        return [labels[i] for i in np.flatnonzero(concepts == which).tolist()]

    notes = []
    if unknown := pick(NO_CONCEPT):
        notes.append(f"of {len(labels):,} labels the vocabulary lacks {list_labels(unknown)}")
    if several := pick(AMBIGUOUS):
        notes.append(
            f"several concepts of the vocabulary have the names of {list_labels(several)}, which "
            "are therefore not matched; use URIs in the data"
        )
    if replaced:
        old = next(iter(replaced))
        notes.append(
            f"deprecated concepts are replaced in {list_labels(list(replaced))}, such as '{old}' "
            f"by <{replaced[old]}>"
        )
    return notes


def _name_labels(
    labels: Sequence[str],
    concepts: Ids,
    replaced: set[str],
    vocabulary: Vocabulary,
    language: str | None,
) -> list[str]:
    """Return one name for each concept, on all of its labels; others keep theirs."""
    chosen: dict[int, str] = {}
    preferred = vocabulary.preferred(language)
    for label, concept in zip(labels, concepts.tolist(), strict=True):
        if concept < 0 or (language is not None and preferred[concept]):
            continue
        if label not in replaced:
            chosen.setdefault(concept, label)
    for label, concept in zip(labels, concepts.tolist(), strict=True):
        if concept >= 0 and concept not in chosen:
            as_uri = language is None and is_uri(label)
            chosen[concept] = (not as_uri and preferred[concept]) or vocabulary.uris[concept]
    others = [label for label, c in zip(labels, concepts.tolist(), strict=True) if c < 0]
    uris = [vocabulary.uris[concept] for concept in chosen] + [None] * len(others)
    apart = tell_apart([*chosen.values(), *others], uris)
    named = dict(zip(chosen, apart, strict=False))
    return [
        label if concept < 0 else named[concept]
        for label, concept in zip(labels, concepts.tolist(), strict=True)
    ]
