"""A model of another package: a label's score is the cosine with the sum of its documents."""

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail import TopK
from longtail.models import Model
from longtail.progress import Progress
from longtail.runtime.rows import scale_to_unit
from longtail.runtime.schema import Schema, floats
from longtail.runtime.settings import above, configurable, learned, setting
from longtail.runtime.store import Files


@configurable
class NearestCentroid(Model):
    """The labels whose documents point in the same direction."""

    name: ClassVar[str] = "nearest-centroid"
    summary: ClassVar[str] = "cosine with the mean document of each label"
    choose_when: ClassVar[str] = "you want an example of a plug-in"

    sharpness: float = setting(1.0, "power of the cosine that is the score", above(0))

    centroids_: NDArray[np.float32] = learned()  # (n_features, n_labels), unit columns

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Add up the rows of each label."""
        sums = scale_to_unit(sp.csr_matrix(Y.T @ scale_to_unit(X)))
        self.centroids_ = np.ascontiguousarray(sums.toarray().T)

    def predict_rows(self, X: sp.csr_matrix, k: int) -> TopK:
        """Rank labels by their cosine."""
        cosines = np.clip(scale_to_unit(X) @ self.centroids_, 0, 1) ** self.sharpness
        labels = np.argsort(-cosines, axis=1, kind="stable")[:, :k].astype(np.int32)
        scores = np.take_along_axis(cosines, labels, axis=1)
        return TopK(labels, scores.astype(np.float32))

    def add_to_files(self, files: Files) -> None:
        """Add the centroids."""
        files.arrays["centroids"] = self.centroids_

    def describe(self, files: Files) -> Schema:
        """Say what the centroids must be."""
        return Schema(arrays={"centroids": floats("n_features", "n_labels", most=1)})

    def restore(self, files: Files) -> None:
        """Take the centroids back."""
        self.centroids_ = files.arrays["centroids"]
