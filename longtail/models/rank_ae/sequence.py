"""Rank-AE over the words of a text in their order: the forward pass, without torch.

Where the paper draws its attention (figure 5), a bidirectional LSTM takes the place of the word
vectors times tf-idf: V' (T, C) are its states, C/2 of either direction, and equation (5) follows as
ever. A text is read by itself and added up in a fixed order, as rows are in `reader.py`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.models.rank_ae.reader import (
    Options,
    Reader,
    add_up,
    decode_row,
    excite,
    pool_words,
)
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.quantized import QuantizedRows, add_row
from longtail.runtime.schema import Schema, floats
from longtail.runtime.store import Files
from longtail.text.tfidf import Tfidf
from longtail.text.tokens import TokenRows

Floats = NDArray[np.float32]

TEXTS_PER_TASK = 64


class LSTM(NamedTuple):
    """One direction; its gates are those of input, forgetting, cell and output, in this order.

    Attributes:
        from_words: (word_dim, 2·C) from a word's vector to the four gates.
        from_state: (C/2, 2·C) from the last state.
        bias: (2·C,) of the gates.
    """

    from_words: Floats
    from_state: Floats
    bias: Floats


class BiLSTM(NamedTuple):
    """Both directions."""

    onwards: LSTM
    backwards: LSTM

    def add_to_files(self, files: Files) -> None:
        """Add the arrays of both directions."""
        for direction, lstm in self._asdict().items():
            for field, array in lstm._asdict().items():
                files.arrays[f"bilstm.{direction}.{field}"] = array

    @classmethod
    def from_files(cls, files: Files, reader: Reader) -> "BiLSTM":
        """Take back what was saved; raise ValueError unless its sizes fit those of the reader."""
        loaded = cls(
            *(
                LSTM(*(files.arrays[f"bilstm.{direction}.{field}"] for field in LSTM._fields))
                for direction in cls._fields
            )
        )
        half, n_gates = loaded.onwards.from_state.shape
        if n_gates != 4 * half or 2 * half != len(reader.project):
            raise ValueError(
                f"an LSTM with {n_gates} gates and {half} states does not fit "
                f"{len(reader.project)} channels; a state has 4 gates, and each direction half "
                "of the channels"
            )
        return loaded


def describe_bilstm() -> Schema:
    """Return the schema of the arrays; word_dim, gates and C/2 are sizes."""
    arrays = {
        "from_words": floats("word_dim", "gates"),
        "from_state": floats("C/2", "gates"),
        "bias": floats("gates"),
    }
    return Schema(
        arrays={
            f"bilstm.{direction}.{field}": arrays[field]
            for direction in BiLSTM._fields
            for field in LSTM._fields
        }
    )


def cut_texts(features: Tfidf, texts: list[str], max_length: int) -> TokenRows:
    """Return the first known words of each text."""
    start, ids = features.read_words(texts)
    lengths = np.diff(start)
    place = np.arange(len(ids)) - np.repeat(start[:-1], lengths)
    kept = np.minimum(lengths, max_length)
    new_start = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
    return TokenRows(new_start, ids[place < max_length].astype(np.int32))


def read_texts(reader: Reader, bilstm: BiLSTM, texts: TokenRows, options: Options) -> Floats:
    """Return D's first layer (n, h + 1) for each text, with a 1 that meets the labels' bias."""
    n = texts.n_documents
    size = min(TEXTS_PER_TASK, max(1, -(-n // n_threads())))
    tasks = [(reader, bilstm, texts, a, min(a + size, n), options) for a in range(0, n, size)]
    if len(tasks) == 1:
        return _read_some(*tasks[0])
    return np.concatenate(run_tasks(_read_some, tasks, [1.0] * len(tasks)))


@njit(nogil=True, cache=True)
def _read_some(
    reader: Reader, bilstm: BiLSTM, texts: TokenRows, first: int, last: int, options: Options
) -> Floats:
    found = np.empty((last - first, len(reader.decode_bias) + 1), np.float32)
    for i in range(first, last):
        words = texts.tokens[texts.start[i] : texts.start[i + 1]]
        states = run_bilstm(reader, bilstm, words)
        A = attend_states(reader, states, options)
        row = pool_words(reader, states * A, options.unit_pool)
        decode_row(row, options.residual, found[i - first])
    return found


@njit(nogil=True, cache=True)
def run_bilstm(reader: Reader, bilstm: BiLSTM, words: NDArray[np.int32]) -> Floats:
    """Return V' (T, C): the states of both directions at each word."""
    states = np.empty((len(words), len(reader.project)), np.float32)
    half = states.shape[1] // 2
    rows = reader.row[words]
    _run(reader.words, bilstm.onwards, rows, states[:, :half])
    _run(reader.words, bilstm.backwards, rows[::-1], states[::-1, half:])
    return states


@njit(nogil=True, cache=True)
def attend_states(reader: Reader, states: Floats, options: Options) -> Floats:
    """Return A of equation (5), (T, C); all 1 without attention."""
    if not options.attention:
        return np.ones_like(states)
    excited = excite(reader, states, np.float32(1))
    return np.float32(1) / (np.float32(1) + np.exp(-excited))


@njit(nogil=True, cache=True)
def _run(vectors: QuantizedRows, lstm: LSTM, rows: NDArray[np.int32], states: Floats) -> None:
    """Leave the state after each word, whose vector is in its row, in `states` (T, C/2)."""
    half = states.shape[1]
    one = np.float32(1)
    cell = np.zeros(half, np.float32)
    for t in range(len(rows)):
        gates = lstm.bias.copy()
        word = np.zeros(len(lstm.from_words), np.float32)
        if rows[t] >= 0:
            add_row(vectors, rows[t], one, word)
        for c in range(len(word)):
            for g in range(4 * half):
                gates[g] += word[c] * lstm.from_words[c, g]
        if t > 0:
            for c in range(half):
                for g in range(4 * half):
                    gates[g] += states[t - 1, c] * lstm.from_state[c, g]
        for j in range(half):
            let_in = one / (one + np.exp(-gates[j]))
            forget = one / (one + np.exp(-gates[half + j]))
            show = one / (one + np.exp(-gates[3 * half + j]))
            cell[j] = forget * cell[j] + let_in * np.tanh(gates[2 * half + j])
            states[t, j] = show * np.tanh(cell[j])


def explain_words(
    reader: Reader,
    bilstm: BiLSTM,
    words: NDArray[np.int32],
    options: Options,
    label: Floats | None,
) -> tuple[Floats, Floats]:
    """Return the mean attention of each word of a text, and its weight.

    The weight is that mean, which figure 5 of the paper draws; with the vector of a label, it is
    what the state at the word adds to the label's score.
    """
    states = run_bilstm(reader, bilstm, words)
    A = attend_states(reader, states, options)
    attention = np.asarray(A.mean(axis=1), np.float32)
    if label is None:
        return attention, attention
    row = pool_words(reader, states * A, options.unit_pool)
    return attention, add_up(reader, row, options.residual, label)
