"""Labels of documents that a model does not know: none of them is an error, some are said."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from longtail.data.coerce import as_dataset
from longtail.data.dataset import Dataset
from longtail.errors import DataError
from longtail.evaluation.sums import percent

SHOWN = 3  # labels that are named


def find_unknown(data: Dataset, label_names: Sequence[str]) -> str | None:
    """Say which labels of the documents a model of `label_names` cannot give; None if none.

    Raises:
        DataError: the model knows none of them.
    """
    data = as_dataset(data).align(label_names)
    true = np.bincount(data.Y.indices, minlength=len(label_names))
    return describe_unknown(true, data.label_names, label_names)


def describe_unknown(
    true: NDArray[np.int64], names: Sequence[str], label_names: Sequence[str]
) -> str | None:
    """Do what `find_unknown` does, given how many documents carry each of the labels `names`.

    Those that a model knows come first, as `Dataset.align` orders them.
    """
    n_known = len(label_names)
    unknown = n_known + np.flatnonzero(true[n_known:])
    if not len(unknown):
        return None
    examples = _list_names([names[label] for label in unknown[:SHOWN].tolist()])
    n_carried = np.count_nonzero(true)
    if n_carried == len(unknown):
        raise DataError(
            f"the model knows none of the labels that these documents carry, such as {examples}; "
            f"it knows {_list_names(label_names[:SHOWN])}, …; use the names that it was trained "
            "with"
        )
    share = percent(true[unknown].sum(), true.sum())
    return (
        f"the model does not know {len(unknown):,} of the {n_carried:,} labels that these "
        f"documents carry, such as {examples}; they are {share:.1f} % of the pairs and count as "
        "missed"
    )


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name:.40}'" for name in names)
