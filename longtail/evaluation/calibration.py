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

Scores may be probabilities already, such as those of a stacker that was learned from held-out
documents. A curve then learns chance alone. So curves are used only if the first five labels of
unseen documents are better foretold by them: if the log loss is lower.

How good the probabilities are is measured on documents that had no part in them: the held-out
documents are divided in five, and each fifth is judged by what the other four taught.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.evaluation.curve import Curve, Hits, Method, check_method, log_odds
from longtail.evaluation.metrics import TrainingCounts, evaluate_documents, find_hits
from longtail.evaluation.reliability import error_of_first
from longtail.evaluation.steps import FIRST, Steps, fit_steps
from longtail.evaluation.tradeoff import ARRAY, N_TRUE, NAME, Tradeoff, check_tradeoff
from longtail.runtime.schema import Schema, Sizes, Value, floats, number, whole
from longtail.runtime.settings import at_least
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

FOLDS = 5
SHALLOWEST, DEEPEST = 20, 100  # labels of a document that a calibration is learned from
AUTOMATIC = {"auto": "micro", "auto-document": "document"}  # thresholds by name, what is best there


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns the scores of a model into probabilities.

    Attributes:
        method: "isotonic" or "logistic": of the curves, if there are any.
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
        unseen = predict_unseen(top, Y, method, counts)
        bent = method if _log_loss(unseen, Y) < _log_loss(top, Y) else None
        if bent is None:
            unseen = predict_unseen(top, Y, None, counts)
        if reorder is not False:
            other = predict_unseen(top, Y, bent, counts, reorder=True)
            reorder = reorder or _ranks_better(other, unseen, Y)
            unseen = other if reorder else unseen
        calibration = cls(
            method=method,
            steps=fit_steps(top, Y, bent, counts, reorder),
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
    method: Method | None = "isotonic",
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


def _log_loss(top: TopK, Y: sp.csr_matrix) -> float:
    """Return the mean log loss of the first five labels of each document."""
    first = top.first(FIRST)
    places = np.where(find_hits(first, Y), 1, -1) * log_odds(first.scores)
    return float(np.logaddexp(0, -places)[first.labels != NO_LABEL].mean())


def _ranks_better(one: TopK, other: TopK, Y: sp.csr_matrix) -> bool:
    """Whether nDCG@5 is better by more than its standard error, and P@1 is not worse."""
    ours, theirs = evaluate_documents(one, Y), evaluate_documents(other, Y)
    gain = ours["nDCG@5"].reached - theirs["nDCG@5"].reached
    sure = gain.mean() > gain.std() / np.sqrt(len(gain))
    return bool(sure and ours["P@1"].reached.sum() >= theirs["P@1"].reached.sum())


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
