"""What a score loses without each feature of a row: an explanation for any model that scores.

The weight of a feature is what the labels' log-odds lose if it is taken out of the row, whatever
the model is. Where features are many, the largest are taken out in turn.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

LogOdds = NDArray[np.float64]
Score = Callable[[sp.csr_matrix], NDArray[np.float32]]  # of rows (n,): the labels' scores (n, c)

MOST_CELLS = 300  # of a row that are taken out in turn
LEAST = 1e-4  # scores below are alike


def leave_out_cells(row: sp.csr_matrix) -> tuple[NDArray[np.int64], sp.csr_matrix]:
    """Return which cells of the one row are taken out, and the row without each of them."""
    order = np.argsort(-np.abs(row.data), kind="stable")[:MOST_CELLS]
    n, every = len(order), np.arange(row.nnz)
    kept = every[None, :] != order[:, None]  # (n, nnz)
    cells = np.broadcast_to(every, kept.shape)[kept]
    start = np.arange(n + 1) * max(row.nnz - 1, 0)
    shape = (n, row.shape[1])
    return order, sp.csr_matrix((row.data[cells], row.indices[cells], start), shape=shape)


def weigh_cells(row: sp.csr_matrix, score: Score) -> NDArray[np.float32]:
    """Return (nnz,) what the labels that are scored lose without each cell of the one row."""
    weights = np.zeros(row.nnz, np.float32)
    if row.nnz:
        order, variants = leave_out_cells(row)
        before = find_log_odds(score(row))[0]
        after = find_log_odds(score(variants))
        weights[order] = (before - after) @ find_shares(before)
    return weights


def find_log_odds(scores: NDArray[np.float32]) -> LogOdds:
    """Return the log-odds of scores from 0 to 1."""
    chances = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    odds: LogOdds = np.log(chances) - np.log1p(-chances)
    return odds


def find_shares(before: LogOdds) -> NDArray[np.float64]:
    """Return how much each label counts: an improbable one should not decide."""
    chances = -np.logaddexp(0, -before)  # as logarithms, which no label is too improbable for
    shares = np.exp(chances - chances.max())
    return np.asarray(shares / shares.sum())


def weigh_sides(
    row: sp.csr_matrix, embed: Score, pro: NDArray[np.float32], contra: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return (nnz,) how much nearer each cell brings the one row to some vectors than to others.

    It says why neighbours give no vote to a label: log-odds of 0 votes would lose nothing.
    """
    weights = np.zeros(row.nnz, np.float32)
    if row.nnz and len(pro):
        order, variants = leave_out_cells(row)
        towards = pro.mean(axis=0) - (contra.mean(axis=0) if len(contra) else 0)
        weights[order] = embed(row) @ towards - embed(variants) @ towards
    return weights
