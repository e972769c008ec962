import numpy as np
import pytest
import scipy.sparse as sp

from longtail.labels import tree
from longtail.labels.kmeans import Scratch, cluster_rows
from longtail.labels.tree import build_label_vectors, build_tree
from longtail.runtime.parallel import set_threads
from longtail.runtime.rows import scale_to_unit, view_rows


@pytest.fixture
def vectors():
    return scale_to_unit(sp.random(700, 300, 0.05, format="csr", dtype=np.float32, random_state=1))


@pytest.fixture
def all_large(monkeypatch):
    """Let all threads work on the clusters of the upper levels, however small they are."""
    monkeypatch.setattr(tree, "LARGE", 0)


@pytest.fixture(autouse=True)
def as_before():
    yield
    set_threads(None)


def split(vectors, chosen, k, balanced, by_all=True):
    first = np.random.default_rng(0).choice(len(chosen), k, replace=False)
    rows = view_rows(vectors)
    scratch = Scratch(vectors.shape[1])
    found = cluster_rows(rows, scratch, chosen, first, balanced, by_all=by_all)
    assert (scratch.columns == -1).all()
    return found


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("k", [2, 5, 16])
def test_all_threads_split_a_cluster_as_one_does(vectors, k, balanced):
    chosen = np.arange(10, 690, 2, dtype=np.int32)
    alone = split(vectors, chosen, k, balanced, by_all=False)
    np.testing.assert_array_equal(split(vectors, chosen, k, balanced), alone)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("branching", [2, 16])
def test_a_tree_is_the_same_on_any_number_of_threads(vectors, branching):
    trees = []
    for n in (1, 2, 5):
        set_threads(n)
        trees.append(build_tree(vectors, branching=branching, max_leaf=4, seed=3))
    for other in trees[1:]:
        np.testing.assert_array_equal(other.leaves, trees[0].leaves)


def test_equal_rows_are_still_divided():
    alike = sp.csr_matrix(np.ones((100, 3), np.float32) / np.sqrt(3).astype(np.float32))
    sizes = np.bincount(split(alike, np.arange(100, dtype=np.int32), 4, balanced=False))
    assert sizes.tolist() == [25, 25, 25, 25]


def test_label_vectors_are_the_same_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr("longtail.labels.tree.PIECE", 50)
    X = sp.random(200, 80, 0.1, format="csr", dtype=np.float32, random_state=1)
    Y = sp.csr_matrix(sp.random(200, 90, 0.05, random_state=2) > 0, dtype=np.float32)
    found = []
    for n in (1, 3):
        set_threads(n)
        found.append(build_label_vectors(X, Y))
    plain = scale_to_unit(sp.csr_matrix(Y.T.tocsr() @ X).sorted_indices())
    for vectors in found:
        np.testing.assert_array_equal(vectors.toarray(), plain.toarray())


@pytest.mark.parametrize("balanced", [True, False])
def test_clusters_that_are_split_together_are_split_as_each_alone(vectors, balanced, monkeypatch):
    trees = []
    for together in (1, 1 << 16):
        monkeypatch.setattr(tree, "TOGETHER", together)
        trees.append(build_tree(vectors, branching=2, max_leaf=4, balanced=balanced, seed=3))
    np.testing.assert_array_equal(trees[1].leaves, trees[0].leaves)
    for one, other in zip(trees[0].children, trees[1].children, strict=True):
        np.testing.assert_array_equal(one, other)
