"""How good a model is on documents that come block by block, whatever their number."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.errors import DataError
from longtail.evaluation.bands import Band
from longtail.evaluation.hierarchical import link_above
from longtail.evaluation.metrics import KS
from longtail.evaluation.reliability import Reliability
from longtail.evaluation.tally import Tally
from longtail.evaluation.unknown import describe_unknown
from longtail.labels.state import DROPPED, UNKNOWN, say_dropped
from longtail.models.base import Model
from longtail.progress import SILENT, Progress


@dataclass(frozen=True)
class Assessment:
    """What a model reached.

    Attributes:
        report: all metrics, in percent, with the documents and the seconds that labelling took.
        bands: how well frequent and rare labels are found.
        reliability: the share of right labels by the probability they were given.
    """

    report: dict[str, float]
    bands: list[Band]
    reliability: Reliability


def assess(
    model: Model,
    blocks: Iterable[Dataset],
    *,
    k: Sequence[int] = KS,
    propensity: str = "default",
    threshold: float | None = None,
    source: str | None = None,
    progress: Progress = SILENT,
) -> Assessment:
    """Label documents and compare that with their labels, by name.

    Args:
        model: a trained model.
        blocks: the documents; labels keep their columns from block to block.
        k: where rankings are cut, rising.
        propensity: the constants of the PS metrics, by name.
        threshold: the probability from which labels are given, to measure these as well.
        source: where the documents come from, for errors.
        progress: is shown how many documents are labelled, and what is to be said.
    """
    labels = _LabelReader(model)
    tally = Tally(model.current_counts, k, propensity, threshold, _find_above(model))
    depth = max(k) if model.calibration_ is None else max(*k, model.calibration_.depth)
    seconds = 0.0
    progress.stage("labelling", 0)
    for block in blocks:
        Y = labels.read(block)
        began = time.perf_counter()
        top = model.predict(block, depth)
        seconds += time.perf_counter() - began
        tally.add(top, Y)
        progress.advance(len(block))
        progress.note(f"{tally.n_documents:,} documents")
    if not tally.n_documents:
        raise DataError("there is no document to evaluate on", path=source)
    if not labels.n_pairs:
        raise DataError("none of the documents carries a label to compare with", path=source)
    for note in labels.notes(tally):
        progress.say(f"Note: {note}.")
    report = {**tally.report(), "seconds": round(seconds, 3)}
    return Assessment(report, tally.bands(), tally.reliability())


def _find_above(model: Model) -> list[sp.csr_matrix] | None:
    """Return which labels are above which, where the model's vocabulary has a hierarchy."""
    vocabulary, concepts = model.label_state_.vocabulary, model.label_state_.concepts
    if vocabulary is None or concepts is None or not len(vocabulary.broader):
        return None
    return link_above(vocabulary.broader, concepts, len(vocabulary))


class _LabelReader:
    """Gives the labels of documents the numbers that a model has for them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.n_pairs = 0
        self._number = {name: i for i, name in enumerate(model.label_names_)}
        self._unknown: dict[str, int] = {}
        self._targets = np.zeros(0, np.int32)  # of the labels seen so far
        self._dropped: dict[str, None] = {}

    def read(self, block: Dataset) -> sp.csr_matrix:
        """Return Y; labels that the model does not know come behind those that it knows."""
        self._targets = np.concatenate([self._targets, self._resolve(block)])
        n_labels = len(self._number) + len(self._unknown)
        targets = self._targets[block.Y.indices] if block.Y.nnz else block.Y.indices
        self.n_pairs += block.Y.nnz
        for label in np.unique(block.Y.indices[targets == DROPPED]).tolist():
            self._dropped[block.label_names[label]] = None
        rows = np.repeat(np.arange(len(block)), np.diff(block.Y.indptr))
        kept = targets != DROPPED
        ones = np.ones(int(kept.sum()), np.float32)
        Y = sp.csr_matrix((ones, (rows[kept], targets[kept])), shape=(len(block), n_labels))
        Y.data[:] = 1  # where several of its labels became one
        return Y

    def _resolve(self, block: Dataset) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the numbers of the labels that are new in this block."""
        new = list(block.label_names[len(self._targets) :])
        found = self.model.label_state_.resolve(new, block.label_uris, self._number)
        for place in np.flatnonzero(found == UNKNOWN).tolist():
            behind = len(self._number) + len(self._unknown)
            found[place] = self._unknown.setdefault(new[place], behind)
        return found

    def notes(self, tally: Tally) -> Iterable[str]:
        """Yield what to say about labels; DataError if the model knows none of them."""
        if self._dropped:
            yield say_dropped(list(self._dropped))
        known = self.model.label_names_
        true, n_known = tally.true_counts, len(known)
        carried = {name: true[i] for name, i in self._unknown.items() if i < len(true) and true[i]}
        names = sorted(carried)
        counts = np.array([*true[:n_known], *(carried[name] for name in names)], np.int64)
        if len(true) < n_known:
            counts = np.pad(true, (0, n_known - len(true)))
        found = describe_unknown(counts, [*known, *names], known)
        if found is not None:
            yield found
