"""Tally: the metrics of predictions that come block by block, the same as of all of them at once.

What is kept does not grow with the documents: counts of whole numbers, in all and by label, and
sums that are exact (`sums.py`), so that every bit is that of `metrics.evaluate`.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from longtail.errors import DataError
from longtail.evaluation.bands import Band, find_bands
from longtail.evaluation.hierarchical import AboveCounts
from longtail.evaluation.metrics import (
    KS,
    Aligned,
    TrainingCounts,
    count_above,
    report_first,
    report_given,
)
from longtail.evaluation.propensity import propensity_constants
from longtail.evaluation.reliability import Reliability, ReliabilityCounts
from longtail.evaluation.sums import ExactSum, GivenCounts, percent
from longtail.topk import TopK


class Tally:
    """Counts predictions against true labels."""

    def __init__(
        self,
        train: TrainingCounts,
        k: Sequence[int] = KS,
        propensity: str = "default",
        threshold: float | None = None,
        above: Sequence[sp.csr_matrix] | None = None,
    ) -> None:
        """Begin without documents.

        Args:
            train: the counts of what the model was trained on.
            k: where rankings are cut, rising.
            propensity: the constants of the PS metrics, by name.
            threshold: also count the labels of this score or more.
            above: also count hierarchical metrics by these links of `hierarchical.link_above`.
        """
        self.train, self.cuts, self.threshold = train, list(k), threshold
        self.n_documents = 0
        self._constants = propensity_constants(propensity)
        self._sums: dict[str, tuple[ExactSum, ExactSum]] = {}
        self._first = {cut: GivenCounts() for cut in self.cuts}
        self._given = GivenCounts()
        self._bins = ReliabilityCounts()
        self._above = None if above is None else AboveCounts(above, self.cuts)

    def add(self, top: TopK, Y: sp.csr_matrix) -> None:
        """Count a block of documents; Y has the ids of `top`, labels that it lacks come behind."""
        aligned = Aligned.of(top, Y, self.train, max(self.cuts))
        for name, each in aligned.per_document(self.cuts, *self._constants).items():
            reached, possible = self._sums.setdefault(name, (ExactSum(), ExactSum()))
            reached.add(each.reached)
            possible.add(each.possible)
        aligned.count_first(self.cuts, self._first)
        if self.threshold is not None:
            count_above(top.above(self.threshold), aligned.Y, self._given)
        self._bins.add_first(top, aligned.Y)
        if self._above is not None:
            self._above.add(top, aligned.Y)
        self.n_documents += len(top)

    @property
    def true_counts(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """How many documents carry each label, up to the last that any carries."""
        return self._first[self.cuts[0]].by_label[2]

    def report(self) -> dict[str, float]:
        """Return all metrics, in percent; those of a threshold only with one."""
        if not self.n_documents:
            raise DataError("there are no documents to evaluate")
        results = {name: percent(a.value, b.value) for name, (a, b) in self._sums.items()}
        results |= report_first(self._first)
        if self.threshold is not None:
            results |= report_given(self._given)
        results["n_documents"] = self.n_documents
        results["ECE"] = round(self.reliability().error, 5)
        if self.threshold is not None:
            results["threshold"] = self.threshold
        return results | ({} if self._above is None else self._above.report())

    def bands(self) -> list[Band]:
        """Return how well frequent and rare labels are found."""
        return find_bands(self._first, self.train.padded(len(self.true_counts)))

    def reliability(self) -> Reliability:
        """Compare the probabilities of the first labels with how many are right."""
        return self._bins.result()
