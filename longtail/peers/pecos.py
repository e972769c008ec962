"""PECOS XR-Linear: PIFA label vectors, hierarchical k-means, its own defaults for all the rest."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from pecos.xmc import Indexer, LabelEmbeddingFactory  # type: ignore[import-not-found]
from pecos.xmc.xlinear.model import XLinearModel  # type: ignore[import-not-found]

from longtail.peers.measure import Method, run


class Pecos(Method):
    """Trains as its documentation shows; predicts with the C++-only model, its quickest way."""

    def train(self, data: Any) -> None:
        """Build the tree and train all of its levels."""
        X, Y = data
        vectors = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=self.threads)
        chain = Indexer.gen(vectors, threads=self.threads, **self.setting)
        self.model = XLinearModel.train(X, Y, C=chain, threads=self.threads)

    def save(self) -> None:
        """Write the model."""
        self.model.save(str(self.folder))

    def load(self) -> None:
        """Read the model for prediction only."""
        self.model = XLinearModel.load(str(self.folder), is_predict_only=True)

    def predict(self, rows: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Search with its default beam of 10."""
        threads = self.threads if rows.shape[0] > 1 else 1
        found = self.model.predict(rows, only_topk=self.k, threads=threads)
        return _top(found, self.k)


def _top(found: sp.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Order each row's labels by falling score."""
    counts = np.diff(found.indptr)
    row = np.repeat(np.arange(found.shape[0]), counts)
    order = np.lexsort((-found.data, row))
    column = np.arange(found.nnz) - np.repeat(found.indptr[:-1], counts)
    labels = np.full((found.shape[0], k), -1, dtype=np.int32)
    scores = np.zeros((found.shape[0], k), dtype=np.float32)
    labels[row, column] = found.indices[order]
    scores[row, column] = found.data[order]
    return labels, scores


if __name__ == "__main__":
    run(Pecos)
