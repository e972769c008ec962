"""Siblings: labels that the tree puts side by side, ranked by how alike their classifiers are."""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.models.linear.beam import TreeWeights


def find_siblings(tree: TreeWeights, label: int, n: int) -> list[tuple[int, float]]:
    """Return up to n labels under the same node, with the cosine of their weights, best first."""
    places = np.flatnonzero(tree.leaves == label)
    if not len(places):
        return []
    leaf = int(tree.level[-2]) + int(places[0])
    parent = int(np.searchsorted(tree.child, leaf, side="right")) - 1
    first, end = int(tree.child[parent]), int(tree.child[parent + 1])
    weights = _take_weights(tree, parent, tree.unit[first:end])
    own = weights[:, [leaf - first]]
    norms = np.sqrt(np.asarray(weights.multiply(weights).sum(axis=0)).ravel())
    products = np.asarray((weights.T @ own).todense()).ravel()
    cosines = products / np.maximum(norms * norms[leaf - first], 1e-30)
    labels = tree.leaves[first - int(tree.level[-2]) : end - int(tree.level[-2])]
    order = np.argsort(-cosines, kind="stable")
    near = [i for i in order.tolist() if i != leaf - first and cosines[i] > 0]
    return [(int(labels[i]), float(min(cosines[i], 1.0))) for i in near[:n]]


def _take_weights(tree: TreeWeights, parent: int, unit: NDArray[np.float32]) -> sp.csc_matrix:
    """Return the weights of a node's children, in these units: (features that have any, n)."""
    rows = np.flatnonzero(tree.node == parent)
    begin, end = tree.start[rows].astype(np.int64), tree.start[rows + 1].astype(np.int64)
    sizes = end - begin
    cells = np.repeat(begin - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    offset = tree.offset[cells].astype(np.int64)
    weight = tree.code[cells] * unit[offset].astype(np.float64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return sp.csr_matrix((weight, offset, starts), shape=(len(rows), len(unit))).tocsc()
