"""P@k and recall@k of head, torso and tail: how well frequent and rare labels are found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.data.describe import BAND_NAMES, UNSEEN, assign_bands
from longtail.evaluation.metrics import KS, Aligned, Cuts, TrainingCounts, check_cuts
from longtail.evaluation.sums import GivenCounts, percent
from longtail.topk import TopK


@dataclass(frozen=True)
class Band:
    """How well the labels of one frequency band were found; shares in percent.

    Attributes:
        name: head, torso, tail or unseen.
        n_labels: the number of labels in the band.
        min_documents: training documents of its rarest label.
        max_documents: training documents of its most frequent label.
        n_pairs: how often documents of the evaluated part carry a label of the band.
        share: the percentage of all pairs that these are.
        precision: for each k the band's part of P@k; over all bands they add up to P@k.
        recall: for each k the percentage of the band's pairs that stand in the first k.
    """

    name: str
    n_labels: int
    min_documents: int
    max_documents: int
    n_pairs: int
    share: float
    precision: dict[int, float]
    recall: dict[int, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the row with the keys "P@1", "recall@1", … ready for JSON."""
        row = {key: value for key, value in vars(self).items() if not isinstance(value, dict)}
        row |= {f"P@{k}": value for k, value in self.precision.items()}
        return row | {f"recall@{k}": value for k, value in self.recall.items()}


def evaluate_bands(
    top: TopK,
    data: Dataset | sp.csr_matrix,
    train: Dataset | TrainingCounts,
    k: int | Cuts = KS,
) -> list[Band]:
    """Return P@k and recall@k of head, torso and tail, as `longtail.data.describe` defines them.

    A fourth row, "unseen", stands for labels without training documents where `data` has any.
    """
    cuts = check_cuts(k, top)
    aligned = Aligned.of(top, data, train, max(cuts))
    return find_bands(aligned.count_first(cuts), aligned.counts.padded(aligned.Y.shape[1]))


def find_bands(counted: Mapping[int, GivenCounts], label_counts: NDArray[np.int64]) -> list[Band]:
    """Return the rows of `evaluate_bands` out of the first k labels for each k.

    Args:
        counted: the first k labels for each k.
        label_counts: the training documents of each label, also of those that it never saw.
    """
    band = assign_bands(label_counts)
    by_band = {
        k: [_sum_bands(each, band) for each in counts.by_label] for k, counts in counted.items()
    }
    n_documents, pairs = next((counted[k].n_documents, by_band[k][2]) for k in counted)
    rows = []
    for i, name in enumerate(BAND_NAMES):
        n_pairs, own = int(pairs[i]), label_counts[band == i]
        rows.append(
            Band(
                name=name,
                n_labels=len(own),
                min_documents=int(own.min(initial=own.max(initial=0))),
                max_documents=int(own.max(initial=0)),
                n_pairs=n_pairs,
                share=percent(n_pairs, pairs.sum()),
                precision={k: percent(by_band[k][0][i], n_documents * k) for k in counted},
                recall={k: percent(by_band[k][0][i], n_pairs) for k in counted},
            )
        )
    return rows if pairs[UNSEEN] else rows[:UNSEEN]


def _sum_bands(counts: NDArray[np.int64], band: NDArray[np.int8]) -> NDArray[np.int64]:
    sums = np.bincount(band[: len(counts)], counts[: len(band)], minlength=len(BAND_NAMES))
    return sums.astype(np.int64)
