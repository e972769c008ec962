"""How often methods agree, and the documents on which they differ most."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.evaluation.metrics import find_hits
from longtail.topk import NO_LABEL, TopK

Floats = NDArray[np.float64]

N_SHOWN = 20
DEPTH = 5  # labels of each list that are compared
LONGEST_TEXT = 300  # characters of a document that are shown
LONGEST_NAME = 80  # characters of a label
MOST_LABELS = 25  # true labels of a document that are shown


def count_agreement(tops: Sequence[TopK], test: Dataset) -> dict[str, Any]:
    """Return in percent how often first labels agree, and how often they are right."""
    first = np.stack([top.labels[:, 0] for top in tops])
    right = np.stack([find_hits(top.first(1), test.Y)[:, 0] for top in tops])
    n_right = right.sum(axis=0)
    return {
        "same_first": [[_percent(one == other) for other in first] for one in first],
        "first_right": [_percent(each) for each in right],
        "only_right": [_percent(each & (n_right == 1)) for each in right],
        "any_right": _percent(n_right > 0),
        "all_right": _percent(n_right == len(tops)),
    }


def _percent(flags: NDArray[np.bool_]) -> float:
    return 100 * float(np.mean(flags))


def find_disagreements(tops: Sequence[TopK], reached: Sequence[Floats]) -> list[int]:
    """Return the documents on which methods differ most, most first.

    Args:
        tops: the predictions of each method.
        reached: a metric of each method on each document, such as nDCG@5; its differences come
            first, then the share of labels that only one of two lists has.
    """
    pairs = list(combinations(range(len(tops)), 2))
    if not pairs:
        return []
    gap = np.mean([np.abs(reached[a] - reached[b]) for a, b in pairs], axis=0)
    apart = np.mean([_distance(tops[a], tops[b]) for a, b in pairs], axis=0)
    order = np.lexsort((-apart, -np.round(gap, 6)))[:N_SHOWN]
    return [int(row) for row in order if gap[row] > 0 or apart[row] > 0]


def _distance(one: TopK, other: TopK) -> Floats:
    """Return for each document the share of labels among the first five that only one list has."""
    a, b = one.labels[:, :DEPTH], other.labels[:, :DEPTH]
    shared = ((a[:, :, None] == b[:, None, :]) & (a[:, :, None] != NO_LABEL)).sum(axis=(1, 2))
    length = np.maximum((a != NO_LABEL).sum(axis=1), (b != NO_LABEL).sum(axis=1))
    share: Floats = 1 - shared / np.maximum(length, 1)
    return share


def show_document(row: int, tops: Sequence[TopK], test: Dataset) -> dict[str, Any]:
    """Return one document with its true labels and each method's first ones, ready for JSON."""
    true = test.Y[row].indices.tolist()
    return {
        "row": row,
        "text": None if test.texts is None else cut(test.texts[row], LONGEST_TEXT),
        "n_features": None if test.X is None else int(test.X.indptr[row + 1] - test.X.indptr[row]),
        "true": [cut(test.label_names[label], LONGEST_NAME) for label in true[:MOST_LABELS]],
        "n_true": len(true),
        "predicted": [_show_labels(top, row, set(true), test.label_names) for top in tops],
    }


def _show_labels(top: TopK, row: int, true: set[int], names: Sequence[str]) -> list[dict[str, Any]]:
    pairs = zip(top.labels[row, :DEPTH].tolist(), top.scores[row, :DEPTH].tolist(), strict=True)
    return [
        {"label": cut(names[label], LONGEST_NAME), "score": round(score, 4), "right": label in true}
        for label, score in pairs
        if label != NO_LABEL
    ]


def cut(text: str, longest: int) -> str:
    """Return the beginning of `text`, marked where it was cut."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
