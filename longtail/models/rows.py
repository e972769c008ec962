"""What models do to rows before they learn: weigh features, hold documents out, tell data apart."""

from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.rows import Rows, scale_to_unit


def weigh_features(X: sp.csr_matrix) -> NDArray[np.float32]:
    """Return log(n/df) + 1 of each feature if X holds counts; other values are weights already."""
    if X.nnz and (X.data != np.round(X.data)).any():
        return np.ones(X.shape[1], np.float32)
    held = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return (np.log((1 + X.shape[0]) / (1 + held)) + 1).astype(np.float32)


def weigh_rows(X: sp.csr_matrix, weights: NDArray[np.float32], normalize: bool) -> sp.csr_matrix:
    """Return X with every feature multiplied by its weight, then with rows of length 1 if asked."""
    X = sp.csr_matrix((X.data * weights[X.indices], X.indices, X.indptr), shape=X.shape)
    return scale_to_unit(X) if normalize else X


def hold_out(
    n_documents: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the documents at random: return those to train on, then the share held out."""
    order = np.random.default_rng(seed).permutation(n_documents)
    n_held = min(round(share * n_documents), n_documents - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])


def pairs_of(Y: Rows, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs (place in the batch, label) of these documents."""
    counts = Y.start[rows + 1] - Y.start[rows]
    documents = np.repeat(np.arange(len(rows)), counts)
    offsets = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    labels = Y.columns[np.repeat(Y.start[rows], counts) + offsets]
    return documents, labels.astype(np.int64)


def fingerprint(X: sp.csr_matrix, Y: sp.csr_matrix) -> str:
    """Return a few characters that change with the data."""
    total = 0
    for array in (X.indptr, X.indices, X.data, Y.indptr, Y.indices):
        total = crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"
