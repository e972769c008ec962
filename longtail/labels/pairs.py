"""Which labels go together, where documents carry very many of them.

A document with n labels says that n² pairs of labels go together, and that its features are those
of n labels. With hundreds of thousands of labels that would fill any memory and say little, so that
such a document speaks for some of its labels only.
"""

import numpy as np
import scipy.sparse as sp

from longtail.progress import Progress
from longtail.runtime.mapped import Extent

MOST_LABELS = 1000  # of one document that are compared with one another
FEWEST_SAMPLED, MOST_SAMPLED = 8, 300  # labels by which the size of a product is estimated
MOST_CELLS = 1 << 21  # of the product that these may take to compute


def thin_labels(Y: sp.csr_matrix, seed: int, progress: Progress) -> sp.csr_matrix:
    """Return Y with at most 1,000 labels of each document, drawn by the seed, and say so."""
    if isinstance(Y, Extent):
        return Y
    n_carried = np.diff(Y.indptr)
    crowded = np.flatnonzero(n_carried > MOST_LABELS)
    if not len(crowded):
        return Y
    progress.say(
        f"Note: {len(crowded):,} documents carry more than {MOST_LABELS:,} labels, up to "
        f"{n_carried.max():,}; which labels go together is learned from {MOST_LABELS:,} of each"
    )
    kept = np.ones(Y.nnz, bool)
    for document in crowded.tolist():
        kept[Y.indptr[document] : Y.indptr[document + 1]] = False
        rng = np.random.default_rng([seed, document])
        kept[Y.indptr[document] + rng.permutation(n_carried[document])[:MOST_LABELS]] = True
    start = np.concatenate(([0], np.cumsum(np.minimum(n_carried, MOST_LABELS))))
    return sp.csr_matrix((Y.data[kept], Y.indices[kept], start), shape=Y.shape)


def estimate_product(Y: sp.csr_matrix, other: sp.csr_matrix) -> int:
    """Return about how many cells Yᵀ·other has, without computing it.

    A label's row has at most as many cells as its documents have together; how many of these
    coincide is seen on some labels, drawn by that number. Of extents, none coincide.
    """
    if isinstance(Y, Extent):
        n, n_labels = Y.shape
        return int(min(Y.nnz * other.nnz // n, n_labels * other.shape[1]))
    by_label = Y.T.tocsr()
    most = by_label @ np.diff(other.indptr).astype(np.float64)
    total = most.sum()
    if not total:
        return 0
    usual = most @ most / total  # of a label drawn by its number of cells
    n_drawn = int(np.clip(MOST_CELLS / usual, FEWEST_SAMPLED, MOST_SAMPLED))
    draws = (np.arange(n_drawn) + 0.5) / n_drawn * total
    chosen, times = np.unique(np.searchsorted(np.cumsum(most), draws), return_counts=True)
    some = by_label[chosen]
    documents = np.unique(some.indices)  # no more of `other` is copied
    found = np.diff((some[:, documents] @ _as_ones(other[documents])).indptr)
    return int(total * (found / most[chosen] @ times) / n_drawn)


def _as_ones(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the matrix with positive values, whose sums never cancel out."""
    ones = np.ones(matrix.nnz, np.float32)
    return sp.csr_matrix((ones, matrix.indices, matrix.indptr), shape=matrix.shape)
