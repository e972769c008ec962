"""The votes of leaves: which labels their documents carry, and how many of them.

The score of a label is the mean over all trees of the share of a leaf's documents that carry it.
Sums are made tree by tree, in one order for each document, so that they are the same in any batch
and on any number of threads.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.models.forest.growing import Floats, Ids
from longtail.models.forest.shape import Spans, Starts, running_sum
from longtail.models.forest.trees import BATCH, Trees
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.search.kernels import NOTHING, Best, offer, sort_best
from longtail.search.voters import Carried
from longtail.topk import NO_LABEL, TopK


class Found(NamedTuple):
    """The labels that n documents' leaves have, in no order.

    Attributes:
        start: (n + 1,) where the labels of each document begin.
        labels: of all documents.
        scores: of these labels, from 0 to 1.
    """

    start: Starts
    labels: Ids
    scores: Floats


def find_labels(X: sp.csr_matrix, trees: Trees, Y: Carried, min_split: int = 0) -> Found:
    """Return the labels that documents' leaves have, with their scores.

    Args:
        X: the documents.
        trees: the trees.
        Y: the labels of the documents in their leaves.
        min_split: nodes with fewer documents are taken for leaves.
    """
    spans, n = trees.walk(X, min_split), X.shape[0]
    parts = pairwise(cut(n, max(1, -(-n // BATCH))))
    tasks = [(spans[a:b], trees.borders, trees.documents, Y) for a, b in parts]
    found = in_threads(_find_labels, tasks)
    lengths, labels, scores = map(np.concatenate, zip(*found, strict=True))
    return Found(running_sum(lengths), labels, scores)


def rank_found(found: Found, k: int) -> TopK:
    """Return the k best of the labels that were found; -1 where there are fewer."""
    n = len(found.start) - 1
    tasks = [(found, a, b, k) for a, b in pairwise(cut(n, n_threads()))]
    parts = in_threads(_rank, tasks)
    labels, scores = map(np.concatenate, zip(*parts, strict=True))
    return TopK(labels, scores)


def look_up_found(found: Found, candidates: Ids, n_labels: int) -> Floats:
    """Return the scores (n, c) of candidates; 0 for those that were not found, and for -1."""
    n = len(found.start) - 1
    tasks = [(found, a, b, candidates, n_labels) for a, b in pairwise(cut(n, n_threads()))]
    return np.concatenate(in_threads(_look_up, tasks))


# -- compiled -------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _find_labels(
    spans: Spans, borders: Starts, documents: Ids, Y: Carried
) -> tuple[Starts, Ids, Floats]:
    n, n_trees = spans.shape[:2]
    sums, own = np.zeros(Y.n_labels), np.empty(Y.n_labels, np.int32)
    lengths = np.zeros(n, np.int64)
    labels, scores = np.empty(1024, np.int32), np.empty(1024, np.float32)
    at = 0
    for d in range(n):
        n_own = 0
        for tree in range(n_trees):
            begin, stop = borders[spans[d, tree, 0]], borders[spans[d, tree, 1]]
            vote = 1 / (stop - begin)
            for place in range(begin, stop):
                other = documents[place]
                for cell in range(Y.start[other], Y.start[other + 1]):
                    label = Y.labels[cell]
                    if sums[label] == 0:
                        own[n_own] = label
                        n_own += 1
                    sums[label] += vote
        while at + n_own > len(labels):
            labels = np.concatenate((labels, np.empty_like(labels)))
            scores = np.concatenate((scores, np.empty_like(scores)))
        for label in own[:n_own]:
            labels[at], scores[at] = label, np.float32(min(1.0, sums[label] / n_trees))
            sums[label] = 0
            at += 1
        lengths[d] = n_own
    return lengths, labels[:at].copy(), scores[:at].copy()


@njit(nogil=True, cache=True)
def _rank(found: Found, first: int, last: int, k: int) -> tuple[Ids, Floats]:
    best_labels = np.full((last - first, k), NOTHING, np.int32)
    best_scores = np.full((last - first, k), np.float32(-np.inf))
    for i in range(last - first):
        best = Best(best_labels[i], best_scores[i])
        for cell in range(found.start[first + i], found.start[first + i + 1]):
            offer(best, found.labels[cell], found.scores[cell])
        sort_best(best)
        for place in range(k):
            if best.ids[place] == NOTHING:
                best.ids[place], best.scores[place] = NO_LABEL, 0
    return best_labels, best_scores


@njit(nogil=True, cache=True)
def _look_up(found: Found, first: int, last: int, candidates: Ids, n_labels: int) -> Floats:
    known = np.zeros(n_labels, np.float32)
    scores = np.zeros((last - first, candidates.shape[1]), np.float32)
    for d in range(first, last):
        cells = range(found.start[d], found.start[d + 1])
        for cell in cells:
            known[found.labels[cell]] = found.scores[cell]
        for place in range(candidates.shape[1]):
            if candidates[d, place] >= 0:
                scores[d - first, place] = known[candidates[d, place]]
        for cell in cells:
            known[found.labels[cell]] = 0
    return scores
