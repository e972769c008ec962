"""The labels of a model that is served: found by any of their names, and described."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.labels.finding import search
from longtail.models.base import Model
from longtail.models.relabel import fold_labels


class Labels:
    """Finds and describes the labels that a model gives."""

    def __init__(self, model: Model) -> None:
        """Fold the names of all labels: their own and, by the vocabulary, those in any language."""
        self._model = model
        self._counts = np.asarray(model.current_counts.label_counts, dtype=np.int64)
        self._names = fold_labels(model)
        search(self._names, str(model.label_names_[0]), self._counts, 1)  # compiles

    def find(self, typed: str, n: int) -> list[int]:
        """Return the numbers of up to n labels, the best first."""
        return search(self._names, typed, self._counts, n)

    def describe(self, number: int) -> dict[str, Any]:
        """Return a label's name and frequency; with a vocabulary its URI and what is near it."""
        model = self._model
        n_documents = max(1, model.training_counts_.n_documents)
        uris = model.label_uris
        n = int(self._counts[number])
        return {
            "id": number,
            "label": model.label_names_[number],
            "uri": None if uris is None else uris[number],
            "documents": n,
            "share": round(n / n_documents, 6),
        }

    def describe_relations(self, number: int) -> dict[str, Any]:
        """Return all names of a label, and the labels that are broader and narrower."""
        state = self._model.label_state_
        if state.vocabulary is None or state.concepts is None or state.concepts[number] < 0:
            return {"names": [], "broader": [], "narrower": []}
        concept = int(state.concepts[number])
        pairs = state.vocabulary.broader
        return {
            "names": state.vocabulary.names_of(concept),
            "broader": self._link(np.isin(state.concepts, pairs[pairs[:, 0] == concept, 1])),
            "narrower": self._link(np.isin(state.concepts, pairs[pairs[:, 1] == concept, 0])),
        }

    def _link(self, chosen: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """Return the numbers and names of the chosen labels."""
        numbers = np.flatnonzero(chosen).tolist()
        return [{"id": i, "label": self._model.label_names_[i]} for i in numbers]
