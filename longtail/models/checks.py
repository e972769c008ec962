"""Is what was given what a model can take? Checks of candidates, scores, thresholds and labels."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import DataError, ParameterError
from longtail.evaluation.calibration import AUTOMATIC, Calibration
from longtail.evaluation.metrics import TrainingCounts
from longtail.progress import Progress
from longtail.topk import TopK

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

SHOWN = 3  # labels that are named


def check_candidates(candidates: Any, n_documents: int, n_labels: int) -> Ids:
    """Return the candidates as label numbers (n, c), or say what is wrong with them."""
    try:
        given = np.asarray(candidates)
    except ValueError as error:  # lists of different lengths
        raise DataError(
            "the candidates must have as many labels for each document; fill up with -1"
        ) from error
    if given.ndim != 2 or len(given) != n_documents:
        raise DataError(
            f"the candidates must be one row of labels for each of the {n_documents} documents; "
            f"got an array of shape {given.shape}"
        )
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise DataError(
            f"the candidates must be whole numbers, places in label_names_; got {given.dtype}"
        )
    if given.size and (given.min() < -1 or given.max() >= n_labels):
        wrong = given.min() if given.min() < -1 else given.max()
        raise DataError(
            f"the candidates must be from 0 to {n_labels - 1}, or -1 for none; got {wrong}"
        )
    return np.ascontiguousarray(given, np.int32)


def look_up_scores(top: TopK, labels: Ids, others: Floats | None = None) -> Floats:
    """Return the score of each label (n, c) in its document's list; `others`, or 0, beside it."""
    scores = np.zeros(labels.shape, np.float32) if others is None else others.copy()
    if not labels.size:
        return scores
    width = int(max(labels.max(), top.labels.max())) + 2  # so that no document's -1 is a label
    rows = np.arange(len(labels), dtype=np.int64)[:, None] * width
    keys, wanted = (rows + top.labels).ravel(), rows + labels
    order = np.argsort(keys, kind="stable")
    places = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    found = (keys[places] == wanted) & (labels >= 0)
    scores[found] = top.scores.ravel()[places[found]]
    return scores


def check_finite(scores: Floats) -> None:
    """Raise DataError for the first document whose scores are no numbers."""
    if not np.isfinite(scores).all():
        first = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
        raise DataError(
            f"document {first}, counted from 0, gets scores that are not finite numbers; "
            "its feature values are too large for this model"
        )


def check_k(k: Any) -> None:
    """Raise ParameterError unless `k` is a number of labels."""
    if isinstance(k, bool) or not isinstance(k, Integral):
        raise ParameterError(f"k must be a whole number of at least 1. Got {k!r} instead.")
    if k < 1:
        raise ParameterError(f"k must be at least 1. Got {k} instead.")


def check_one(n_documents: int) -> None:
    """Raise DataError unless there is one document, which can be explained."""
    if n_documents != 1:
        raise DataError(f"one document can be explained at a time; got {n_documents}")


def find_threshold(threshold: float | str, calibration: Calibration | None) -> float:
    """Return the least probability that `threshold` means, or say what is wrong with it."""
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    is_word = isinstance(threshold, str) and threshold in AUTOMATIC
    if not (is_word or (is_number and 0 <= float(threshold) <= 1)):
        raise ParameterError(
            f"The threshold must be a probability from 0 to 1, {' or '.join(AUTOMATIC)}. "
            f"Got {threshold!r} instead."
        )
    if calibration is None:
        raise ParameterError(
            "a threshold needs probabilities, which this model does not give yet; calibrate it "
            "first on documents that it was not trained on: longtail calibrate DIR DATA, or "
            "model.calibrate(data)"
        )
    return calibration.find_threshold(threshold if is_word else float(threshold))


def check_names(dataset: Dataset, known: Sequence[str]) -> None:
    """Raise DataError if the labels are numbers, and those that the model knows are names."""
    names = dataset.label_names
    numbered = all(name == str(i) for i, name in enumerate(names))
    if numbered and set(known).isdisjoint(names):
        raise DataError(
            f"the labels of the new documents are numbers, 0 to {len(names) - 1}, but those of the "
            f"model have names, such as '{known[0]}'; give the new ones names as well"
        )


def only_carried(dataset: Dataset, known: Sequence[str]) -> Dataset:
    """Return the documents without labels that are neither known nor carried by any of them."""
    names, known_names = dataset.label_names, set(known)
    counts = TrainingCounts.of(dataset).label_counts
    kept = [i for i, name in enumerate(names) if counts[i] or name in known_names]
    return replace(
        dataset, Y=dataset.Y[:, kept], label_names=[names[i] for i in kept], exclude=None
    )


def find_excluded(data: Any, label_names: Sequence[str]) -> sp.csr_matrix | None:
    """Return the pairs that must not be predicted, or None if there are none."""
    if not isinstance(data, Dataset) or data.exclude is None or data.exclude.nnz == 0:
        return None
    return data.align(label_names).exclude


def say_left_out(given: Dataset, taken: Dataset, known: Sequence[str], progress: Progress) -> None:
    """Say how many documents cannot vote, and which new labels nobody can vote for."""
    if len(taken) == len(given):
        return
    n_left = len(given) - len(taken)
    progress.say(
        f"Note: {n_left:,} of {len(given):,} documents were left out, "
        "as they have no label or no feature that the model knows"
    )
    before, after = (TrainingCounts.of(each).label_counts for each in (given, taken))
    lost = [given.label_names[i] for i in np.flatnonzero((before > 0) & (after == 0)).tolist()]
    new = sorted(set(lost).difference(known))
    if new:
        names = ", ".join(new[:SHOWN]) + (", …" if len(new) > SHOWN else "")
        progress.say(
            f"Note: {len(new):,} new label{'s' * (len(new) > 1)} ({names}) cannot be predicted "
            "and were not added: only documents that were left out carry them"
        )
