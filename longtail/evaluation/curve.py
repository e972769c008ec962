"""A rising curve from scores to probabilities: logistic regression or centred isotonic regression.

Curves live in log-odds: they lead from the log-odds of a score to the log-odds that a label with
such a score is right.
"""

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ParameterError, suggest

Method = Literal["isotonic", "logistic"]
Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]

SMALLEST = 1e-7  # scores nearer to 0 or 1 than this count as if they were this near
SMALLEST_POOL, MOST_POOLS = 20, 2000  # predictions; pools before any are joined


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


STRAIGHT = Curve(log_odds(np.array([0.0, 1.0])), log_odds(np.array([0.0, 1.0])))  # changes nothing


def check_method(method: str) -> None:
    """Raise ParameterError if there is no such method."""
    if method not in get_args(Method):
        raise ParameterError(
            f"The 'method' parameter must be one of {', '.join(get_args(Method))}. "
            f"Got {method!r} instead{suggest(method, get_args(Method))}"
        )
