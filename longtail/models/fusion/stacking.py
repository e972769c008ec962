"""Stacking: from what a fusion's members say of labels to one probability for each label.

A document's candidates are the labels that members propose, described by what all members say of
them (`candidates.py`). The stacker learns, on documents that the members were not trained on, which
candidates are right. Of three stackers, cross-validation over documents chooses one:

    mean        the mean of the members' log-odds
    logistic    logistic regression, in which a higher score or rank never lowers the result
    boosted     logistic regression, corrected by small boosted trees (`trees.py`)

The most probable labels are not those that find rare labels best. Where the stacker's PSP is below
that of its best member, logit adjustment raises rare labels, as little as is needed.

Trained state is plain arrays; compiled code applies it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.evaluation.calibration import choose_depth
from longtail.evaluation.metrics import TrainingCounts, contains_pairs, evaluate
from longtail.models.fusion.candidates import (
    COMMON,
    PER_VOICE,
    Candidates,
    Ids,
    Said,
    choose_proposers,
    count_inputs,
    describe_candidates,
    join_voices,
    spread,
    unite,
)
from longtail.models.fusion.trees import Floats, Hits, Trees, add_trees, grow_trees
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import on_one_blas_thread, run_tasks
from longtail.runtime.schema import Config, Schema, Value, floats, number
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

StackerName = Literal["mean", "logistic", "boosted"]
LogOdds = NDArray[np.float64]

FOLDS = 3  # of the documents, to choose the stacker
ENOUGH = 1_000  # held-out documents to try trees at all
BLOCK = 1024  # rows whose slopes are added up in single precision
ALIKE = 0.2  # percent; stackers that differ by less are chosen between by their rare labels
ADJUSTMENTS = tuple(0.02 * step for step in range(1, 21))  # of log-odds, for each e times as rare


# -- logistic regression -----------------------------------------------------------------------


class Logistic(NamedTuple):
    """Weights of the inputs, and the constant that is added."""

    weights: Floats
    bias: float

    def log_odds(self, inputs: Floats) -> LogOdds:
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
    """Fit the weights; those of the members' scores and ranks stay at 0 or above."""
    from scipy.optimize import minimize  # whoever only predicts starts without it

    mean, spread = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64)
    spread[spread < 1e-6] = np.inf  # an input that never changes says nothing
    Z = ((inputs - mean) / spread).astype(np.float32)
    n_inputs = inputs.shape[1]

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        total, slope = _lose(Z, hits, w.astype(np.float32))
        slope[:-1] += strength * w[:-1]
        return total + strength / 2 * (w[:-1] ** 2).sum(), slope

    bounds = [(0.0, None)] * (n_inputs - COMMON) + [(None, None)] * (COMMON + 1)
    first = np.zeros(n_inputs + 1)
    first[-1] = np.log((hits.sum() + 1) / (len(hits) - hits.sum() + 1))
    found = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds).x
    weights = found[:-1] / spread
    return Logistic(weights.astype(np.float32), float(found[-1] - (weights * mean).sum()))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _lose(Z: Floats, hits: Hits, w: Floats) -> tuple[float, NDArray[np.float64]]:
    """Return the logistic loss of all rows, and its slope by each weight and the constant behind.

    One pass over the rows, which are many and short; sums of BLOCK rows are added up.
    """
    n, n_inputs = Z.shape
    total, slope = 0.0, np.zeros(n_inputs + 1)
    for first in range(0, n, BLOCK):
        part = np.zeros(n_inputs + 1, np.float32)
        for i in range(first, min(first + BLOCK, n)):
            margin = w[n_inputs]
            for j in range(n_inputs):
                margin += Z[i, j] * w[j]
            shrunk = np.exp(-np.float64(abs(margin)))
            total += np.log1p(shrunk) + max(margin, 0) - margin * hits[i]
            larger = 1 / (1 + shrunk)
            wrong = np.float32((larger if margin >= 0 else 1 - larger) - hits[i])
            for j in range(n_inputs):
                part[j] += wrong * Z[i, j]
            part[n_inputs] += wrong
        slope += part
    return total, slope


def fit_mean(inputs: Floats, hits: Hits) -> Logistic:
    """Weigh all voices alike; only the slope and the constant are fitted."""
    same = _same_weights((inputs.shape[1] - COMMON) // PER_VOICE)
    common = np.zeros((len(inputs), COMMON), np.float32)  # the fit treats these apart
    fitted = fit_logistic(np.hstack([(inputs @ same)[:, None], common]), hits)
    return Logistic(same * fitted.weights[0], fitted.bias)


def _same_weights(n_voices: int) -> Floats:
    """Return weights that make the mean of the voices' log-odds."""
    weights = np.zeros(count_inputs(n_voices), np.float32)
    for voice in range(n_voices):
        weights[PER_VOICE * voice : PER_VOICE * voice + 2] = 1 / n_voices
    return weights


# -- the stacker ----------------------------------------------------------------------------------


class LogitAdjustment(NamedTuple):
    """How much the log-odds of rare labels are raised (Menon et al., ICLR 2021).

    Attributes:
        slope: log-odds that a label gains for each e times that it is rarer than usual.
        usual: the log share at which nothing changes: the mean of right candidates.
    """

    slope: float = 0.0
    usual: float = 0.0

    def add_to(self, log_odds: LogOdds, inputs: Floats) -> None:
        """Adjust the log-odds of candidates, in place."""
        if self.slope:
            log_odds += self.slope * (self.usual - inputs[:, -1].astype(np.float64))


class Stacker(NamedTuple):
    """What gives each candidate its probability."""

    name: StackerName
    logistic: Logistic
    trees: Trees
    adjustment: LogitAdjustment = LogitAdjustment()

    @classmethod
    def fit(cls, name: StackerName, inputs: Floats, hits: Hits) -> Self:
        """Learn which candidates are right."""
        logistic = fit_mean(inputs, hits) if name == "mean" else fit_logistic(inputs, hits)
        trees = Trees.none()
        if name == "boosted":
            trees = grow_trees(inputs, hits, logistic.log_odds(inputs))
        return cls(name, logistic, trees)

    @classmethod
    def plain_mean(cls, n_voices: int) -> Self:
        """Return the stacker that gives all voices the same weight, without learning."""
        return cls("mean", Logistic(_same_weights(n_voices), 0.0), Trees.none())

    def log_odds(self, inputs: Floats) -> LogOdds:
        """Return the log-odds of candidates."""
        log_odds = self.logistic.log_odds(inputs)
        add_trees(log_odds, inputs, *self.trees)
        self.adjustment.add_to(log_odds, inputs)
        return log_odds

    def rank(self, candidates: Candidates, k: int) -> TopK:
        """Return the `k` most probable candidates of each document."""
        log_odds = self.log_odds(candidates.inputs)
        return TopK(*_rank(candidates.start, candidates.labels, log_odds, k))

    def score(self, candidates: Candidates, labels: NDArray[np.int32]) -> Floats:
        """Return the probabilities (n, c) of labels, which are candidates; 0 for -1."""
        log_odds = self.log_odds(candidates.inputs)
        return _find_scores(candidates.start, candidates.labels, log_odds, labels)

    def add_to_files(self, files: Files) -> None:
        """Add it under "stacker"."""
        adjustment = {name: float(value) for name, value in self.adjustment._asdict().items()}
        files.config["stacker"] = {
            "name": self.name,
            "bias": self.logistic.bias,
            "adjustment": adjustment,
        }
        files.arrays["stacker.weights"] = self.logistic.weights
        for name, array in self.trees._asdict().items():
            files.arrays[f"stacker.{name}"] = array

    @classmethod
    def describe(cls, n_voices: int) -> Schema:
        """Return the schema of what `add_to_files` adds."""
        facts: Config = {
            "name": Value(StackerName),
            "bias": number(),
            "adjustment": dict.fromkeys(LogitAdjustment._fields, number()),
        }
        n_inputs = count_inputs(n_voices)
        arrays = {"weights": floats(n_inputs), **Trees.describe(n_inputs)}
        named = {f"stacker.{name}": array for name, array in arrays.items()}
        return Schema(config={"stacker": facts}, arrays=named)

    @classmethod
    def from_files(cls, files: Files) -> Self:
        """Take back what was saved."""
        config = files.config["stacker"]
        logistic = Logistic(files.arrays["stacker.weights"], config["bias"])
        trees = Trees(*(files.arrays[f"stacker.{name}"] for name in Trees._fields))
        return cls(config["name"], logistic, trees, LogitAdjustment(**config["adjustment"]))


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


@njit(nogil=True, cache=True)
def _find_scores(
    start: NDArray[np.int64],
    labels: NDArray[np.int32],
    margins: NDArray[np.float64],
    asked: NDArray[np.int32],
) -> Floats:
    scores = np.zeros(asked.shape, np.float32)
    for i in range(len(asked)):
        for at in range(start[i], start[i + 1]):
            for place in range(asked.shape[1]):
                if asked[i, place] == labels[at]:
                    scores[i, place] = 1 / (1 + np.exp(-margins[at]))
    return scores


class Choice(NamedTuple):
    """A stacker that was chosen, and its predictions for documents that it did not learn from.

    Attributes:
        stacker: learned from all documents.
        unseen: ranked lists for all documents, each by a stacker that had not seen it.
        reports: the metrics of each stacker on unseen documents.
        report: those of the chosen one, after logit adjustment.
        alone: the metrics of each member on these documents.
        rows: which of the training documents they are.
        proposers: how many labels those members propose that do.
    """

    stacker: Stacker
    unseen: TopK
    reports: Mapping[StackerName, Mapping[str, float]]
    report: Mapping[str, float]
    alone: Mapping[str, Mapping[str, float]]
    rows: NDArray[np.int64]
    proposers: Mapping[str, int] = MappingProxyType({})

    def lines(self) -> list[str]:
        """Return what each member and each stacker reaches, as it is shown."""
        lines = [f"On {len(self.rows):,} held-out documents:"]
        lines += [f"  {name} alone: {_sum_up(report)}" for name, report in self.alone.items()]
        for name, report in self.reports.items():
            chosen = ", chosen" if name == self.stacker.name else ""
            lines.append(f"  stacked ({name}): {_sum_up(report)}{chosen}")
        if self.stacker.adjustment.slope:
            lines.append(f"  with logit adjustment for rare labels: {_sum_up(self.report)}")
        proposed = ", ".join(f"{name} {width}" for name, width in self.proposers.items())
        lines.append(f"  labels that members propose, for all to score: {proposed}")
        return lines


def _sum_up(report: Mapping[str, float]) -> str:
    """Return the metrics that matter most in a few words."""
    frequent = " / ".join(f"{report[f'P@{k}']:.1f}" for k in (1, 3, 5))
    rare = " / ".join(f"{report[f'PSP@{k}']:.1f}" for k in (1, 3, 5))
    return f"P@1/3/5 {frequent}, PSP@1/3/5 {rare}"


def learn_stacking(
    lists: Mapping[str, Sequence[TopK]],
    splits: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    dataset: Dataset,
    wanted: StackerName | None = None,
    *,
    score: Callable[[int, str, Ids], Floats] | None = None,
    costs: Mapping[str, float] = MappingProxyType({}),
) -> Choice | None:
    """Choose a stacker by the held-out documents of all folds; None if they carry no label.

    Args:
        lists: for each member its lists for the held-out documents of each fold.
        splits: for each fold the documents to train on and those held out.
        dataset: all documents.
        wanted: the stacker to take; None chooses.
        score: returns for a fold and a member the scores (n, c) of labels of the fold's documents;
            None takes half of a list's last score for labels that are not in it.
        costs: milliseconds that members take for a document.
    """
    rows = np.concatenate([held for _, held in splits])
    Y = dataset.Y[rows]
    if not Y.nnz:
        return None
    joined = {name: TopK.concatenate(tops) for name, tops in lists.items()}
    proposers = choose_proposers(joined, Y, costs)
    groups = []
    for fold, (kept, _) in enumerate(splits):
        tops = {name: tops[fold] for name, tops in lists.items()}
        own = None if score is None else partial(score, fold)
        said = _listen(tops, proposers, dataset.n_labels, own)
        groups.append(describe_candidates(said, label_shares(dataset.Y[kept])))
    counts = TrainingCounts.of(dataset)
    alone = {name: evaluate(top, Y, train=counts) for name, top in joined.items()}
    names = [wanted] if wanted else possible_stackers(len(rows))
    with on_one_blas_thread():  # a fold is learned by a thread, and minimizes in small steps
        choice = choose_stacker(concatenate(groups), Y, counts, names, choose_depth(Y), alone, rows)
    return choice._replace(proposers=proposers)


def _listen(
    tops: Mapping[str, TopK],
    proposers: Mapping[str, int],
    n_labels: int,
    score: Callable[[str, Ids], Floats] | None,
) -> Said:
    """Return what members, whose lists are there, say of all that is proposed."""
    labels = unite([tops[name].labels[:, :width] for name, width in proposers.items()], n_labels)
    scores = []
    for name, top in tops.items():
        known, missing = spread(top.labels, top.scores, labels, n_labels)
        others = top.scores[:, -1:] / 2 if score is None else score(name, missing)
        scores.append(np.where(missing >= 0, others, known))
    return Said(labels, labels.shape[1], join_voices(tops, scores))


def label_shares(Y: sp.csr_matrix) -> Floats:
    """Return the share of the documents that carry each label."""
    return (np.bincount(Y.indices, minlength=Y.shape[1]) / Y.shape[0]).astype(np.float32)


def choose_stacker(
    candidates: Candidates,
    Y: sp.csr_matrix,
    counts: TrainingCounts,
    names: Sequence[StackerName],
    k: int,
    alone: Mapping[str, Mapping[str, float]] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Choice:
    """Learn each stacker on two thirds of the documents; take what ranks the others best.

    Args:
        candidates: of documents that the members had not seen.
        Y: (n, n_labels) their true labels.
        counts: of the training documents, for the metrics of rare labels.
        names: the stackers to choose from.
        k: the length of the lists for unseen documents.
        alone: the metrics of each member on these documents.
        rows: which of the training documents they are; the first ones unless given.
    """
    alone = alone or {}
    documents = np.repeat(np.arange(Y.shape[0]), np.diff(candidates.start))
    hits = contains_pairs(Y, documents, candidates.labels)
    unseen = {name: _predict_unseen(name, candidates, documents, hits) for name in names}

    def judge(name: StackerName, adjustment: LogitAdjustment) -> tuple[TopK, dict[str, float]]:
        adjusted = unseen[name].copy()
        adjustment.add_to(adjusted, candidates.inputs)
        top = TopK(*_rank(candidates.start, candidates.labels, adjusted, k))
        return top, evaluate(top, Y, train=counts)

    reports = {name: judge(name, LogitAdjustment())[1] for name in names}
    best = max(_precision(report) for report in reports.values())
    good = [name for name in names if _precision(reports[name]) >= best - ALIKE]
    chosen = max(good, key=lambda name: reports[name]["PSP@5"])
    usual = float(candidates.inputs[hits, -1].mean()) if hits.any() else 0.0
    adjustment = choose_adjustment(
        reports[chosen],
        lambda adjustment: judge(chosen, adjustment)[1],
        usual,
        list(alone.values()),
    )
    top, report = judge(chosen, adjustment)
    stacker = Stacker.fit(chosen, candidates.inputs, hits)._replace(adjustment=adjustment)
    rows = np.arange(Y.shape[0]) if rows is None else rows
    return Choice(stacker, top, reports, report, alone, rows)


def choose_adjustment(
    report: Mapping[str, float],
    judge: Callable[[LogitAdjustment], Mapping[str, float]],
    usual: float,
    members: Sequence[Mapping[str, float]],
) -> LogitAdjustment:
    """Return the least adjustment with which PSP is nowhere below the best member's.

    If none does, it is the one that comes nearest; precision may not fall by more than ALIKE.
    """
    names = [name for name in report if name.startswith("PSP@")]

    def lead(of: Mapping[str, float]) -> float:
        return min((of[name] - member[name] for name in names for member in members), default=0.0)

    found, ahead = LogitAdjustment(), lead(report)
    for slope in ADJUSTMENTS:
        if ahead >= 0:
            break
        adjustment = LogitAdjustment(slope, usual)
        adjusted = judge(adjustment)
        if _precision(adjusted) < _precision(report) - ALIKE:
            break
        if lead(adjusted) > ahead:
            found, ahead = adjustment, lead(adjusted)
    return found


def possible_stackers(n_documents: int) -> list[StackerName]:
    """Return what so many held-out documents can teach."""
    return ["mean", "logistic", "boosted"] if n_documents >= ENOUGH else ["mean", "logistic"]


def _precision(report: Mapping[str, float]) -> float:
    return (report["P@1"] + report["P@3"] + report["P@5"]) / 3


def _predict_unseen(
    name: StackerName, candidates: Candidates, documents: NDArray[np.int64], hits: Hits
) -> LogOdds:
    """Return the log-odds of the candidates of each fold, by what the other folds teach."""
    n = len(candidates.start) - 1
    fold = np.random.default_rng(0).permutation(n)[documents] % FOLDS
    log_odds = np.empty(len(hits))

    def predict(own: int) -> None:
        learned = Stacker.fit(name, candidates.inputs[fold != own], hits[fold != own])
        log_odds[fold == own] = learned.log_odds(candidates.inputs[fold == own])

    run_tasks(predict, [(own,) for own in range(FOLDS)], [1.0] * FOLDS)
    return log_odds


def concatenate(groups: Sequence[Candidates]) -> Candidates:
    """Return the candidates of several groups of documents, one group after the other."""
    ends = np.cumsum([0, *(len(group.labels) for group in groups)])
    starts = [group.start[:-1] + end for group, end in zip(groups, ends[:-1], strict=True)]
    return Candidates(
        np.concatenate([*starts, ends[-1:]]),
        np.concatenate([group.labels for group in groups]),
        np.concatenate([group.inputs for group in groups]),
    )
