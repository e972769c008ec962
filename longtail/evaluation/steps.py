"""The way from a model's scores to probabilities: one curve, shifts of labels, curves by place."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.curve import (
    STRAIGHT,
    Curve,
    Floats,
    Hits,
    Method,
    fit_curve,
    log_odds,
    sigmoid,
)
from longtail.evaluation.metrics import TrainingCounts, find_hits
from longtail.topk import NO_LABEL, TopK

FIRST = 5  # labels of a document that have a curve of their own, as the metrics' @5
BAND_SPREAD, LABEL_SPREAD = 1.0, 0.3  # how far curves are expected to lie apart, in log-odds


class Steps(NamedTuple):
    """The way from scores to probabilities.

    Attributes:
        base: the curve of all labels.
        shifts: (n_labels,) what each label adds to the log-odds, nothing for labels beyond;
            (0,) if the order of labels stays as it is.
        first: the curve of what `base` and `shifts` give for a document's first five labels.
        later: the same for its other labels.
    """

    base: Curve
    shifts: Floats
    first: Curve
    later: Curve

    def apply(self, top: TopK, depth: int) -> TopK:
        """Return probabilities for scores; only the first `depth` labels change places."""
        labels, places = _rerank(top, self.base, self.shifts, depth)
        heights = np.concatenate(
            (self.first.at(places[:, :FIRST]), self.later.at(places[:, FIRST:])), axis=1
        )
        falling = np.minimum.accumulate(sigmoid(heights), axis=1)
        return TopK(labels, np.where(places == -np.inf, 0, falling).astype(np.float32))

    def apply_behind(self, scores: NDArray[np.float32], last: NDArray[np.float32]) -> Floats:
        """Return probabilities (n, c) of labels behind a list whose last ones are `last` (n, 1)."""
        behind = sigmoid(self.later.at(self.base.at(log_odds(scores))))
        return np.where(scores > 0, np.minimum(behind, last), 0)


def fit_steps(
    top: TopK, Y: sp.csr_matrix, method: Method | None, counts: TrainingCounts | None, reorder: bool
) -> Steps:
    """Learn all steps from predictions and true labels.

    Args:
        top: the predictions.
        Y: (n, n_labels) the true labels.
        method: of the curves; None keeps scores, which are probabilities already.
        counts: of the training split, so that labels of like frequency can share.
        reorder: whether labels get shifts.
    """

    def fit(places: Floats, hits: Hits) -> Curve:
        return STRAIGHT if method is None else fit_curve(places, hits, method)

    given, hits = _are_given(top), find_hits(top, Y)
    base = fit(log_odds(top.scores[given]), hits[given])
    shifts = np.zeros(0)
    if reorder:
        places = base.at(log_odds(top.scores[given]))
        shifts = _fit_all_shifts(places, hits[given], top.labels[given], Y.shape[1], counts)
    labels, places = _rerank(top, base, shifts, top.k)
    hits = find_hits(TopK(labels, top.scores), Y)
    first, later = places > -np.inf, places > -np.inf
    first[:, FIRST:], later[:, :FIRST] = False, False
    return Steps(
        base,
        shifts,
        fit(places[first], hits[first]),
        fit(places[later], hits[later]),
    )


def _are_given(top: TopK) -> Hits:
    """Return which places hold a label that something speaks for."""
    given: Hits = (top.labels != NO_LABEL) & (top.scores > 0)
    return given


def _rerank(top: TopK, base: Curve, shifts: Floats, depth: int) -> tuple[NDArray[np.int32], Floats]:
    """Return labels and log-odds, the first `depth` in falling order; equals keep their order."""
    places = np.where(_are_given(top), base.at(log_odds(top.scores)), -np.inf)
    if not len(shifts):
        return top.labels, places
    known = (top.labels >= 0) & (top.labels < len(shifts))
    known[:, depth:] = False  # what stands so low was not learned from
    places += np.where(known, shifts[np.where(known, top.labels, 0)], 0)
    order = np.broadcast_to(np.arange(top.k), top.labels.shape).copy()
    order[:, :depth] = np.argsort(-places[:, :depth], axis=1, kind="stable")
    return np.take_along_axis(top.labels, order, 1), np.take_along_axis(places, order, 1)


def _fit_all_shifts(
    places: Floats,
    hits: Hits,
    labels: NDArray[np.int32],
    n_labels: int,
    counts: TrainingCounts | None,
) -> Floats:
    """Return each label's shift: that of its band, of like frequency, and one of its own."""
    shifts = np.zeros(n_labels)
    if counts is not None:
        band = np.log2(counts.padded(n_labels) + 1).astype(np.int64)
        shifts = fit_shifts(places, hits, band[labels], int(band.max()) + 1, BAND_SPREAD)[band]
    return shifts + fit_shifts(places + shifts[labels], hits, labels, n_labels, LABEL_SPREAD)


def fit_shifts(
    places: Floats, hits: Hits, groups: NDArray[Any], n_groups: int, spread: float
) -> Floats:
    """Return what each group of predictions should add to its log-odds `places`.

    It is the most likely shift if shifts are normally distributed around 0 with `spread`: a
    group of few predictions stays near 0, an empty one at 0.
    """
    shifts = np.zeros(n_groups)
    for _ in range(25):  # Newton's method, in steps that cannot go astray
        p = sigmoid(places + shifts[groups])
        gradient = np.bincount(groups, hits - p, n_groups) - shifts / spread**2
        curvature = np.bincount(groups, p * (1 - p), n_groups) + 1 / spread**2
        shifts += np.clip(gradient / curvature, -1, 1)
    return shifts
