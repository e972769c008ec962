"""How KNN's documents vote: how many, how loudly, and how much rare words count between them."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.metrics import evaluate
from longtail.models.rows import weigh_features
from longtail.search.voters import aggregate, weigh_votes

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

NUMBERS = (3, 5, 7, 10, 15, 20, 30, 50, 80, 120, 200)  # of neighbours, to choose from
TEMPERATURES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
RARITIES = (-0.5, 0.0, 0.5, 1.0)
USUAL = (50, 0.05)  # number and temperature, where there is nothing to choose by
ROUNDS = 2  # of choosing one, then the other


class Votes(NamedTuple):
    """How many neighbours vote, at which temperature, and the nDCG@5 that this was worth."""

    number: int
    temperature: float
    worth: float = 0.0


def weigh_words(X: sp.csr_matrix, idf: bool, rarity: float) -> Floats:
    """Return the weight of each feature: idf for counts, times idf once more to a power."""
    weights = weigh_features(X) if idf else np.ones(X.shape[1], np.float32)
    held = np.bincount(X.indices, minlength=X.shape[1])
    rare = np.log((1 + X.shape[0]) / (1 + held)) + 1
    return (weights * rare**rarity).astype(np.float32)


def choose_votes(
    ids: Ids,
    cosines: Floats,
    Y: sp.csr_matrix,
    wanted: sp.csr_matrix,
    number: int | None,
    temperature: float | None,
) -> Votes:
    """Return the number of neighbours and the temperature that rank the labels `wanted` best.

    Args:
        ids: (n, m) the neighbours of n documents, rows of `Y`; -1 is none.
        cosines: (n, m) how near they are.
        Y: the labels of the neighbours.
        wanted: the labels of the documents.
        number: how many vote, if that is given.
        temperature: at which temperature, if that is given.
    """
    best = Votes(number or USUAL[0], temperature or USUAL[1])
    if not wanted.nnz or not ids.shape[1]:
        return best

    def judge(n: int, t: float) -> Votes:
        top = aggregate(ids[:, :n], weigh_votes(cosines, t)[:, :n], Y, 5)
        return Votes(n, t, evaluate(top, wanted)["nDCG@5"])

    def worth(votes: Votes) -> float:
        return votes.worth

    numbers = [n for n in NUMBERS if n <= ids.shape[1]] or [ids.shape[1]]
    numbers = [number] if number else numbers
    temperatures = (temperature,) if temperature else TEMPERATURES
    for _ in range(ROUNDS):  # one after the other, as both together take five times as long
        best = max((judge(n, best.temperature) for n in numbers), key=worth)
        best = max((judge(best.number, t) for t in temperatures), key=worth)
    return best


def count_carriers(ids: Ids, Y: sp.csr_matrix, labels: Ids) -> Ids:
    """Return for each row how many of the documents `ids` carry each of its `labels` (n, k)."""
    near = sp.csr_matrix(
        (
            np.ones(int((ids >= 0).sum()), np.float32),
            ids[ids >= 0],
            np.concatenate(([0], np.cumsum((ids >= 0).sum(axis=1)))),
        ),
        shape=(len(ids), Y.shape[0]),
    )
    counts = near @ Y
    rows = np.broadcast_to(np.arange(len(ids))[:, None], labels.shape)
    known = (labels >= 0) & (labels < Y.shape[1])
    found = np.asarray(counts[rows.ravel(), np.where(known, labels, 0).ravel()]).reshape(
        labels.shape
    )
    return np.where(known, found, 0).astype(np.int32)


def leave_out(ids: Ids, cosines: Floats, own: NDArray[np.int64]) -> tuple[Ids, Floats]:
    """Drop each document from its own neighbours, or the last where it is not among them."""
    is_self = ids == own[:, None]
    is_self[~is_self.any(axis=1), -1:] = True
    shape = (len(ids), max(ids.shape[1] - 1, 0))
    return ids[~is_self].reshape(shape), cosines[~is_self].reshape(shape)
