"""Calibration: from a model's scores to probabilities, learned on documents held out of training.

1. A curve leads from the log-odds of a score to the log-odds that such a label is right. It is a
   rising broken line: of one piece if the method is "logistic" (Platt's), of as many as the data
   bear out if it is "isotonic" (centred isotonic regression: neighbouring scores are pooled until
   the share of hits rises from pool to pool, and the line connects the pools' means).
2. Labels move it up or down for themselves: by a shift that labels of like frequency have in
   common, and one of their own that shrinks to 0 the fewer predictions of them there were. That
   changes the order of labels, so it is done only if unseen documents are clearly better ranked.
3. One more curve for the first five labels of a document and one for those below make up for what
   being among the first says beyond the score. A score of 0, for which nothing speaks, stays 0.

How good the probabilities are is measured on documents that had no part in them: the held-out
documents are divided in five, and each fifth is judged by what the other four taught.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError, ParameterError, suggest
from longtail.evaluation.metrics import TrainingCounts, evaluate_documents, find_hits
from longtail.evaluation.tradeoff import ARRAY, N_TRUE, NAME, Tradeoff, check_tradeoff
from longtail.runtime.schema import Schema, Sizes, Value, floats, number, whole
from longtail.runtime.settings import at_least
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

Method = Literal["isotonic", "logistic"]
Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]

SMALLEST = 1e-7  # scores nearer to 0 or 1 than this count as if they were this near
SMALLEST_POOL, MOST_POOLS = 20, 2000  # predictions; pools before any are joined
FIRST = 5  # labels of a document that have a curve of their own, and are judged, as the metrics' @5
BAND_SPREAD, LABEL_SPREAD = 1.0, 0.3  # how far curves are expected to lie apart, in log-odds
FOLDS = 5
SHALLOWEST, DEEPEST = 20, 100  # labels of a document that a calibration is learned from
BINS = 15
AUTOMATIC = {"auto": "micro", "auto-document": "document"}  # thresholds by name, what is best there


# ------------------------------------------------------------------------------------ the curve


class Curve(NamedTuple):
    """A rising broken line from the log-odds of scores to those of probabilities.

    Attributes:
        places: (m,) log-odds of scores, rising.
        heights: (m,) log-odds of the probabilities there, never falling; level beyond the ends.
    """

    places: Floats
    heights: Floats

    def at(self, places: Floats) -> Floats:
        """Return the heights over `places`, of any shape."""
        return np.interp(places, self.places, self.heights)

    def probabilities(self, scores: NDArray[Any]) -> Floats:
        """Return the probabilities that belong to `scores`, of any shape."""
        return sigmoid(self.at(log_odds(scores)))


def fit_curve(places: Floats, hits: Hits, method: Method = "isotonic") -> Curve:
    """Learn from the log-odds of scores, each with whether its label was right."""
    if not len(places):  # no label stands so low, and none will be asked for
        return Curve(np.zeros(1), log_odds(np.zeros(1)))
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
    """Pool equal scores, then neighbours up to a size; return sizes, sums and hits."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    is_new = np.concatenate(([True], sorted_places[1:] != sorted_places[:-1]))
    size = max(SMALLEST_POOL, len(places) // MOST_POOLS)
    pool = (np.flatnonzero(is_new) // size)[np.cumsum(is_new) - 1]
    _, pool = np.unique(pool, return_inverse=True)
    n, total, n_hits = (
        np.bincount(pool, weights).astype(np.float64)
        for weights in (np.ones(len(pool)), sorted_places, hits[order].astype(np.float64))
    )
    return n, total, n_hits


def _fit_logistic(places: Floats, hits: Hits) -> Curve:
    slope, intercept = fit_platt(places, hits)
    ends = log_odds(np.array([0.0, 1.0]))
    return Curve(ends, slope * ends + intercept)


def fit_platt(places: Floats, hits: Hits) -> tuple[float, float]:
    """Return slope and intercept of σ(slope·place + intercept), the share of hits at a place.

    Platt scaling by Newton's method. The slope is drawn to 1 and the intercept to 0 as if by one
    observation more, so that they stay finite whatever the hits are; the slope is at least 0.
    """
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
    return max(float(slope), 0.0), float(intercept)


def log_odds(scores: NDArray[Any]) -> Floats:
    """Return log(s / (1 − s)), finite for all scores from 0 to 1."""
    inside = np.clip(np.asarray(scores, np.float64), SMALLEST, 1 - SMALLEST)
    result: Floats = np.log(inside / (1 - inside))
    return result


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + e^−v)."""
    return 0.5 * (1 + np.tanh(0.5 * values))


def check_method(method: str) -> None:
    """Raise ParameterError if there is no such method."""
    if method not in get_args(Method):
        raise ParameterError(
            f"The 'method' parameter must be one of {', '.join(get_args(Method))}. "
            f"Got {method!r} instead{suggest(method, get_args(Method))}"
        )


# ------------------------------------------------------------------------------------- the steps


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
    top: TopK, Y: sp.csr_matrix, method: Method, counts: TrainingCounts | None, reorder: bool
) -> Steps:
    """Learn all steps from predictions and true labels; without shifts unless `reorder`."""
    given, hits = _are_given(top), find_hits(top, Y)
    base = fit_curve(log_odds(top.scores[given]), hits[given], method)
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
        fit_curve(places[first], hits[first], method),
        fit_curve(places[later], hits[later], method),
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


# ----------------------------------------------------------------------------------- calibration


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns the scores of a model into probabilities.

    Attributes:
        method: "isotonic" or "logistic".
        steps: the way from scores to probabilities.
        thresholds: the probability from which on labels give the best F1 on the held-out
            documents: "micro" over all pairs, "document" on the mean of documents.
        depth: how many labels of each document it was learned from.
        n_documents: how many documents it was learned from.
        error: expected calibration error of the first five labels of unseen documents.
        error_before: the same of the model's own scores.
        tradeoff: the precision and recall of unseen documents at each threshold; None where a
            model was saved before it was counted.
    """

    method: Method
    steps: Steps
    thresholds: Mapping[str, float]
    depth: int
    n_documents: int
    error: float
    error_before: float
    tradeoff: Tradeoff | None = None

    @classmethod
    def fit(
        cls,
        top: TopK,
        Y: sp.csr_matrix,
        method: Method = "isotonic",
        *,
        counts: TrainingCounts | None = None,
        reorder: bool | None = None,
    ) -> Self:
        """Learn from predictions for documents held out of training, and their true labels.

        Args:
            top: the model's own scores; lists longer than what will be asked for are better.
            Y: (n, n_labels) the true labels, in the model's numbering.
            method: "isotonic", or "logistic" for curves of two parameters.
            counts: of the training split, so that labels of like frequency can share.
            reorder: whether labels may change places; None lets unseen documents decide.
        """
        return cls.fit_and_predict(top, Y, method, counts=counts, reorder=reorder)[0]

    @classmethod
    def fit_and_predict(
        cls,
        top: TopK,
        Y: sp.csr_matrix,
        method: Method = "isotonic",
        *,
        counts: TrainingCounts | None = None,
        reorder: bool | None = None,
    ) -> tuple[Self, TopK]:
        """Learn as `fit` does; also return each document's labels by what the others taught."""
        check_method(method)
        _check_predictions(top, Y)
        unseen = predict_unseen(top, Y, method, counts, reorder=bool(reorder))
        if reorder is None:
            other = predict_unseen(top, Y, method, counts, reorder=True)
            reorder = _ranks_better(other, unseen, Y)
            unseen = other if reorder else unseen
        calibration = cls(
            method=method,
            steps=fit_steps(top, Y, method, counts, reorder),
            thresholds=find_thresholds(unseen, Y),
            depth=top.k,
            n_documents=len(top),
            error=error_of_first(unseen, Y),
            error_before=error_of_first(top, Y),
            tradeoff=Tradeoff.of(unseen, Y),
        )
        return calibration, unseen

    @property
    def reorders(self) -> bool:
        """Whether labels may change places."""
        return len(self.steps.shifts) > 0

    def apply(self, top: TopK) -> TopK:
        """Return the labels with probabilities for scores, best first."""
        return self.steps.apply(top, self.depth)

    @property
    def n_placed(self) -> int:
        """How many of a document's labels have a probability that depends on their place."""
        return max(self.depth, FIRST) if self.reorders else FIRST

    def apply_behind(
        self, scores: NDArray[np.float32], last: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return probabilities (n, c) of labels that come behind a document's first `n_placed`.

        `last` (n, 1) are the probabilities of the last of these.
        """
        return self.steps.apply_behind(scores, last).astype(np.float32)

    def find_threshold(self, wanted: str | float) -> float:
        """Return the threshold that "auto", "auto-document" or a number stands for."""
        return self.thresholds[AUTOMATIC[wanted]] if isinstance(wanted, str) else wanted

    def add_to_files(self, files: Files) -> None:
        """Add it to a model's files, as `config["calibration"]` and arrays `calibration.…`."""
        apart = ("steps", "tradeoff")
        facts = {key: value for key, value in vars(self).items() if key not in apart}
        files.config["calibration"] = {**facts, "thresholds": dict(self.thresholds)}
        files.arrays["calibration.shifts"] = self.steps.shifts
        for name in CURVES:
            curve = getattr(self.steps, name)
            files.arrays[f"calibration.{name}"] = np.stack(curve)  # (2, m)
        if self.tradeoff is not None:
            self.tradeoff.add_to_files(files)

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of what `add_to_files` adds."""
        share = number(0, 1)
        curves = {f"calibration.{name}": f"calibration.{name}.n" for name in CURVES}
        return Schema(
            config={
                "calibration": {
                    "method": Value(Method),
                    "thresholds": dict.fromkeys(AUTOMATIC.values(), share),
                    "depth": whole(),
                    "n_documents": whole(),
                    "error": share,
                    "error_before": share,
                    N_TRUE: Value(int, at_least(0), optional=True),
                }
            },
            arrays={
                "calibration.shifts": floats("calibration.n_shifts", dtypes=DOUBLE, empty=True),
                **{name: floats(2, n, dtypes=DOUBLE) for name, n in curves.items()},
                NAME: ARRAY,
            },
            rules=[_check_curves, check_tradeoff],
        )

    @classmethod
    def from_files(cls, files: Files) -> "Self | None":
        """Take back what `add_to_files` wrote, None if there is none."""
        if "calibration" not in files.config:
            return None
        curves = {name: Curve(*files.arrays[f"calibration.{name}"]) for name in CURVES}
        steps = Steps(shifts=files.arrays["calibration.shifts"], **curves)
        held = {key: each for key, each in files.config["calibration"].items() if key != N_TRUE}
        return cls(steps=steps, tradeoff=Tradeoff.from_files(files), **held)


CURVES = ("base", "first", "later")
DOUBLE = (np.float64,)


def _check_curves(files: Files, sizes: Sizes) -> None:
    """Raise ValueError for a curve whose places do not rise, or whose heights fall."""
    for name in CURVES:
        places, heights = files.arrays[f"calibration.{name}"]
        if (places[1:] <= places[:-1]).any() or (heights[1:] < heights[:-1]).any():
            raise ValueError(f"calibration.{name} must rise")


def _check_predictions(top: TopK, Y: sp.csr_matrix) -> None:
    """Raise DataError where there is nothing to learn from."""
    if not len(top):
        raise DataError("there are no held-out documents to learn probabilities from")
    if not find_hits(top, Y).any():
        raise DataError(
            f"not one label predicted for the {len(top)} held-out documents is among their true "
            "ones, so that there is nothing to learn probabilities from; are these documents with "
            "labels that the model knows?"
        )


def predict_unseen(
    top: TopK,
    Y: sp.csr_matrix,
    method: Method = "isotonic",
    counts: TrainingCounts | None = None,
    *,
    reorder: bool = False,
) -> TopK:
    """Return the probabilities of each fifth of the documents by what the others teach."""
    labels, scores = np.full_like(top.labels, NO_LABEL), np.zeros_like(top.scores)
    fold = np.random.default_rng(0).permutation(len(top)) % FOLDS
    for i in range(min(FOLDS, len(top))):
        own, others = np.flatnonzero(fold == i), np.flatnonzero(fold != i)
        learned = others if len(others) else own
        steps = fit_steps(_take(top, learned), Y[learned], method, counts, reorder)
        part = steps.apply(_take(top, own), top.k)
        labels[own], scores[own] = part.labels, part.scores
    return TopK(labels, scores)


def _take(top: TopK, rows: NDArray[np.int64]) -> TopK:
    return TopK(top.labels[rows], top.scores[rows])


def _ranks_better(one: TopK, other: TopK, Y: sp.csr_matrix) -> bool:
    """Whether nDCG@5 is better by more than its standard error, and P@1 is not worse."""
    ours, theirs = evaluate_documents(one, Y), evaluate_documents(other, Y)
    gain = ours["nDCG@5"].reached - theirs["nDCG@5"].reached
    sure = gain.mean() > gain.std() / np.sqrt(len(gain))
    return bool(sure and ours["P@1"].reached.sum() >= theirs["P@1"].reached.sum())


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


class ReliabilityCounts:
    """Predictions counted in bins, as they come."""

    def __init__(self, bins: int = BINS) -> None:
        """Begin without predictions."""
        self._counts = np.zeros(bins, np.int64)
        self._sums, self._right = np.zeros(bins), np.zeros(bins)

    def add(self, probabilities: NDArray[Any], hits: NDArray[Any]) -> "ReliabilityCounts":
        """Count predictions, of which `hits` are right."""
        flat, bins = np.asarray(probabilities, np.float64).ravel(), len(self._counts)
        chosen = np.clip((flat * bins).astype(np.int64), 0, bins - 1)
        # One after the other, so that the sums are the same however predictions are divided.
        np.add.at(self._sums, chosen, flat)
        np.add.at(self._right, chosen, np.asarray(hits, np.float64).ravel())
        self._counts += np.bincount(chosen, minlength=bins)
        return self

    def add_first(self, top: TopK, Y: sp.csr_matrix) -> "ReliabilityCounts":
        """Count the first five labels of each document."""
        first = top.first(FIRST)
        given = first.labels != NO_LABEL
        return self.add(first.scores[given], find_hits(first, Y)[given])

    def result(self) -> Reliability:
        """Return what was counted."""
        with np.errstate(invalid="ignore"):
            return Reliability(self._counts, self._sums / self._counts, self._right / self._counts)


def reliability(probabilities: NDArray[Any], hits: NDArray[Any], bins: int = BINS) -> Reliability:
    """Compare the probabilities of predictions with how many of them are right."""
    return ReliabilityCounts(bins).add(probabilities, hits).result()


def reliability_of_first(top: TopK, Y: sp.csr_matrix) -> Reliability:
    """Compare the probabilities of the first five labels of each document with the truth."""
    return ReliabilityCounts().add_first(top, Y).result()


def error_of_first(top: TopK, Y: sp.csr_matrix) -> float:
    """Return the expected calibration error of the first five labels of each document."""
    return reliability_of_first(top, Y).error


def choose_depth(Y: sp.csr_matrix) -> int:
    """Return how many labels of each document to learn from: some more than it has."""
    n_each = Y.nnz / max(Y.shape[0], 1)
    return int(np.clip(np.ceil(3 * n_each), SHALLOWEST, DEEPEST))


def find_thresholds(top: TopK, Y: sp.csr_matrix) -> dict[str, float]:
    """Return the probability from which on to give labels for the best F1: micro and document."""
    hits, n_true = find_hits(top, Y), np.diff(Y.indptr)
    given = np.where(top.labels == NO_LABEL, -1, top.scores)
    places = np.arange(1, 100) / 100
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
