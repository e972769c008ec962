"""V, the vectors of DXML's labels: made of the graph, and placed beside others in an update.

Lines 1 and 2 of the paper's algorithm 1.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.labels.graph import (
    build_graph,
    draw_directions,
    draw_orthogonal,
    embed_labels,
    mean_length,
)
from longtail.labels.hierarchy import link_labels
from longtail.labels.pairs import thin_labels
from longtail.progress import SILENT, Progress
from longtail.search.kernels import to_unit

if TYPE_CHECKING:
    from longtail.models.dxml.model import DXML

Floats = NDArray[np.float32]

FEWEST_STEPS = 1_000_000  # of all walks together, unless a label would get more than it needs
FEWEST_WALKS, MOST_WALKS = 4, 1000  # from each label
GRAPH_SHARE = 0.25  # of a label's vector, if a document carried one label
MANY_CARRIED = 10  # labels of a document, above which the graph gets no share


def make_label_vectors(
    model: "DXML", Y: sp.csr_matrix, names: Sequence[str], progress: Progress
) -> Floats:
    """Return V, from co-occurrence, from the hierarchy, or at random, as the parameters say."""
    if model.label_vectors != "graph":
        draw = draw_orthogonal if model.label_vectors == "orthogonal" else draw_directions
        return draw(Y.shape[1], model.dim, model.seed)
    if model.hierarchy is None:
        graph = build_graph(thin_labels(Y, model.seed, progress), weighted=model.weighted)
    else:
        graph = link_labels(model.hierarchy, names, progress)
    n_connected = max(1, int((graph.degrees > 0).sum()))
    vectors = embed_labels(
        graph,
        model.dim,
        n_walks=model.walks or count_walks(n_connected, model.walk_length),
        length=model.walk_length,
        window=model.window,
        hierarchical=model.hierarchical,
        subsample=model.subsample,
        whiten=choose_whitening(Y) if model.whiten is None else model.whiten,
        unit=model.unit_labels,
        seed=model.seed,
        progress=progress,
    )
    return vectors[: Y.shape[1]]  # a hierarchy may have more nodes than labels


def count_walks(n_labels: int, length: int) -> int:
    """Return how many walks of this length begin at each of so many labels."""
    enough = -(-FEWEST_STEPS // (length * n_labels))
    return int(np.clip(enough, FEWEST_WALKS, MOST_WALKS))


def choose_whitening(Y: sp.csr_matrix) -> float:
    """Return how far to shrink the cosines of labels.

    In the mean of n vectors what they have in common keeps its length, and of what is each
    label's own 1/n is left, by squared length. So the graph gets 1/n of the share that it has
    where documents carry one label; and nothing where they carry very many.
    """
    n_carried = max(1.0, Y.nnz / Y.shape[0])
    return 1 - GRAPH_SHARE / n_carried if n_carried <= MANY_CARRIED else 1.0


def place_new_labels(V: Floats, Y: sp.csr_matrix, n_old: int, *, unit: bool, seed: int) -> Floats:
    """Return V with new labels: a direction of their own, moved towards those beside them.

    A label is new if none of the first `n_old` documents carries it, though V may have a row
    for it: its name was known in training.
    """
    n_known, n_labels = len(V), Y.shape[1]
    Y = thin_labels(Y, seed, SILENT)
    seen = np.bincount(Y[:n_old].indices, minlength=n_labels) > 0
    carried = np.bincount(Y.indices, minlength=n_labels) > 0
    new = np.flatnonzero((carried & ~seen) | (np.arange(n_labels) >= n_known))
    old = np.flatnonzero(seen)
    beside = Y[:, new].T @ Y[:, old]  # (n_new, n_old) how often they are together
    totals = np.maximum(np.asarray(beside.sum(axis=1)), 1)
    usual = 1.0 if unit else mean_length(V[old])
    own = usual * draw_directions(len(new), V.shape[1], seed + n_known)
    placed = to_unit(np.asarray(own + beside @ V[old] / totals, np.float32))
    vectors = np.concatenate([V, np.empty((n_labels - n_known, V.shape[1]), np.float32)])
    vectors[new] = usual * placed
    return vectors
