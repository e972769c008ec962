"""Reader: Rank-AE's way from a document to its labels once training is over, without torch.

Each document is read by itself in a fixed order of sums, so that a batch gives the very bits of
one by one.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from longtail.evaluation.calibration import fit_platt
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.rows import Rows

Floats = NDArray[np.float32]

ROWS_PER_TASK = 512
LEAST_SLOPE, STEEPEST = 0.01, 50.0  # of the curve: by standard deviation, and by unit of score


class Options(NamedTuple):
    """Which parts of the network there are."""

    attention: bool
    residual: bool
    normalize: bool


class Reader(NamedTuple):
    """The feature embedding F and the first layer of the decoder D.

    Attributes:
        feature_weight: (n_features,) what each value is multiplied by first.
        words: (n_features, C) a vector e for each word.
        squeeze: (C, C/r) F1 of equation (5), transposed.
        excite: (C/r, C) F2, transposed.
        project: (C, h) from the pooled words to x_h.
        project_bias: (h,) of that layer.
        decode: (h, h) the first layer of the decoder, transposed.
        decode_bias: (h,) of that layer.
    """

    feature_weight: Floats
    words: Floats
    squeeze: Floats
    excite: Floats
    project: Floats
    project_bias: Floats
    decode: Floats
    decode_bias: Floats

    def check(self, n_features: int) -> None:
        """Raise ValueError unless the arrays fit together; compiled code does not check again."""
        if self.words.ndim != 2 or self.squeeze.ndim != 2 or self.project_bias.ndim != 1:
            raise ValueError("the layers are no matrices")
        C, narrow, h = self.words.shape[1], self.squeeze.shape[1], len(self.project_bias)
        excitation, last = ((C, narrow), (narrow, C)), ((C, h), (h,), (h, h), (h,))
        expected = ((n_features,), (n_features, C), *excitation, *last)
        for field, array, shape in zip(self._fields, self, expected, strict=True):
            if array.shape != shape or array.dtype != np.float32 or 0 in shape[1:]:
                raise ValueError(f"reader.{field} has shape {array.shape}, expected {shape}")


def read_rows(reader: Reader, rows: Rows, options: Options) -> Floats:
    """Return for each row what the labels' vectors are multiplied with, and a 1 for their bias."""
    n = len(rows.start) - 1
    size = min(ROWS_PER_TASK, max(1, -(-n // n_threads())))
    tasks = [(reader, rows, a, min(a + size, n), options) for a in range(0, n, size)]
    if len(tasks) == 1:  # one document is answered faster than a thread is started
        return _read_some(*tasks[0])
    return np.concatenate(run_tasks(_read_some, tasks, [1.0] * len(tasks)))


def _read_some(reader: Reader, rows: Rows, first: int, last: int, options: Options) -> Floats:
    """Excite each distinct word of these rows once, then read row by row."""
    begin, end = rows.start[first], rows.start[last]
    used, place = np.unique(rows.columns[begin:end], return_inverse=True)
    values = rows.values[begin:end]
    excited = _excite_words(reader, used if options.attention else used[:0], np.float32(1))
    negative = excited[:0]
    if options.attention and len(values) and values.min() < 0:
        negative = _excite_words(reader, used, np.float32(-1))
    return _read(reader, rows, first, last, options, place, excited, negative)


@njit(nogil=True, cache=True)
def _excite_words(reader: Reader, used: NDArray[np.int32], sign: np.float32) -> Floats:
    """Return F2·δ(F1·e) of the words `used`, or of −e, see `rank_ae_training.attend`."""
    C, narrow = reader.squeeze.shape
    excited = np.zeros((len(used), C), np.float32)
    inner = np.empty(narrow, np.float32)
    for i in range(len(used)):
        inner[:] = 0
        word = reader.words[used[i]]
        for c in range(C):
            for j in range(narrow):
                inner[j] += sign * word[c] * reader.squeeze[c, j]
        for j in range(narrow):
            if inner[j] > 0:
                for c in range(C):
                    excited[i, c] += inner[j] * reader.excite[j, c]
    return excited


@njit(nogil=True, cache=True)
def _read(
    reader: Reader,
    rows: Rows,
    first: int,
    last: int,
    options: Options,
    place: NDArray[np.int64],
    excited: Floats,
    negative: Floats,
) -> Floats:
    C, h = reader.project.shape
    found = np.empty((last - first, h + 1), np.float32)
    pooled = np.empty(C, np.float32)
    for i in range(first, last):
        scale = np.float32(1)
        if options.normalize:
            scale = _scale_of_row(reader, rows, i)
        pooled[:] = 0
        for cell in range(rows.start[i], rows.start[i + 1]):
            column = rows.columns[cell]
            at = place[cell - rows.start[first]]
            v = rows.values[cell] * reader.feature_weight[column] * scale
            _add_word(v, reader.words[column], at, excited, negative, pooled)
        latent = _to_unit_times(pooled, reader.project, reader.project_bias)
        z = reader.decode_bias.copy()
        for j in range(h):
            for to in range(h):
                z[to] += latent[j] * reader.decode[j, to]
        for to in range(h):
            own = latent[to] if options.residual else np.float32(0)
            found[i - first, to] = own + max(z[to], np.float32(0))
        found[i - first, h] = 1
    return found


@njit(nogil=True, cache=True)
def _scale_of_row(reader: Reader, rows: Rows, i: int) -> np.float32:
    squares = 0.0
    for cell in range(rows.start[i], rows.start[i + 1]):
        value = rows.values[cell] * reader.feature_weight[rows.columns[cell]]
        squares += np.float64(value) ** 2
    return np.float32(1 / np.sqrt(squares)) if squares > 0 else np.float32(1)


@njit(nogil=True, cache=True)
def _add_word(
    v: np.float32, word: Floats, at: int, excited: Floats, negative: Floats, pooled: Floats
) -> None:
    """Add V' ∘ A of one word; without attention `excited` is empty and A is 1."""
    one = np.float32(1)
    if len(excited) == 0:
        for c in range(len(word)):
            pooled[c] += v * word[c]
    elif v >= 0:
        for c in range(len(word)):
            pooled[c] += v * word[c] / (one + np.exp(-v * excited[at, c]))
    else:
        for c in range(len(word)):
            pooled[c] += v * word[c] / (one + np.exp(v * negative[at, c]))


@njit(nogil=True, cache=True)
def _to_unit_times(pooled: Floats, weight: Floats, bias: Floats) -> Floats:
    """Return the pooled words, scaled to length 1, after the layer that follows."""
    squares = 0.0
    for c in range(len(pooled)):
        squares += np.float64(pooled[c]) ** 2
    scale = np.float32(1 / np.sqrt(squares)) if squares > 0 else np.float32(0)
    latent = bias.copy()
    for c in range(len(pooled)):
        value = pooled[c] * scale
        for j in range(len(latent)):
            latent[j] += value * weight[c, j]
    return latent


# -- scores as probabilities ----------------------------------------------------------------------


def fit_score_curve(scores: NDArray[Any], relevant: NDArray[np.bool_]) -> tuple[float, float]:
    """Return a and b of σ(a·score + b), the share of labels with that score that are relevant.

    It is Platt scaling of the scores, which have no natural zero, in units of their spread. The
    curve always rises, so that it leaves the order of labels as it is.
    """
    centre, unit = float(scores.mean()), max(float(scores.std()), 1e-6)
    slope, intercept = fit_platt((scores.astype(np.float64) - centre) / unit, relevant)
    a = min(max(slope, LEAST_SLOPE) / unit, STEEPEST)
    return a, intercept - a * centre


# -- explaining ---------------------------------------------------------------------------------


def weigh_words(reader: Reader, rows: Rows, options: Options, label: Floats | None) -> Floats:
    """Return a weight for each cell of the one row that `rows` holds.

    Without a label: the length of v_j·e_j ∘ a_j, what both attentions leave of the word (the sum
    of a_j alone, which the paper draws, would be near C/2 for words it has hardly seen). With the
    vector of a label: what the word adds to its score, as far as that is a sum over words: the
    pooled vector's length and which neurons are awake are taken as they are.
    """
    words = reader.words[rows.columns]  # (n, C)
    v = (rows.values * reader.feature_weight[rows.columns])[:, None]
    if options.normalize:
        v = v / max(float(np.linalg.norm(v)), 1e-30)
    A: NDArray[Any] = np.ones_like(words)
    if options.attention:
        excited = np.maximum(v * words @ reader.squeeze, 0) @ reader.excite
        A = 1 / (1 + np.exp(-np.clip(excited, -80, 80)))  # equation (5)
    M = v * words * A
    if label is None:
        return np.asarray(np.linalg.norm(M, axis=1), np.float32)
    pooled = M.sum(axis=0)
    length = max(float(np.linalg.norm(pooled)), 1e-30)
    latent = pooled / length @ reader.project + reader.project_bias
    awake = latent @ reader.decode + reader.decode_bias > 0
    slope = reader.decode @ (awake * label)  # of the label's score, for each latent value
    if options.residual:
        slope = slope + label
    return np.asarray(M @ (reader.project @ slope) / length, np.float32)
