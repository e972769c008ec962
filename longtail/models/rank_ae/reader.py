"""Reader: Rank-AE's forward pass from a document to its decoded vector, without torch.

Prediction and explanation both call `read_row`. Each document is read by itself and added up in a
fixed order, so that it gets the same bits in a batch as alone. Symbols are those of `network.py`.
"""

from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.curve import fit_platt
from longtail.models.embedder import describe_places, drop_rare
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.quantized import QuantizedRows
from longtail.runtime.rows import LEAST_SQUARES, Rows
from longtail.runtime.schema import Schema, floats
from longtail.runtime.store import Files

Floats = NDArray[np.float32]

ROWS_PER_TASK = 512
LEAST_LENGTH = 1e-12  # of a word vector
LEAST_SPREAD = 1e-12  # of a column of dense rows, by which its values are divided
LARGEST_EXPONENT = 80.0  # beyond, a sigmoid is 0 or 1 in float32
LEAST_SLOPE, STEEPEST = 0.01, 50.0  # of the curve: by standard deviation, and by unit of score


class Options(NamedTuple):
    """Which of its layers the network has."""

    attention: bool
    residual: bool
    normalize: bool  # rows
    unit_pool: bool  # x' has length 1; else it is the mean


class Reader(NamedTuple):
    """The feature embedding F and the first layer of the decoder D.

    Attributes:
        feature_weight: (n_features,) what each value is multiplied by first.
        row: (n_features,) where the vector of each word is; -1 for one that has none.
        words: (n_rows, C) a vector e for each word.
        squeeze: (C, C/r) F1 of equation (5), transposed.
        excite: (C/r, C) F2, transposed.
        project: (C, h) from the pooled words to x_h.
        project_bias: (h,) of that layer.
        decode: (h, h) the first layer of the decoder, transposed.
        decode_bias: (h,) of that layer.
    """

    feature_weight: Floats
    row: NDArray[np.int32]
    words: QuantizedRows
    squeeze: Floats
    excite: Floats
    project: Floats
    project_bias: Floats
    decode: Floats
    decode_bias: Floats

    def add_to_files(self, files: Files) -> None:
        """Add the arrays to a model's files, as `reader.…`."""
        for field, part in self._asdict().items():
            if isinstance(part, QuantizedRows):
                part.add_to_files(files, f"reader.{field}")
            else:
                files.arrays[f"reader.{field}"] = part

    @classmethod
    def from_files(cls, files: Files) -> Self:
        """Take back what `add_to_files` wrote."""
        weights, row = files.arrays["reader.feature_weight"], files.arrays["reader.row"]
        words = QuantizedRows.from_files(files, "reader.words")
        layers = (files.arrays[f"reader.{name}"] for name in cls._fields[3:])
        return cls(weights, row, words, *layers)

    def without_rare(self, X: sp.csr_matrix) -> Self:
        """Return the reader without words that only one row of X has, if they are many."""
        row, words = drop_rare(self.words, X)
        return self._replace(row=row, words=words)

    def vectors_of(self, columns: NDArray[Any]) -> Floats:
        """Return the vectors e (n, C) of words."""
        row = self.row[columns]
        vectors = self.words.take(np.maximum(row, 0), len(self.squeeze))
        vectors[row < 0] = 0
        return vectors


def describe_reader(word_dim: str) -> Schema:
    """Return the schema of a reader's arrays; C, C/r and h are sizes, that of words is given."""
    arrays = {
        "feature_weight": floats("n_features", least=0, most=1 / LEAST_SPREAD),
        "row": describe_places("reader.n_rows"),
        "squeeze": floats("C", "C/r"),
        "excite": floats("C/r", "C"),
        "project": floats("C", "h"),
        "project_bias": floats("h"),
        "decode": floats("h", "h"),
        "decode_bias": floats("h"),
    }
    words = QuantizedRows.describe("reader.words", "reader.n_rows", word_dim)
    return Schema(arrays={f"reader.{field}": array for field, array in arrays.items()}) | words


class Excitation(NamedTuple):
    """The distinct words of some rows, and the excitation network's outputs for these.

    Attributes:
        place: (nnz,) where in the tables below the word of each cell is.
        words: (U, C) their vectors e.
        positive: (U, C) F2·δ(F1·e); empty without attention.
        negative: (U, C) F2·δ(F1·(−e)), for values below 0; empty if there is none.
    """

    place: NDArray[np.int64]
    words: Floats
    positive: Floats
    negative: Floats


class ReadRow(NamedTuple):
    """What the network computes for one document.

    Attributes:
        words: (n, C) V' ∘ A, what both attentions leave of each word.
        scale: what the sum of these is multiplied by to give x'.
        latent: (h,) x_h.
        inner: (h,) the first layer of D, before its ReLU.
    """

    words: Floats
    scale: np.float32
    latent: Floats
    inner: Floats


def read_rows(reader: Reader, rows: Rows, options: Options) -> Floats:
    """Return D's first layer (n, h + 1) for each row, with a 1 that meets the labels' bias."""
    n = len(rows.start) - 1
    size = min(ROWS_PER_TASK, max(1, -(-n // n_threads())))
    tasks = [(reader, rows, a, min(a + size, n), options) for a in range(0, n, size)]
    if len(tasks) == 1:  # one document is answered faster than a thread is started
        return _read_some(*tasks[0])
    return np.concatenate(run_tasks(_read_some, tasks, [1.0] * len(tasks)))


def _read_some(reader: Reader, rows: Rows, first: int, last: int, options: Options) -> Floats:
    excited = excite_words(reader, rows, first, last, options)
    return _decode_rows(reader, rows, first, last, options, excited)


@njit(nogil=True, cache=True)
def _decode_rows(
    reader: Reader, rows: Rows, first: int, last: int, options: Options, excited: Excitation
) -> Floats:
    """Return the first layer of D behind its ReLU, and a 1, for each row."""
    found = np.empty((last - first, len(reader.decode_bias) + 1), np.float32)
    for i in range(first, last):
        row = read_row(reader, rows, i, rows.start[first], options, excited)
        decode_row(row, options.residual, found[i - first])
    return found


# -- the forward pass -----------------------------------------------------------------------------


def excite_words(reader: Reader, rows: Rows, first: int, last: int, options: Options) -> Excitation:
    """Run the excitation network once for each distinct word of these rows."""
    begin, end = rows.start[first], rows.start[last]
    used, place = np.unique(rows.columns[begin:end], return_inverse=True)
    values = rows.values[begin:end]
    words = reader.vectors_of(used)
    positive = excite(reader, words if options.attention else words[:0], np.float32(1))
    negative = positive[:0]
    if options.attention and len(values) and values.min() < 0:
        negative = excite(reader, words, np.float32(-1))
    return Excitation(place, words, positive, negative)


@njit(nogil=True, cache=True)
def excite(reader: Reader, words: Floats, sign: np.float32) -> Floats:
    """Return F2·δ(F1·e) of the words' vectors (n, C), or of −e; see `network.attend`."""
    C, narrow = reader.squeeze.shape
    excited = np.zeros((len(words), C), np.float32)
    inner = np.empty(narrow, np.float32)
    for i in range(len(words)):
        inner[:] = 0
        word = words[i]
        for c in range(C):
            for j in range(narrow):
                inner[j] += sign * word[c] * reader.squeeze[c, j]
        for j in range(narrow):
            if inner[j] > 0:
                for c in range(C):
                    excited[i, c] += inner[j] * reader.excite[j, c]
    return excited


@njit(nogil=True, cache=True)
def read_row(
    reader: Reader, rows: Rows, i: int, begin: int, options: Options, excited: Excitation
) -> ReadRow:
    """Compute F and the first layer of D for row i; `begin` is the first cell of `excited`."""
    first, last = rows.start[i], rows.start[i + 1]
    v = weigh_cells(reader, rows, i, options)
    words = np.empty((last - first, excited.words.shape[1]), np.float32)
    for cell in range(first, last):
        at = excited.place[cell - begin]
        _weigh_word(v[cell - first], excited.words[at], at, excited, words[cell - first])
    return pool_words(reader, words, options.unit_pool)


@njit(nogil=True, cache=True)
def pool_words(reader: Reader, words: Floats, unit: bool) -> ReadRow:
    """Compute what follows the attention, from V' ∘ A (n, C) of a document's words."""
    pooled = np.zeros(words.shape[1], np.float32)
    for i in range(len(words)):
        for c in range(len(pooled)):
            pooled[c] += words[i, c]
    scale = np.float32(1 / max(len(words), 1))
    if unit:
        squares = 0.0
        for c in range(len(pooled)):
            squares += np.float64(pooled[c]) ** 2
        scale = np.float32(1 / np.sqrt(squares)) if squares > LEAST_SQUARES else np.float32(0)
    latent = _add_product(pooled, scale, reader.project, reader.project_bias)
    inner = _add_product(latent, np.float32(1), reader.decode, reader.decode_bias)
    return ReadRow(words, scale, latent, inner)


@njit(nogil=True, cache=True)
def decode_row(row: ReadRow, residual: bool, found: Floats) -> None:
    """Leave the first layer of D behind its ReLU, and a 1, in `found` (h + 1,)."""
    h = len(row.inner)
    for j in range(h):
        own = row.latent[j] if residual else np.float32(0)
        found[j] = own + max(row.inner[j], np.float32(0))
    found[h] = 1


@njit(nogil=True, cache=True)
def weigh_cells(reader: Reader, rows: Rows, i: int, options: Options) -> Floats:
    """Return v, the weight of each word of row i."""
    first, last = rows.start[i], rows.start[i + 1]
    scale = np.float32(1)
    if options.normalize:
        scale = _scale_of_row(reader, rows, i)
    v = np.empty(last - first, np.float32)
    for cell in range(first, last):
        v[cell - first] = rows.values[cell] * reader.feature_weight[rows.columns[cell]] * scale
    return v


@njit(nogil=True, cache=True)
def _scale_of_row(reader: Reader, rows: Rows, i: int) -> np.float32:
    squares = 0.0
    for cell in range(rows.start[i], rows.start[i + 1]):
        value = rows.values[cell] * reader.feature_weight[rows.columns[cell]]
        squares += np.float64(value) ** 2
    return np.float32(1 / np.sqrt(squares)) if squares > LEAST_SQUARES else np.float32(1)


@njit(nogil=True, cache=True)
def _weigh_word(v: np.float32, e: Floats, at: int, excited: Excitation, word: Floats) -> None:
    """Leave V' ∘ A of equation (5) in `word`; A is 1 without attention."""
    one = np.float32(1)
    if len(excited.positive) == 0:
        for c in range(len(e)):
            word[c] = v * e[c]
        return
    # NaN, of values too large for float32, is neither above nor below 0.
    is_positive = v >= 0 or len(excited.negative) == 0
    table = excited.positive if is_positive else excited.negative
    for c in range(len(e)):
        word[c] = v * e[c] / (one + np.exp(-abs(v) * table[at, c]))


@njit(nogil=True, cache=True)
def _add_product(x: Floats, scale: np.float32, weight: Floats, bias: Floats) -> Floats:
    """Return (scale·x)·weight + bias, added up in a fixed order."""
    y = bias.copy()
    for i in range(len(x)):
        value = x[i] * scale
        for j in range(len(y)):
            y[j] += value * weight[i, j]
    return y


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


def attend_row(reader: Reader, rows: Rows, i: int, options: Options) -> Floats:
    """Return A of equation (5), (n, C), for the words of row i; all 1 without attention."""
    v = weigh_cells(reader, rows, i, options)[:, None]
    excited = excite_words(reader, rows, i, i + 1, options)
    if not options.attention:
        return np.ones((len(v), len(reader.squeeze)), np.float32)
    table = excited.positive[excited.place]
    if len(excited.negative):
        table = np.where(v < 0, excited.negative[excited.place], table)
    excitement = np.clip(np.abs(v) * table, -LARGEST_EXPONENT, LARGEST_EXPONENT)
    return np.asarray(1 / (1 + np.exp(-excitement)), np.float32)


def factor_words(reader: Reader, rows: Rows, options: Options) -> tuple[Floats, Floats, Floats]:
    """Return three factors for each cell of the one row that `rows` holds.

    The length of v_j·e_j ∘ a_j is the product of v_j, the word's own weight, of the length of e_j,
    and of the share of it that the channel attention lets through.
    """
    v = weigh_cells(reader, rows, 0, options)
    e = reader.vectors_of(rows.columns)
    left = np.linalg.norm(e * attend_row(reader, rows, 0, options), axis=1)
    length = np.linalg.norm(e, axis=1)
    shares = left / np.maximum(length, LEAST_LENGTH)
    return np.abs(v), np.asarray(length, np.float32), np.asarray(shares, np.float32)


def weigh_words(reader: Reader, rows: Rows, options: Options, label: Floats | None) -> Floats:
    """Return a weight for each cell of the one row that `rows` holds.

    Without a label: the length of v_j·e_j ∘ a_j, what is left of the word (see `factor_words`).
    With the vector of a label: what the word adds to its score. As the score is no sum over words,
    the scale of the pooled vector and the set of active neurons are taken as they are.
    """
    row = read_row(reader, rows, 0, 0, options, excite_words(reader, rows, 0, 1, options))
    if label is None:
        return np.asarray(np.linalg.norm(row.words, axis=1), np.float32)
    return add_up(reader, row, options.residual, label)


def add_up(reader: Reader, row: ReadRow, residual: bool, label: Floats) -> Floats:
    """Return what each word of a document adds to the score of a label with this vector."""
    slope = reader.decode @ ((row.inner > 0) * label)  # of the label's score, for each of latent
    if residual:
        slope = slope + label
    weights = row.words @ (reader.project @ slope) * row.scale
    return np.asarray(weights, np.float32)
