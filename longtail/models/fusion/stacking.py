"""The combiner of a fusion: from the ranked lists of its parts to one probability for each label.

A document's candidates are the labels that stand in any part's list. Each is described by numbers:

    log s, −log(1 − s), 1/(1 + rank)    for each part: its score s and the label's place there
    in how many lists, log share        the label's share of the training documents

and the combiner learns, on documents that the parts were not trained on, which candidates are
right. There are three, of which cross-validation over documents chooses one:

    mean        the mean of the parts' log-odds
    logistic    logistic regression, in which no part may count against what it ranks higher
    boosted     small trees that correct the logistic one where that gives a label a chance; each
                asks a few questions, the same of every candidate, so it is a table of answers

What is likeliest right is not what finds rare labels best. Where the combiner falls behind its best
part there (PSP), rare labels are lifted, as little as makes up for it.

Trained state is plain arrays; compiled code applies it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize

from longtail.evaluation.metrics import TrainingCounts, evaluate
from longtail.models.fusion.trees import Floats, Hits, Trees, add_trees, grow_trees
from longtail.runtime.parallel import run_tasks
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

Kind = Literal["mean", "logistic", "boosted"]

LEAST = 1e-4  # scores below are alike
PER_PART = 3  # numbers that describe a candidate for each part
COMMON = 2  # and those that have nothing to do with a part
FOLDS = 3  # of the documents, to choose the combiner
ENOUGH = 1_000  # held-out documents to try trees at all
ALIKE = 0.2  # percent; combiners that differ by less are chosen between by their rare labels
LIFTS = tuple(0.02 * step for step in range(1, 21))  # of log-odds, for each e times as rare


class Candidates(NamedTuple):
    """The candidates of n documents, those of document i from start[i] to start[i + 1].

    Attributes:
        start: (n + 1) where the candidates of each document begin.
        labels: (m) the labels.
        inputs: (m, 3 · parts + 2) what is known of each, as the module docstring lists it.
    """

    start: NDArray[np.int64]
    labels: NDArray[np.int32]
    inputs: Floats


def gather(tops: Sequence[TopK], shares: Floats) -> Candidates:
    """Return the union of the parts' lists, described; `shares` are those of all labels."""
    labels = np.stack([top.labels for top in tops])
    scores = np.stack([top.scores for top in tops])
    return Candidates(*_gather(labels, scores, shares))


@njit(nogil=True, cache=True)
def _gather(
    labels: NDArray[np.int32], scores: Floats, shares: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int32], Floats]:
    n_parts, n, k = labels.shape
    width = PER_PART * n_parts + COMMON
    place = np.full(len(shares), -1, np.int64)
    start = np.zeros(n + 1, np.int64)
    found = np.empty(n * n_parts * k, np.int32)
    rows = np.empty((n * n_parts * k, width), np.float32)
    m = 0
    for i in range(n):
        for part in range(n_parts):
            for rank in range(k):
                label = labels[part, i, rank]
                if label < 0:
                    break
                if place[label] < 0:
                    place[label] = m
                    found[m] = label
                    _describe_absent(labels[:, i], scores[:, i], shares[label], rows[m])
                    m += 1
                row = rows[place[label]]
                _describe(scores[part, i, rank], row[PER_PART * part :])
                row[PER_PART * part + 2] = 1 / (1 + rank)
                row[width - 2] += 1
        for candidate in range(start[i], m):
            place[found[candidate]] = -1
        start[i + 1] = m
    return start, found[:m].copy(), rows[:m].copy()


@njit(nogil=True, cache=True)
def _describe(score: float, row: Floats) -> None:
    """Write what a score says."""
    row[0] = np.log(max(score, LEAST))
    row[1] = -np.log(max(1 - score, LEAST))


@njit(nogil=True, cache=True)
def _describe_absent(labels: NDArray[np.int32], scores: Floats, share: float, row: Floats) -> None:
    """Describe a label that stands in no list: each part gives it half of its last score."""
    n_parts, k = labels.shape
    for part in range(n_parts):
        last = float(scores[part, k - 1]) if labels[part, k - 1] >= 0 else 0.0
        _describe(last / 2, row[PER_PART * part :])
        row[PER_PART * part + 2] = 0
    row[PER_PART * n_parts] = 0
    row[PER_PART * n_parts + 1] = np.log(max(share, 1e-6))


# -- logistic regression -----------------------------------------------------------------------


class Logistic(NamedTuple):
    """Weights of the inputs, and the constant that is added."""

    weights: Floats
    bias: float

    def margins(self, inputs: Floats) -> NDArray[np.float64]:
        """Return the log-odds of candidates; each by itself, so that batches change nothing."""
        return _multiply(inputs, self.weights, self.bias)


@njit(nogil=True, cache=True)
def _multiply(inputs: Floats, weights: Floats, bias: float) -> NDArray[np.float64]:
    margins = np.full(len(inputs), bias)
    for i in range(len(inputs)):
        for j in range(len(weights)):
            margins[i] += np.float64(inputs[i, j]) * weights[j]
    return margins


def fit_logistic(inputs: Floats, hits: Hits, strength: float = 1.0) -> Logistic:
    """Fit the weights; those of the parts' scores and ranks stay at 0 or above."""
    mean, spread = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64)
    spread[spread < 1e-6] = np.inf  # an input that never changes says nothing
    Z = ((inputs - mean) / spread).astype(np.float32)
    n_inputs = inputs.shape[1]

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margins = (Z @ w[:-1].astype(np.float32)).astype(np.float64) + w[-1]
        probability = 1 / (1 + np.exp(-margins))
        wrong = probability - hits
        total = np.logaddexp(0, margins).sum() - margins[hits].sum()
        slope = np.append(wrong.astype(np.float32) @ Z + strength * w[:-1], wrong.sum())
        return total + strength / 2 * (w[:-1] ** 2).sum(), slope

    bounds = [(0.0, None)] * (n_inputs - COMMON) + [(None, None)] * (COMMON + 1)
    first = np.zeros(n_inputs + 1)
    first[-1] = np.log((hits.sum() + 1) / (len(hits) - hits.sum() + 1))
    found = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds).x
    weights = found[:-1] / spread
    return Logistic(weights.astype(np.float32), float(found[-1] - (weights * mean).sum()))


def fit_mean(inputs: Floats, hits: Hits) -> Logistic:
    """Weigh all parts alike; only the slope and the constant are fitted."""
    n_parts = (inputs.shape[1] - COMMON) // PER_PART
    alike = np.zeros(inputs.shape[1], np.float32)
    for part in range(n_parts):
        alike[PER_PART * part : PER_PART * part + 2] = 1 / n_parts
    common = np.zeros((len(inputs), COMMON), np.float32)  # the fit treats these apart
    fitted = fit_logistic(np.hstack([(inputs @ alike)[:, None], common]), hits)
    return Logistic(alike * fitted.weights[0], fitted.bias)


# -- the combiner ----------------------------------------------------------------------------------


class Lift(NamedTuple):
    """How much rare labels are favoured.

    Attributes:
        slope: log-odds that a label gains for each e times that it is rarer than usual.
        usual: the log share at which nothing changes, that of a right candidate on average.
    """

    slope: float = 0.0
    usual: float = 0.0

    def add_to(self, margins: NDArray[np.float64], inputs: Floats) -> None:
        """Lift the log-odds of candidates, in place."""
        if self.slope:
            margins += self.slope * (self.usual - inputs[:, -1].astype(np.float64))


class Combiner(NamedTuple):
    """What gives each candidate its probability."""

    kind: Kind
    logistic: Logistic
    trees: Trees
    lift: Lift = Lift()

    @classmethod
    def fit(cls, kind: Kind, inputs: Floats, hits: Hits) -> Self:
        """Learn which candidates are right."""
        logistic = fit_mean(inputs, hits) if kind == "mean" else fit_logistic(inputs, hits)
        trees = Trees.none()
        if kind == "boosted":
            trees = grow_trees(inputs, hits, logistic.margins(inputs))
        return cls(kind, logistic, trees)

    def margins(self, inputs: Floats) -> NDArray[np.float64]:
        """Return the log-odds of candidates."""
        margins = self.logistic.margins(inputs)
        add_trees(margins, inputs, *self.trees)
        self.lift.add_to(margins, inputs)
        return margins

    def rank(self, candidates: Candidates, k: int) -> TopK:
        """Return the `k` most probable candidates of each document."""
        margins = self.margins(candidates.inputs)
        return TopK(*_rank(candidates.start, candidates.labels, margins, k))

    def add_to_files(self, files: Files) -> None:
        """Add it under "combiner"."""
        lift = {name: float(value) for name, value in self.lift._asdict().items()}
        files.config["combiner"] = {"kind": self.kind, "bias": self.logistic.bias, "lift": lift}
        files.arrays["combiner.weights"] = self.logistic.weights
        for name, array in self.trees._asdict().items():
            files.arrays[f"combiner.{name}"] = array

    @classmethod
    def from_files(cls, files: Files, n_parts: int) -> Self:
        """Take back what was saved; raise ValueError for what does not fit together."""
        config = files.config["combiner"]
        weights = files.arrays["combiner.weights"]
        n_inputs = PER_PART * n_parts + COMMON
        if weights.shape != (n_inputs,):
            raise ValueError(f"{weights.shape} weights of the combiner for {n_inputs} inputs")
        trees = Trees(*(files.arrays[f"combiner.{name}"] for name in Trees._fields))
        trees.check(n_inputs)
        lift = Lift(*(float(config["lift"][name]) for name in Lift._fields))
        return cls(config["kind"], Logistic(weights, float(config["bias"])), trees, lift)


@njit(nogil=True, cache=True)
def _rank(
    start: NDArray[np.int64], labels: NDArray[np.int32], margins: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int32], Floats]:
    n = len(start) - 1
    best = np.full((n, k), NO_LABEL, np.int32)
    scores = np.zeros((n, k), np.float32)
    for i in range(n):
        order = np.argsort(-margins[start[i] : start[i + 1]], kind="mergesort")
        for rank in range(min(k, len(order))):
            at = start[i] + order[rank]
            best[i, rank] = labels[at]
            scores[i, rank] = 1 / (1 + np.exp(-margins[at]))
    return best, scores


class Choice(NamedTuple):
    """A combiner that was chosen, and what it says of documents that it did not learn from.

    Attributes:
        combiner: learned from all documents.
        unseen: ranked lists for all documents, each by a combiner that had not seen it.
        reports: the metrics of each kind on unseen documents.
        report: those of the chosen one, with rare labels lifted.
    """

    combiner: Combiner
    unseen: TopK
    reports: Mapping[Kind, Mapping[str, float]]
    report: Mapping[str, float]


def choose_combiner(
    candidates: Candidates,
    Y: sp.csr_matrix,
    counts: TrainingCounts,
    kinds: Sequence[Kind],
    k: int,
    parts: Sequence[Mapping[str, float]] = (),
) -> Choice:
    """Learn each kind on a part of the documents, and take the one that ranks the others best.

    Args:
        candidates: of documents that the parts had not seen.
        Y: (n, n_labels) their true labels.
        counts: of the training documents, for the metrics of rare labels.
        kinds: the combiners to choose from.
        k: the length of the lists for unseen documents.
        parts: the metrics of each part on these documents.
    """
    documents = np.repeat(np.arange(Y.shape[0]), np.diff(candidates.start))
    hits = find_hits(documents, candidates.labels, Y)
    margins = {kind: _judge_unseen(kind, candidates, documents, hits) for kind in kinds}

    def judge(kind: Kind, lift: Lift) -> tuple[TopK, dict[str, float]]:
        lifted = margins[kind].copy()
        lift.add_to(lifted, candidates.inputs)
        top = TopK(*_rank(candidates.start, candidates.labels, lifted, k))
        return top, evaluate(top, Y, train=counts)

    reports = {kind: judge(kind, Lift())[1] for kind in kinds}
    best = max(_precision(report) for report in reports.values())
    good = [kind for kind in kinds if _precision(reports[kind]) >= best - ALIKE]
    chosen = max(good, key=lambda kind: reports[kind]["PSP@5"])
    usual = float(candidates.inputs[hits, -1].mean()) if hits.any() else 0.0
    lift = choose_lift(reports[chosen], lambda lift: judge(chosen, lift)[1], usual, parts)
    top, report = judge(chosen, lift)
    combiner = Combiner.fit(chosen, candidates.inputs, hits)._replace(lift=lift)
    return Choice(combiner, top, reports, report)


def choose_lift(
    report: Mapping[str, float],
    judge: Callable[[Lift], Mapping[str, float]],
    usual: float,
    parts: Sequence[Mapping[str, float]],
) -> Lift:
    """Return the least lift with which PSP is nowhere below the best part's.

    If none does, it is the one that comes nearest; precision may not fall by more than ALIKE.
    """
    names = [name for name in report if name.startswith("PSP@")]

    def lead(of: Mapping[str, float]) -> float:
        return min((of[name] - part[name] for name in names for part in parts), default=0.0)

    found, ahead = Lift(), lead(report)
    for slope in LIFTS:
        if ahead >= 0:
            break
        lift = Lift(slope, usual)
        lifted = judge(lift)
        if _precision(lifted) < _precision(report) - ALIKE:
            break
        if lead(lifted) > ahead:
            found, ahead = lift, lead(lifted)
    return found


def possible_kinds(n_documents: int) -> list[Kind]:
    """Return what so many held-out documents can teach."""
    return ["mean", "logistic", "boosted"] if n_documents >= ENOUGH else ["mean", "logistic"]


def _precision(report: Mapping[str, float]) -> float:
    return (report["P@1"] + report["P@3"] + report["P@5"]) / 3


def _judge_unseen(
    kind: Kind, candidates: Candidates, documents: NDArray[np.int64], hits: Hits
) -> NDArray[np.float64]:
    """Return the log-odds of the candidates of each fold, by what the other folds teach."""
    n = len(candidates.start) - 1
    fold = np.random.default_rng(0).permutation(n)[documents] % FOLDS
    margins = np.empty(len(hits))

    def judge(own: int) -> None:
        learned = Combiner.fit(kind, candidates.inputs[fold != own], hits[fold != own])
        margins[fold == own] = learned.margins(candidates.inputs[fold == own])

    run_tasks(judge, [(own,) for own in range(FOLDS)], [1.0] * FOLDS)
    return margins


def find_hits(documents: NDArray[np.int64], labels: NDArray[np.int32], Y: sp.csr_matrix) -> Hits:
    """Return which of the pairs of document and label stand in Y."""
    held = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr)) * Y.shape[1] + Y.indices
    hits: Hits = np.isin(documents * Y.shape[1] + labels, held)
    return hits


def join(parts: Sequence[Candidates]) -> Candidates:
    """Return the candidates of several groups of documents, one group after the other."""
    ends = np.cumsum([0, *(len(part.labels) for part in parts)])
    starts = [part.start[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return Candidates(
        np.concatenate([*starts, ends[-1:]]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.inputs for part in parts]),
    )
