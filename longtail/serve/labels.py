"""The labels of a model that is served: found by any of their names, and described."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.labels.finding import search
from longtail.labels.word_index import index_words, look_up
from longtail.models.base import Model
from longtail.models.relabel import fold_labels

NEAR, EXAMPLES = 10, 5  # labels like a label, and documents with it, that are shown
RELATED = 100  # broader, narrower and related labels each, at most

Ids = NDArray[np.int32]


class Labels:
    """Finds and describes the labels that a model gives."""

    def __init__(self, model: Model) -> None:
        """Fold the names of all labels: their own and, by the vocabulary, those in any language."""
        self._model = model
        self._counts = np.asarray(model.current_counts.label_counts, dtype=np.int64)
        self._names = fold_labels(model)
        self._look_up = partial(look_up, self._names, index_words(self._names))
        for typed in ("of", "of which"):  # compiles
            self.find(typed, 1)

    def find(self, typed: str, n: int) -> list[int]:
        """Return the numbers of up to n labels, the best first."""
        return search(self._names, typed, self._counts, n, self._look_up)

    def find_all(self, typed: str, n: int, language: str | None = None) -> list[dict[str, Any]]:
        """Return up to n labels, described; the best first."""
        return self.describe_all(self.find(typed, n), language)

    def describe_all(self, numbers: Iterable[int], language: str | None) -> list[dict[str, Any]]:
        """Return the names and frequencies of labels, in the order of their numbers here."""
        names = self._names_in(language)
        return [self.describe(number, names) for number in numbers]

    def describe(self, number: int, names: Sequence[str]) -> dict[str, Any]:
        """Return a label's names and frequency, and its URI if it has one."""
        n_documents = max(1, self._model.training_counts_.n_documents)
        uris = self._model.label_uris
        n = int(self._counts[number])
        return {
            **self._name(number, names),
            "uri": None if uris is None else uris[number],
            "documents": n,
            "share": round(n / n_documents, 6),
        }

    def describe_fully(self, number: int, language: str | None = None) -> dict[str, Any]:
        """Return all that is known of a label: also what is near it, and documents that have it."""
        names = self._names_in(language)
        live = self._model.label_state_.is_live
        near = filter(lambda each: live(each[0]), self._model.find_near_labels(number, NEAR))
        examples = self._model.find_examples(number, EXAMPLES)
        return {
            **self.describe(number, names),
            **self._describe_relations(number, names),
            "neighbours": [
                {**self._name(other, names), "similarity": round(similarity, 6)}
                for other, similarity in near
            ],
            "examples": [
                {"number": each.number, "labels": list(each.labels), "text": each.text}
                for each in examples
            ],
        }

    def _name(self, number: int, names: Sequence[str]) -> dict[str, Any]:
        return {"id": number, "label": names[number], "own": self._model.label_names_[number]}

    def _names_in(self, language: str | None) -> Sequence[str]:
        return self._model.label_names_ if language is None else self._model.names_in(language)

    def _describe_relations(self, number: int, names: Sequence[str]) -> dict[str, Any]:
        """Return all names of a label, and the labels that its vocabulary relates to it."""
        state = self._model.label_state_
        if state.vocabulary is None or state.concepts is None or state.concepts[number] < 0:
            return {"names": [], "broader": [], "narrower": [], "related": []}
        concept = int(state.concepts[number])
        broader, related = state.vocabulary.broader, state.vocabulary.related
        near = np.union1d(_beside(related, 0, concept), _beside(related, 1, concept))
        return {
            "names": state.vocabulary.names_of(concept),
            "broader": self._link(state.concepts, _beside(broader, 0, concept), names),
            "narrower": self._link(state.concepts, _beside(broader, 1, concept), names),
            "related": self._link(state.concepts, near, names),
        }

    def _link(self, concepts: Ids, wanted: Ids, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the numbers and names of the labels that stand for concepts."""
        numbers = np.flatnonzero(np.isin(concepts, wanted))[:RELATED].tolist()
        return [self._name(number, names) for number in numbers]


def _beside(pairs: Ids, side: int, concept: int) -> Ids:
    """Return what stands beside a concept in pairs that have it on this side."""
    found: Ids = pairs[pairs[:, side] == concept, 1 - side]
    return found
