"""Dual coordinate descent for many linear classifiers that share their documents.

The classifiers of one tree node see the same documents, so they are trained side by side: W
holds one row for each feature and one column for each classifier, and a visit to a document
updates all of them with a few vector instructions per feature. Each column takes the very
steps of the one-classifier algorithm (Hsieh et al., ICML 2008; for the logistic loss Yu et
al., MLJ 2011), only the order of the documents is common to all. A document whose steps were all
small is left out of the next pass; if they are small again, of two passes, then of three.

    minimize over w_l   ½‖w_l‖² + C Σ_i loss(y_il · w_l·x_i),   y_il = ±1

with loss(m) = max(0, 1 − m)² ("squared-hinge") or log(1 + e^(−m)) ("logistic"), and a C for each
classifier. Every document has one more feature, of value `bias`, which is the last row of W.

Training may begin with the weights w⁰_l of an earlier one. The very same steps then minimize
½‖w_l − w⁰_l‖² + C Σ_i loss over the new documents: what they do not contradict stays.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows, gather_rows

# What vector code needs, and no more: were sums free to be reordered, the result would depend on
# where the arrays happen to lie in memory, and a seed would no longer fix it.
_FAST = {"contract", "nsz", "nnan"}
LANES = 8  # classifiers at a time in vector code; what is left over would go one by one
LEAST_WEIGHT = np.finfo(np.float32).tiny  # what is smaller counts as 0
STEPS_OF_SORTING = 32  # sorting one feature costs about as much as passing so many one by one


class Settings(NamedTuple):
    """What a user may choose about the training of every node."""

    logistic: bool
    bias: float
    tolerance: float
    max_passes: int
    prune: float


class NodeWeights(NamedTuple):
    """The trained classifiers of one node, small weights left out.

    Attributes:
        features: (r,) the features that have a weight, rising.
        start: (r + 1,) where the weights of each of these features begin.
        children: (s,) the child that each weight belongs to.
        weights: (s,) the weights.
        bias: (n_children,) the weight of the constant feature, times its value.
    """

    features: NDArray[np.int32]
    start: NDArray[np.int64]
    children: NDArray[np.uint8]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]


@njit(nogil=True, cache=True)
def _shuffle(order: NDArray[np.int64], n: int, state: np.uint64) -> np.uint64:
    """Shuffle the first `n` of `order`; `state` is that of a xorshift generator."""
    for i in range(n - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        j = np.int64(state % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]
    return state


@njit(nogil=True, cache=True, fastmath=_FAST)
def _score(
    X: Rows, i: int, W: NDArray[np.float32], bias: np.float32, margin: NDArray[np.float32]
) -> None:
    """Write w_l·x_i for all classifiers l to `margin`."""
    constant, n_classifiers = W.shape[0] - 1, W.shape[1]
    for c in range(n_classifiers):
        margin[c] = bias * W[constant, c]
    cell, end = X.start[i], X.start[i + 1]
    while cell + 4 <= end:  # four features a round: the sums are loaded and stored less often
        f0, f1, f2, f3 = (
            X.columns[cell],
            X.columns[cell + 1],
            X.columns[cell + 2],
            X.columns[cell + 3],
        )
        v0, v1, v2, v3 = X.values[cell], X.values[cell + 1], X.values[cell + 2], X.values[cell + 3]
        for c in range(n_classifiers):
            margin[c] += v0 * W[f0, c] + v1 * W[f1, c] + v2 * W[f2, c] + v3 * W[f3, c]
        cell += 4
    while cell < end:
        f0, v0 = X.columns[cell], X.values[cell]
        for c in range(n_classifiers):
            margin[c] += v0 * W[f0, c]
        cell += 1


@njit(nogil=True, cache=True, fastmath=_FAST)
def _add(
    X: Rows, i: int, W: NDArray[np.float32], bias: np.float32, step: NDArray[np.float32]
) -> None:
    """Add step_l·x_i to w_l for all classifiers l."""
    constant, n_classifiers = W.shape[0] - 1, W.shape[1]
    for cell in range(X.start[i], X.start[i + 1]):
        feature, value = X.columns[cell], X.values[cell]
        for c in range(n_classifiers):
            W[feature, c] += value * step[c]
    for c in range(n_classifiers):
        W[constant, c] += bias * step[c]


@njit(nogil=True, cache=True, fastmath=_FAST)
def _hinge_steps(
    margin: NDArray[np.float32],
    sign: NDArray[np.float32],
    alpha: NDArray[np.float32],
    norm: np.float32,
    C: NDArray[np.float32],
    step: NDArray[np.float32],
) -> np.float32:
    """Solve the squared hinge's one-variable problems; return the largest gradient met."""
    zero, half, one = np.float32(0), np.float32(0.5), np.float32(1)
    largest = zero
    for c in range(len(C)):
        diagonal = half / C[c]
        curvature = norm + diagonal
        gradient = sign[c] * margin[c] - one + alpha[c] * diagonal
        new = max(alpha[c] - gradient / curvature, zero)
        step[c] = new - alpha[c]
        largest = max(largest, abs(step[c]) * curvature)
    return largest


@njit(nogil=True, cache=True, fastmath=_FAST)
def _logistic_steps(
    margin: NDArray[np.float32],
    sign: NDArray[np.float32],
    alpha: NDArray[np.float32],
    norm: np.float32,
    C: NDArray[np.float32],
    step: NDArray[np.float32],
) -> np.float32:
    """Solve the logistic loss's one-variable problems; return the largest gradient met.

    With α = C·σ(t) the optimum is the root of t + norm·(C·σ(t) − α_old) + margin, which rises
    everywhere, and as 0 < σ < 1 it lies between two known bounds: Newton's method inside them.
    The curve is steep only in its middle, over which Newton's steps may leap back and forth for
    ever: the bounds are halved after a step that has not halved the excess.
    """
    half, one = np.float32(0.5), np.float32(1)
    largest = np.float32(0)
    for c in range(len(C)):
        centre = norm * alpha[c] - sign[c] * margin[c]
        low, high = centre - norm * C[c], centre
        t = half * (low + high)
        sigma = one / (one + np.exp(-t))
        before = high - low
        for _ in range(20):
            excess = t + norm * C[c] * sigma - centre
            if abs(excess) < np.float32(1e-3):
                break
            if excess > 0:
                high = t
            else:
                low = t
            t -= excess / (one + norm * C[c] * sigma * (one - sigma))
            if abs(excess) > half * before or not low < t < high:
                t = half * (low + high)
            before = abs(excess)
            sigma = one / (one + np.exp(-t))
        step[c] = C[c] * sigma - alpha[c]
        largest = max(largest, abs(step[c]) * (norm + np.float32(4) / C[c]))
    return largest


@njit(nogil=True, cache=True, fastmath=_FAST)
def descend(
    X: Rows,
    positives: Rows,
    W: NDArray[np.float32],
    C: NDArray[np.float32],
    settings: Settings,
    seed: int,
) -> None:
    """Train classifiers on all documents of X.

    Args:
        X: the documents' features, numbered densely.
        positives: for each document the classifiers for which it is a positive one.
        W: (n_features + 1, n_classifiers) the weights to begin with, which become the trained ones;
            the last row is that of the constant feature. More than about 64 classifiers overflow
            the cache. Columns of 0 behind them stay so: with a multiple of `LANES` it is quicker.
        C: (n_classifiers,) how much a wrong document counts.
        settings: loss and when to stop.
        seed: fixes the order in which documents are visited.
    """
    n, n_columns = len(X.start) - 1, W.shape[1]
    bias = np.float32(settings.bias)
    alpha = np.zeros((n, n_columns), np.float32)
    margin = np.zeros(n_columns, np.float32)
    step = np.zeros(n_columns, np.float32)
    sign = np.full(n_columns, np.float32(-1))
    norm = np.full(n, bias * bias)
    for i in range(n):
        for cell in range(X.start[i], X.start[i + 1]):
            norm[i] += X.values[cell] * X.values[cell]
    order = np.arange(n, dtype=np.int64)
    state = np.uint64(seed) * np.uint64(2654435761) + np.uint64(88172645463325252)
    tolerance = np.float32(settings.tolerance)
    calm = np.zeros(n, np.int32)  # on how many visits in a row a document taught little
    rest = np.zeros(n, np.int32)  # how many passes it is left out of for that
    for _ in range(settings.max_passes):
        state = _shuffle(order, n, state)
        largest, n_resting = np.float32(0), 0
        for place in range(n):
            i = order[place]
            if rest[i]:
                rest[i] -= 1
                n_resting += 1
                continue
            _score(X, i, W, bias, margin)
            own = positives.columns[positives.start[i] : positives.start[i + 1]]
            for c in own:
                sign[c] = np.float32(1)
            if settings.logistic:
                gradient = _logistic_steps(margin, sign, alpha[i], norm[i], C, step)
            else:
                gradient = _hinge_steps(margin, sign, alpha[i], norm[i], C, step)
            if gradient > np.float32(0.1) * tolerance:
                for c in range(n_columns):
                    alpha[i, c] += step[c]
                    step[c] *= sign[c]
                _add(X, i, W, bias, step)
            for c in own:
                sign[c] = np.float32(-1)
            calm[i] = calm[i] + 1 if gradient < tolerance else 0
            rest[i] = calm[i]
            largest = max(largest, gradient)
        if largest < tolerance:
            if n_resting == 0:
                break
            rest[:] = 0  # what the others did meanwhile may have changed something for them


@njit(nogil=True, cache=True)
def _sort_by(
    features: NDArray[np.int32], chosen: NDArray[np.int64], scratch: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the `chosen` places, ordered by the features that stand there."""
    if len(scratch) > STEPS_OF_SORTING * len(chosen):
        return chosen[np.argsort(features[chosen])]
    for place in chosen:
        scratch[features[place]] = place
    n = 0
    for feature in range(len(scratch)):
        if scratch[feature] >= 0:
            chosen[n] = scratch[feature]
            n += 1
            scratch[feature] = -1
    return chosen


@njit(nogil=True, cache=True)
def _prune(
    W: NDArray[np.float32],
    n_classifiers: int,
    features: NDArray[np.int32],
    settings: Settings,
    scratch: NDArray[np.int32],
) -> NodeWeights:
    """Keep the weights of at least `settings.prune`, ordered by feature."""
    n_features = W.shape[0] - 1
    least = max(np.float32(settings.prune), LEAST_WEIGHT)
    kept = np.zeros(n_features, np.int64)
    for f in range(n_features):
        n_kept = np.int32(0)
        for c in range(n_classifiers):
            n_kept += np.int32(abs(W[f, c]) >= least)
        kept[f] = n_kept
    filled = _sort_by(features, np.flatnonzero(kept), scratch)
    start = np.zeros(len(filled) + 1, np.int64)
    size = kept.sum()
    # One more than is kept: a weight that is too small is written, too, and the next one over it,
    # which takes less time than to decide.
    children, weights = np.empty(size + 1, np.uint8), np.empty(size + 1, np.float32)
    place = 0
    for row in range(len(filled)):
        f = filled[row]
        for c in range(n_classifiers):
            children[place] = c
            weights[place] = W[f, c]
            place += abs(W[f, c]) >= least
        start[row + 1] = place
    bias = W[n_features, :n_classifiers] * np.float32(settings.bias)
    return NodeWeights(features[filled], start, children[:size], weights[:size], bias)


@njit(nogil=True, cache=True)
def _positives_among(labels: Rows, documents: NDArray[np.int32], first: int, last: int) -> Rows:
    """Select for each document the columns first ≤ c < last, counted from `first`."""
    start = np.zeros(len(documents) + 1, np.int64)
    columns = np.empty(0, np.int32)
    for fill in range(2):
        place = 0
        for i in range(len(documents)):
            for cell in range(labels.start[documents[i]], labels.start[documents[i] + 1]):
                column = labels.columns[cell]
                if first <= column < last:
                    if fill == 1:
                        columns[place] = column - first
                    place += 1
            start[i + 1] = place
        if fill == 0:
            columns = np.empty(place, np.int32)
    return Rows(start, columns, np.empty(0, np.float32))


@njit(nogil=True, cache=True)
def _begin_with(
    begin: NodeWeights, features: NDArray[np.int32], bias: float, scratch: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Return the weights of `features`, and of the constant, as `descend` takes them."""
    n_columns = -(-len(begin.bias) // LANES) * LANES
    W = np.zeros((len(features) + 1, n_columns), np.float32)
    if bias > 0:
        W[len(features), : len(begin.bias)] = begin.bias / np.float32(bias)
    for f in range(len(features)):
        scratch[features[f]] = f
    for row in range(len(begin.features)):
        f = scratch[begin.features[row]]
        if f >= 0:
            for place in range(begin.start[row], begin.start[row + 1]):
                W[f, begin.children[place]] = begin.weights[place]
    scratch[features] = -1
    return W


@njit(nogil=True, cache=True)
def _join(begin: NodeWeights, trained: NodeWeights, features: NDArray[np.int32]) -> NodeWeights:
    """Return the trained weights, and those of other features than `features` as they were."""
    known = set(features)
    others = [row for row in range(len(begin.features)) if begin.features[row] not in known]
    n_trained = len(trained.features)
    rows = np.concatenate((trained.features, begin.features[np.array(others, np.int64)]))
    size = len(trained.weights)
    for row in others:
        size += begin.start[row + 1] - begin.start[row]
    start = np.zeros(len(rows) + 1, np.int64)
    children, weights = np.empty(size, np.uint8), np.empty(size, np.float32)
    order = np.argsort(rows)
    for at in range(len(order)):
        source, row = (
            (trained, order[at])
            if order[at] < n_trained
            else (begin, others[order[at] - n_trained])
        )
        first, last = source.start[row], source.start[row + 1]
        start[at + 1] = start[at] + last - first
        children[start[at] : start[at + 1]] = source.children[first:last]
        weights[start[at] : start[at + 1]] = source.weights[first:last]
    return NodeWeights(rows[order], start, children, weights, trained.bias)


@njit(nogil=True, cache=True)
def train_node(
    X: Rows,
    labels: Rows,
    documents: NDArray[np.int32],
    first: int,
    begin: NodeWeights,
    C: NDArray[np.float32],
    settings: Settings,
    seed: int,
    scratch: NDArray[np.int32],
) -> NodeWeights:
    """Train the classifiers of the children from `first` on, on a node's `documents`.

    Args:
        X: the features of all documents.
        labels: for every document the nodes of the children's level that it belongs to.
        documents: those that belong to the node.
        first: the first child.
        begin: the weights of the children to begin with.
        C: how much a wrong document counts, for each child.
        settings: what the user chose.
        seed: fixes the order in which documents are visited.
        scratch: -1 for each feature; left that way.
    """
    own, features = gather_rows(X, documents, scratch)
    positives = _positives_among(labels, documents, first, first + len(C))
    W = _begin_with(begin, features, settings.bias, scratch)
    descend(own, positives, W, C, settings, seed)
    trained = _prune(W, len(C), features, settings, scratch)
    return _join(begin, trained, features) if len(begin.features) else trained
