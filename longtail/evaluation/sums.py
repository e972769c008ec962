"""Sums that do not depend on how their numbers are divided: what block by block is counted.

A sum of floating-point numbers rounds at every step, so its last bits depend on the order. Here a
number is taken for what it is, a whole number times a power of two, and whole numbers do not round:
the sum is exact, and rounded once when it is asked for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGITS = 53  # binary digits of a float
HALF = 26  # of them at a time: the sum of 2^26 such numbers is still exact as a float
LOWEST = 1100  # below the exponent of any float


class ExactSum:
    """The sum of numbers that come array by array; none may be negative."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._total = 0  # in units of 2^-(LOWEST + DIGITS)

    def add(self, values: NDArray[Any]) -> "ExactSum":
        """Add finite numbers; at most 2^26 at a time."""
        if len(values):
            fractions, exponents = np.frexp(np.asarray(values, np.float64))
            whole = np.ldexp(fractions, DIGITS).astype(np.int64)
            least = int(exponents.min())
            place = exponents - least
            high = np.bincount(place, whole >> HALF)
            low = np.bincount(place, whole & ((1 << HALF) - 1))
            for step, (h, rest) in enumerate(zip(high.tolist(), low.tolist(), strict=True)):
                self._total += ((int(h) << HALF) + int(rest)) << (LOWEST + least + step)
        return self

    @property
    def value(self) -> float:
        """The float nearest to the sum."""
        return self._total / (1 << (LOWEST + DIGITS))


def exact_sum(values: NDArray[Any]) -> float:
    """Return the float nearest to the sum of numbers that are not negative."""
    return ExactSum().add(values).value


class GivenCounts:
    """How many labels were given, were right and are true: in all, by label, and by document."""

    def __init__(self) -> None:
        """Begin without documents."""
        self.n_documents = 0
        self.by_label = [np.zeros(0, np.int64)] * 3  # right, given, true
        self._shares = {name: ExactSum() for name in ("precision", "recall", "F1")}

    def add(
        self,
        labels: NDArray[np.int64],
        hits: NDArray[np.bool_],
        true: NDArray[np.integer],
        n_true: NDArray[np.integer],
    ) -> None:
        """Count labels (n, k) of which `hits` are right, below 0 is none; `true` are all true ones.

        `n_true` (n,) is how many of them each document has.
        """
        given = labels >= 0
        for place, some in enumerate((labels[hits], labels[given], true)):
            self.by_label[place] = _count(self.by_label[place], some)
        self.n_documents += len(labels)
        right, n_given = hits.sum(axis=1), given.sum(axis=1)
        for name, (part, whole) in _parts(right, n_given, n_true).items():
            self._shares[name].add(part / np.maximum(whole, 1))

    @property
    def n_given(self) -> int:
        """How many labels were given."""
        return int(self.by_label[1].sum())

    def shares(self) -> dict[str, float]:
        """Return precision, recall and F1, micro, macro and by document, in percent."""
        width = max(map(len, self.by_label))
        right, given, true = (np.pad(each, (0, width - len(each))) for each in self.by_label)
        some = (given + true) > 0
        micro = _parts(right.sum(), given.sum(), true.sum())
        macro = _parts(right[some], given[some], true[some])
        results = {}
        for name in micro:
            part, whole = micro[name]
            results[f"{name}-micro"] = 100 * float(part / max(whole, 1))
        for name, (part, whole) in macro.items():
            results[f"{name}-macro"] = percent(exact_sum(part / np.maximum(whole, 1)), len(part))
        for name, found in self._shares.items():
            results[f"{name}-document"] = percent(found.value, self.n_documents)
        return results


def _parts(right: Any, given: Any, true: Any) -> dict[str, tuple[Any, Any]]:
    """Return of what each metric is the share: a part and the whole."""
    return {"precision": (right, given), "recall": (right, true), "F1": (2 * right, given + true)}


def _count(counts: NDArray[np.int64], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the counts, in place where they are long enough, with these labels counted too."""
    missing = int(labels.max(initial=-1)) + 1 - len(counts)
    if missing > 0:
        counts = np.pad(counts, (0, missing))
    np.add.at(counts, labels, 1)
    return counts


def percent(part: float, whole: float) -> float:
    """Return the share in percent, 0 of nothing."""
    return 100 * float(part) / float(whole) if whole else 0.0
