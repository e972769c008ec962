"""Calibration: from a model's scores to probabilities, learned on documents held out of training.

A curve leads from the log-odds of a score to the log-odds that such a label is right. It is a
rising broken line, so that nothing changes places that stood in order: of one piece if the method
is "logistic" (Platt's), of as many as the data bear out if it is "isotonic" (centred isotonic
regression: neighbouring scores are pooled until the share of hits rises from pool to pool, and the
line connects the pools' means). Labels with enough predictions of their own move the curve up or
down for themselves, by a shift that shrinks to 0 the fewer they are.

How good the probabilities are is measured on documents that the curve has not seen: the held-out
documents are divided in five, and each fifth is judged by a curve of the other four.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError, ParameterError, suggest
from longtail.metrics import find_hits
from longtail.store import Files
from longtail.topk import NO_LABEL, TopK

Method = Literal["isotonic", "logistic"]
Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]

SMALLEST = 1e-7  # scores nearer to 0 or 1 than this count as if they were this near
SMALLEST_POOL = 20  # predictions
FOLDS = 5
JUDGED = 5  # labels of each document that the calibration error is about, as the metrics' @5
BINS = 15
AUTOMATIC = {"auto": "micro", "auto-document": "document"}  # thresholds by name, what is best there
SPREAD = 0.3  # how far labels' own curves are expected to lie apart, in log-odds


# ------------------------------------------------------------------------------------ the curve


class Curve(NamedTuple):
    """A rising broken line from the log-odds of scores to those of probabilities.

    Attributes:
        places: (m,) log-odds of scores, rising.
        heights: (m,) log-odds of the probabilities there, never falling; level beyond the ends.
    """

    places: Floats
    heights: Floats

    def log_odds(self, scores: NDArray[Any]) -> Floats:
        """Return the log-odds of the probabilities that belong to `scores`, of any shape."""
        return np.interp(log_odds(scores), self.places, self.heights)

    def probabilities(self, scores: NDArray[Any]) -> Floats:
        """Return the probabilities that belong to `scores`, of any shape."""
        return sigmoid(self.log_odds(scores))


def fit_curve(scores: NDArray[Any], hits: Hits, method: Method = "isotonic") -> Curve:
    """Learn from scores, each with whether its label was right."""
    check_method(method)
    if not len(scores):
        raise DataError("there is no prediction to learn probabilities from")
    places = log_odds(scores)
    return _fit_logistic(places, hits) if method == "logistic" else _fit_isotonic(places, hits)


def _fit_isotonic(places: Floats, hits: Hits) -> Curve:
    n, mean, n_hits = _pool(places, hits)
    # One half of a hit and of a miss more keep the log-odds finite.
    heights = np.maximum.accumulate(log_odds((n_hits + 0.5) / (n + 1)))
    return Curve(mean, heights)


def _pool(places: Floats, hits: Hits) -> tuple[Floats, Floats, Floats]:
    """Pool neighbours until the share of hits rises; return sizes, mean places and hits."""
    pools: list[tuple[float, float, float]] = []
    for n, total, n_hits in zip(*_first_pools(places, hits), strict=True):
        pool = (n, total, n_hits)
        while pools and pools[-1][2] * pool[0] >= pool[2] * pools[-1][0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    n, total, n_hits = np.array(pools).T
    return n, total / n, n_hits


def _first_pools(places: Floats, hits: Hits) -> tuple[Floats, Floats, Floats]:
    """Pool equal scores, then neighbours up to SMALLEST_POOL; return sizes, sums and hits."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    is_new = np.concatenate(([True], sorted_places[1:] != sorted_places[:-1]))
    # A pool ends at the first new score after it is full.
    pool = (np.flatnonzero(is_new) // SMALLEST_POOL)[np.cumsum(is_new) - 1]
    _, pool = np.unique(pool, return_inverse=True)
    n, total, n_hits = (
        np.bincount(pool, weights).astype(np.float64)
        for weights in (np.ones(len(pool)), sorted_places, hits[order].astype(np.float64))
    )
    return n, total, n_hits


def _fit_logistic(places: Floats, hits: Hits) -> Curve:
    """Find slope and intercept by Newton's method, both drawn a little to 1 and 0."""
    ends = log_odds(np.array([0.0, 1.0]))
    slope, intercept = 1.0, 0.0
    for _ in range(50):
        p = sigmoid(slope * places + intercept)
        wrong, weight = hits - p, p * (1 - p)
        gradient = np.array([wrong @ places - (slope - 1), wrong.sum() - intercept])
        across = weight @ places
        curvature = np.array([[weight @ places**2 + 1, across], [across, weight.sum() + 1]])
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 2 / np.abs(step).max(initial=1e-12))
        slope, intercept = slope + step[0], intercept + step[1]
        if np.abs(step).max() < 1e-9:
            break
    return Curve(ends, max(slope, 0.0) * ends + intercept)


def log_odds(scores: NDArray[Any]) -> Floats:
    """Return log(s / (1 − s)), finite for all scores from 0 to 1."""
    inside = np.clip(np.asarray(scores, np.float64), SMALLEST, 1 - SMALLEST)
    result: Floats = np.log(inside / (1 - inside))
    return result


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + e^−v)."""
    return 0.5 * (1 + np.tanh(0.5 * values))


def fit_shifts(
    base: Floats, hits: Hits, labels: NDArray[Any], n_labels: int, spread: float = SPREAD
) -> Floats:
    """Return for each label what to add to the log-odds `base` of its predictions.

    It is the most likely shift if shifts are normally distributed around 0 with `spread`: a
    label with few predictions stays near 0, one with none at 0.
    """
    shifts = np.zeros(n_labels)
    for _ in range(10):
        p = sigmoid(base + shifts[labels])
        gradient = np.bincount(labels, hits - p, n_labels) - shifts / spread**2
        shifts += gradient / (np.bincount(labels, p * (1 - p), n_labels) + 1 / spread**2)
    return shifts


def check_method(method: str) -> None:
    """Raise ParameterError if there is no such method."""
    if method not in get_args(Method):
        raise ParameterError(
            f"The 'method' parameter must be one of {', '.join(get_args(Method))}. "
            f"Got {method!r} instead{suggest(method, get_args(Method))}"
        )


# ----------------------------------------------------------------------------------- calibration


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns the scores of a model into probabilities.

    Attributes:
        method: "isotonic" or "logistic".
        curve: from scores to probabilities, for all labels.
        shifts: (n_labels,) what each label adds to the log-odds; nothing for labels beyond.
        thresholds: the probability above which labels give the best F1 on the held-out
            documents: "micro" over all pairs, "document" on the mean of documents.
        depth: how many labels of each document it was learned from.
        n_documents: how many documents it was learned from.
        error: expected calibration error of the first five labels, on documents unseen.
        error_before: the same of the model's own scores.
    """

    method: Method
    curve: Curve
    shifts: NDArray[np.float32]
    thresholds: Mapping[str, float]
    depth: int
    n_documents: int
    error: float
    error_before: float

    @classmethod
    def fit(cls, top: TopK, Y: sp.csr_matrix, method: Method = "isotonic") -> Self:
        """Learn from predictions for documents held out of training, and their true labels.

        Args:
            top: the model's own scores; lists longer than what will be asked for are better.
            Y: (n, n_labels) the true labels, in the model's numbering.
            method: "isotonic", or "logistic" for a curve of two parameters.
        """
        check_method(method)
        hits = _check_predictions(top, Y)
        unseen = _predict_unseen(top, hits, method)
        given = top.labels != NO_LABEL
        return cls(
            method=method,
            curve=fit_curve(top.scores[given], hits[given], method),
            shifts=np.zeros(Y.shape[1], np.float32),
            thresholds=find_thresholds(TopK(top.labels, unseen), Y),
            depth=top.k,
            n_documents=len(top),
            error=_error_of_first(unseen, top, hits),
            error_before=_error_of_first(top.scores, top, hits),
        )

    def apply(self, top: TopK) -> TopK:
        """Return the same labels with probabilities for scores, best first."""
        given = top.labels != NO_LABEL
        scores = np.where(given, self.curve.probabilities(top.scores), 0)
        return TopK(top.labels, scores.astype(np.float32))

    def find_threshold(self, wanted: str | float) -> float:
        """Return the threshold that "auto", "auto-document" or a number stands for."""
        if isinstance(wanted, str):
            return self.thresholds[AUTOMATIC[wanted]]
        return wanted

    def add_to_files(self, files: Files) -> None:
        """Add it to a model's files, as `config["calibration"]` and arrays `calibration.…`."""
        files.config["calibration"] = {
            "method": self.method,
            "thresholds": dict(self.thresholds),
            "depth": self.depth,
            "n_documents": self.n_documents,
            "error": self.error,
            "error_before": self.error_before,
        }
        files.arrays["calibration.places"] = self.curve.places
        files.arrays["calibration.heights"] = self.curve.heights
        files.arrays["calibration.shifts"] = self.shifts

    @classmethod
    def from_files(cls, files: Files) -> "Self | None":
        """Take back what `add_to_files` wrote, None if there is nothing; ValueError if damaged."""
        if "calibration" not in files.config:
            return None
        curve = Curve(files.arrays["calibration.places"], files.arrays["calibration.heights"])
        shifts = files.arrays["calibration.shifts"]
        _check_saved(curve, shifts)
        config = files.config["calibration"]
        thresholds = {name: float(config["thresholds"][name]) for name in AUTOMATIC.values()}
        check_method(config["method"])
        return cls(
            config["method"],
            curve,
            shifts,
            thresholds,
            int(config["depth"]),
            int(config["n_documents"]),
            float(config["error"]),
            float(config["error_before"]),
        )


def _check_predictions(top: TopK, Y: sp.csr_matrix) -> Hits:
    """Return which predictions are right; raise DataError where nothing can be learned."""
    if not len(top):
        raise DataError("there are no held-out documents to learn probabilities from")
    if not Y.nnz:
        raise DataError(
            f"none of the {len(top)} held-out documents carries a label that the model knows; "
            "there is nothing to learn probabilities from"
        )
    return find_hits(top, Y)


def _predict_unseen(top: TopK, hits: Hits, method: Method) -> NDArray[np.float32]:
    """Return the probabilities of each fifth of the documents by a curve of the others."""
    fold = np.random.default_rng(0).permutation(len(top)) % FOLDS
    unseen = np.zeros(top.scores.shape, np.float32)
    for i in range(FOLDS):
        learned = (top.labels != NO_LABEL) & (fold != i)[:, None]
        if learned.any():
            curve = fit_curve(top.scores[learned], hits[learned], method)
            unseen[fold == i] = curve.probabilities(top.scores[fold == i])
    return np.where(top.labels == NO_LABEL, 0, unseen).astype(np.float32)


def _error_of_first(scores: NDArray[np.float32], top: TopK, hits: Hits) -> float:
    given = top.labels[:, :JUDGED] != NO_LABEL
    return expected_calibration_error(scores[:, :JUDGED][given], hits[:, :JUDGED][given])


def _check_saved(curve: Curve, shifts: NDArray[Any]) -> None:
    """Raise ValueError unless the arrays can be a calibration."""
    places, heights = curve
    if places.dtype != np.float64 or heights.dtype != np.float64 or shifts.dtype != np.float32:
        raise ValueError("the arrays of the calibration have wrong types")
    if places.ndim != 1 or not len(places) or places.shape != heights.shape or shifts.ndim != 1:
        raise ValueError("the arrays of the calibration have wrong shapes")
    if not all(np.isfinite(array).all() for array in (places, heights, shifts)):
        raise ValueError("the calibration holds values that are not finite")
    if (np.diff(places) <= 0).any() or (np.diff(heights) < 0).any():
        raise ValueError("the curve of the calibration does not rise")


# -------------------------------------------------------------------------- how good and how many


class Reliability(NamedTuple):
    """Predictions in bins of equal width, by their probability.

    Attributes:
        counts: (bins,) how many predictions each bin holds.
        means: (bins,) the mean of their probabilities; NaN where there is none.
        shares: (bins,) the share of them that are right; NaN where there is none.
    """

    counts: NDArray[np.int64]
    means: Floats
    shares: Floats

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |mean − share| over all predictions."""
        some = self.counts > 0
        gaps = np.abs(self.means[some] - self.shares[some])
        return float(gaps @ self.counts[some] / max(self.counts.sum(), 1))


def reliability(probabilities: NDArray[Any], hits: NDArray[Any], bins: int = BINS) -> Reliability:
    """Compare the probabilities of predictions with how many of them are right."""
    flat = np.asarray(probabilities, np.float64).ravel()
    chosen = np.clip((flat * bins).astype(np.int64), 0, bins - 1)
    counts = np.bincount(chosen, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = np.bincount(chosen, flat, bins) / counts
        shares = np.bincount(chosen, np.asarray(hits, np.float64).ravel(), bins) / counts
    return Reliability(counts, means, shares)


def expected_calibration_error(
    probabilities: NDArray[Any], hits: NDArray[Any], bins: int = BINS
) -> float:
    """Return how far probabilities lie from the share of hits, on average over bins."""
    return reliability(probabilities, hits, bins).error


def find_thresholds(top: TopK, Y: sp.csr_matrix) -> dict[str, float]:
    """Return the probability from which on to give labels for the best F1, by its kind."""
    hits, n_true = find_hits(top, Y), np.diff(Y.indptr)
    given = np.where(top.labels == NO_LABEL, -1, top.scores)
    places = np.linspace(0.01, 0.99, 99)
    micro = [_micro_f1(given >= place, hits, n_true) for place in places]
    document = [_document_f1(given >= place, hits, n_true) for place in places]
    return {
        "micro": float(places[np.argmax(micro)]),
        "document": float(places[np.argmax(document)]),
    }


def _micro_f1(given: Hits, hits: Hits, n_true: NDArray[Any]) -> float:
    return float(2 * (given & hits).sum() / max(given.sum() + n_true.sum(), 1))


def _document_f1(given: Hits, hits: Hits, n_true: NDArray[Any]) -> float:
    both = np.maximum(given.sum(axis=1) + n_true, 1)
    return float((2 * (given & hits).sum(axis=1) / both).mean())
