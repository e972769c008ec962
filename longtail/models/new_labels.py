"""Labels that an update brings to a model of vectors: placed by the documents that carry them."""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.metrics import TrainingCounts
from longtail.runtime.quantized import QuantizedRows
from longtail.search.index import Index

Floats = NDArray[np.float32]

SHRINKAGE = 1.0  # of a covariance, in its mean variances; of 3, 1, 0.3 and 0.1 good for all models


def find_new_labels(before: TrainingCounts, Y: sp.csr_matrix) -> NDArray[np.int64]:
    """Return the labels that documents carry now, and none did before; rising."""
    carried = np.bincount(Y.indices, minlength=Y.shape[1]) > 0
    return np.flatnonzero(carried & (before.padded(Y.shape[1]) == 0))


def find_directions(
    documents: Floats, Y: sp.csr_matrix, labels: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return unit vectors (m, dim) that tell the documents of each label from others.

    That is Fisher's linear discriminant: directions in which all documents differ count less.

    Args:
        documents: (n, dim) the vectors of the new documents.
        Y: (n, n_labels) what they carry.
        labels: (m,) each is carried by some of them.
    """
    exact = documents.astype(np.float64)
    own = sp.csr_matrix(Y[:, labels].T, dtype=np.float64)
    n_own = np.diff(own.indptr)[:, None]
    sums = np.asarray(own @ exact)
    n_others = len(exact) - n_own
    others = (exact.sum(axis=0) - sums) / np.maximum(n_others, 1)
    means = sums / n_own
    found = means - others
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    found = np.where(lengths > 1e-6, _whiten(exact, found), means)  # means where all are alike
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    directions: Floats = (found / np.maximum(lengths, 1e-12)).astype(np.float32)
    return directions


def _whiten(documents: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return directions (m, dim) divided by the covariance of the documents, shrunk by half."""
    centred = documents - documents.mean(axis=0)
    covariance = centred.T @ centred / len(centred)
    usual = max(float(np.trace(covariance)) / len(covariance), 1e-12)
    shrunk = covariance / usual + SHRINKAGE * np.eye(len(covariance))
    return np.asarray(np.linalg.solve(shrunk, found.T).T)


def mean_products(documents: Floats, Y: sp.csr_matrix, vectors: Floats) -> Floats:
    """Return the mean product (m,) of each vector with the documents of its label, of m labels."""
    own = sp.csr_matrix(Y.T)
    means = np.asarray(own @ documents) / np.maximum(np.diff(own.indptr), 1)[:, None]
    products: Floats = np.einsum("ij,ij->i", means, vectors).astype(np.float32)
    return products


def mean_of_known(
    documents: Floats,
    Y: sp.csr_matrix,
    before: TrainingCounts,
    vectors: Floats,
) -> float | None:
    """Return the mean product of documents and labels that were known; None if there is none."""
    rows, labels = Y.nonzero()
    known = before.padded(Y.shape[1])[labels] > 0
    if not known.any():
        return None
    products = np.einsum("ij,ij->i", documents[rows[known]], vectors[labels[known]])
    return float(products.mean())


def put_labels(
    index: Index, labels: NDArray[np.int64], vectors: Floats, n_labels: int, usual: Floats
) -> Index:
    """Return an index of `n_labels` with the vectors of these, some of which it may hold already.

    `usual` (dim,) is the vector of new labels that no document carries.
    """
    more = np.arange(len(index), n_labels)
    if np.array_equal(labels, more):
        return index.extend(vectors) if len(more) else index
    everything = np.empty((n_labels, index.dim), np.float32)
    everything[: len(index)], everything[len(index) :] = index.vectors, usual
    everything[labels] = vectors
    return Index(QuantizedRows.of(everything), index.dim, index.metric)
