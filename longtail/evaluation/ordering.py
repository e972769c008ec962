"""Ordering: which documents a person should look at first, for a model to learn most from them.

How unsure a label is, is the entropy of its probability p: 1 bit at 0.5, 0 at 0 and 1.

    unsure   the mean of a document's labels: those where the model knows least, whatever they are
    useful   their sum, where a label counts log2(1 + N/n) if n of N training documents have it, and
             half of that after each document in front that asks about it too: rare labels early,
             and no label again and again

The second is a greedy choice. As a value only falls while others are chosen, most documents need
not be looked at again until they come up (lazy greedy).
"""

import heapq
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ParameterError, suggest
from longtail.evaluation.metrics import TrainingCounts
from longtail.topk import NO_LABEL, TopK

By = Literal["unsure", "useful"]
DEPTH = 10  # labels of a document that are looked at

Floats = NDArray[np.float64]


def order_documents(
    top: TopK, counts: TrainingCounts, by: By = "unsure"
) -> tuple[NDArray[np.int64], Floats]:
    """Return the documents' numbers, those to look at first in front, and what each is worth."""
    if by not in get_args(By):
        raise ParameterError(
            f"The 'by' parameter must be one of {', '.join(get_args(By))}. "
            f"Got {by!r} instead{suggest(by, get_args(By))}"
        )
    doubt = _measure_doubt(top)
    if by == "useful":
        return _choose_useful(top, doubt, counts)
    n_given = np.maximum((top.labels != NO_LABEL).sum(axis=1), 1)
    values = doubt.sum(axis=1) / n_given
    order = np.argsort(-values, kind="stable")
    return order, values[order]


def _measure_doubt(top: TopK) -> Floats:
    """Return (n, k) the entropy of each label in bits; 0 where there is none."""
    p = np.clip(top.scores.astype(np.float64), 1e-12, 1 - 1e-12)
    bits = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return np.where(top.labels == NO_LABEL, 0, bits)


def _choose_useful(
    top: TopK, doubt: Floats, counts: TrainingCounts
) -> tuple[NDArray[np.int64], Floats]:
    weight = np.log2(1 + counts.n_documents / np.maximum(counts.label_counts, 1))
    labels = np.maximum(top.labels, 0)
    worth = doubt * weight[labels]
    left = np.ones(len(weight))  # what is left of a label's weight

    def measure(document: int) -> float:
        return float(worth[document] @ left[labels[document]])

    waiting = [(-measure(document), document) for document in range(len(top))]
    heapq.heapify(waiting)
    order, values = [], []
    while waiting:
        _, document = heapq.heappop(waiting)
        now = -measure(document)
        if waiting and (now, document) > waiting[0]:
            heapq.heappush(waiting, (now, document))
            continue
        order.append(document)
        values.append(-now)
        left[labels[document][doubt[document] > 0]] /= 2
    return np.array(order, np.int64), np.array(values, np.float64)
