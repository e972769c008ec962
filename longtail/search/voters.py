"""Labels by the votes of a document's neighbours: how much each counts, and who wins."""

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from longtail.errors import DataError, ParameterError
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.search.kernels import NOTHING, Best, Floats, Ids, offer, sort_best
from longtail.topk import NO_LABEL, TopK


def weigh_votes(similarities: NDArray[Any], temperature: float) -> Floats:
    """Return how much each neighbour (n, m) counts: e^(s/T), the nearest of a document 1.

    A temperature of 0 counts all of them alike.
    """
    if not temperature:
        return np.ones(similarities.shape, np.float32)
    exact = similarities.astype(np.float64)
    return np.exp((exact - exact[:, :1]) / temperature).astype(np.float32)


def aggregate(ids: Ids, similarities: NDArray[Any], Y: sp.csr_matrix, k: int) -> TopK:
    """Rank labels by the share of a document's neighbours that carry them.

    A neighbour counts by its similarity, a negative one and the id -1 not at all; so the scores
    lie between 0 and 1, and a document without any similar neighbour gets no labels.

    Args:
        ids: (n, m) the neighbours of n documents: rows of `Y`.
        similarities: (n, m) how much each neighbour counts.
        Y: (n_neighbours, n_labels) the labels of the neighbours.
        k: how many labels to keep for each document; where there are fewer, all.
    """
    if k < 1:
        raise ParameterError(f"k must be at least 1. Got {k} instead.")
    ids = np.require(ids, np.int32, ["C", "A", "W"])
    weights = np.require(similarities, np.float32, ["C", "A", "W"])
    if ids.ndim != 2 or ids.shape != weights.shape:
        raise DataError(f"{ids.shape} neighbours have {weights.shape} similarities")
    if ids.size and (ids.min() < -1 or ids.max() >= Y.shape[0]):
        raise DataError(
            f"neighbours are numbered from {ids.min()} to {ids.max()}, "
            f"but labels are known of {Y.shape[0]}"
        )
    if not np.isfinite(weights).all():
        raise DataError("the similarities hold values that are not finite")
    labels = Y.indices.astype(np.int32, copy=False)
    start = Y.indptr.astype(np.int64, copy=False)
    k = min(k, Y.shape[1])
    tasks = [
        (ids[a:b], weights[a:b], start, labels, Y.shape[1], k)
        for a, b in pairwise(cut(len(ids), n_threads()))
    ]
    if not tasks:
        return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
    found = in_threads(_share_labels, tasks)
    return TopK(
        np.concatenate([best for best, _ in found]), np.concatenate([part for _, part in found])
    )


@njit(nogil=True, cache=True)
def _share_labels(
    ids: Ids, weights: Floats, start: NDArray[np.int64], labels: Ids, n_labels: int, k: int
) -> tuple[Ids, Floats]:
    """Return the k labels of each row with the highest share of the neighbours' weights."""
    best_ids = np.full((len(ids), k), NOTHING, np.int32)
    best_scores = np.full((len(ids), k), np.float32(-np.inf))
    sums = np.zeros(n_labels, np.float64)
    for i in range(len(ids)):
        best = Best(best_ids[i], best_scores[i])
        total = 0.0
        for place in range(ids.shape[1]):
            neighbour, weight = ids[i, place], np.float64(weights[i, place])
            if neighbour < 0 or weight <= 0:
                continue
            total += weight
            if not 0 <= start[neighbour] <= start[neighbour + 1] <= len(labels):
                raise ValueError("Y is damaged: its rows lie outside of its cells")
            for cell in range(start[neighbour], start[neighbour + 1]):
                if not 0 <= labels[cell] < n_labels:
                    raise ValueError("Y is damaged: it holds a label that does not exist")
                sums[labels[cell]] += weight
        for place in range(ids.shape[1]):
            if ids[i, place] < 0 or weights[i, place] <= 0:
                continue
            for cell in range(start[ids[i, place]], start[ids[i, place] + 1]):
                label = labels[cell]
                if sums[label] > 0:  # and not offered yet
                    offer(best, label, np.float32(min(1.0, sums[label] / total)))
                    sums[label] = 0
        sort_best(best)
        for place in range(k):
            if best.ids[place] == NOTHING:
                best.ids[place], best.scores[place] = -1, 0
    return best_ids, best_scores


def fill_labels(top: TopK, frequent: Ids) -> TopK:
    """Put the labels that come first in `frequent`, with score 0, where a row has too few."""
    for i in np.flatnonzero((top.labels == NO_LABEL).any(axis=1)):
        found = top.labels[i][top.labels[i] != NO_LABEL]
        more = frequent[~np.isin(frequent, found)]
        top.labels[i, len(found) :] = more[: top.k - len(found)]
    return top
