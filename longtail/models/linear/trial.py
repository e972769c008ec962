"""Which C suits the data: a trial on frequent labels, told from one another on some documents.

Where these are better told apart with a larger C, words say more of the labels than chance does,
and all levels of a tree want it; where they are not, a larger C learns what is chance.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.models.linear.choices import Costs, choose_demand
from longtail.models.linear.solver import NodeWeights, Settings, train_node
from longtail.models.linear.training import BLOCK, Scratch, constant, count_documents
from longtail.progress import Progress
from longtail.runtime.mapped import take_rows
from longtail.runtime.parallel import run_tasks
from longtail.runtime.rows import view_rows

LEAST, MOST = 2_000, 8_000  # documents; fewer say nothing, more say the same
HELD_OUT = 4  # one in so many of them is held out


def try_costs(
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    costs: Sequence[Costs],
    settings: Settings,
    seed: int,
    progress: Progress,
) -> int:
    """Return which of two ways to choose C gives frequent labels a higher P@1, by their numbers.

    It is the first, unless the second gains more than the standard error of what it gains.
    """
    n_documents = count_documents(Y)
    labels = np.sort(np.argsort(-n_documents, kind="stable")[:BLOCK])
    own = sp.csr_matrix(Y[:, labels])
    carrying = np.flatnonzero(np.diff(own.indptr))
    if len(carrying) < LEAST:
        return 0
    drawn = np.random.default_rng(seed).permutation(carrying)[:MOST]
    held, kept = (np.sort(part) for part in np.split(drawn, [len(drawn) // HELD_OUT]))
    rows, positives = view_rows(take_rows(X, kept)), view_rows(own[kept])
    everywhere, scratch = np.arange(len(kept), dtype=np.int32), Scratch(X.shape[1])
    nothing = constant(len(labels), 0)
    X_held, Y_held = take_rows(X, held), own[held]

    def measure(way: Costs) -> NDArray[np.float32]:
        C, columns = way.of_labels(n_documents[labels]), scratch.columns
        trained = train_node(rows, positives, everywhere, 0, nothing, C, settings, seed, columns)
        margins = _score(X_held, trained) - choose_demand(n_documents[labels])
        best = margins.argmax(axis=1)
        return np.asarray(Y_held[np.arange(len(held)), best]).ravel()

    progress.stage("choosing C", len(costs))
    usual, other = run_tasks(measure, [(way,) for way in costs], [1.0] * len(costs), progress)
    gains = other - usual  # of each document
    return int(gains.mean() > gains.std() / np.sqrt(len(gains)))


def _score(X: sp.csr_matrix, weights: NodeWeights) -> NDArray[np.float32]:
    """Return the margins (n, n_classifiers) of all documents."""
    parts = weights.weights, weights.children.astype(np.int32), weights.start
    W = sp.csr_matrix(parts, shape=(len(weights.features), len(weights.bias)))
    return (X[:, weights.features] @ W).toarray() + weights.bias
