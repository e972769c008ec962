"""Labels that updates bring, placed by the documents that carry them."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.models.new_labels import SHRINKAGE, find_directions


def test_directions_are_fishers_discriminant():
    """Against a literal version; where documents differ anyway counts less than means say."""
    rng = np.random.default_rng(0)
    carried = rng.random((200, 2)) < 0.3
    documents = rng.normal(size=(200, 3)) * [5, 1, 1]
    documents[carried[:, 0]] += [1, 1, 0]
    Y = sp.csr_matrix(carried.astype(np.float32))
    found = find_directions(documents.astype(np.float32), Y, np.arange(2))
    covariance = np.cov(documents.T, bias=True)
    shrunk = covariance + SHRINKAGE * np.trace(covariance) / 3 * np.eye(3)
    for label, direction in enumerate(found):
        own = carried[:, label]
        wanted = np.linalg.inv(shrunk) @ (
            documents[own].mean(axis=0) - documents[~own].mean(axis=0)
        )
        assert direction == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-5)


@pytest.mark.parametrize("n", [1, 3])
def test_documents_that_are_alike_give_their_mean(n):
    documents = np.tile(np.array([[3.0, 4.0]], np.float32), (n, 1))
    Y = sp.csr_matrix(np.eye(n, 1, dtype=np.float32))
    assert find_directions(documents, Y, np.arange(1))[0] == pytest.approx([0.6, 0.8])
