import numpy as np
import pytest
import scipy.sparse as sp

from longtail.labels import tree
from longtail.labels.kmeans import (
    Clusters,
    Scratch,
    cluster_by_all,
    cluster_rows,
    split_by_all,
    split_many,
)
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


def split(vectors, chosen, k, balanced):
    first = np.random.default_rng(0).choice(len(chosen), k, replace=False)
    scratch = np.full(vectors.shape[1], -1, np.int32)
    found = cluster_rows(view_rows(vectors), scratch, chosen, first, balanced)
    assert (scratch == -1).all()
    by_all = cluster_by_all(view_rows(vectors), vectors.shape[1], chosen, first, balanced)
    return found, by_all


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("k", [2, 5, 16])
def test_all_threads_split_a_cluster_as_one_does(vectors, k, balanced):
    chosen = np.arange(10, 690, 2, dtype=np.int32)
    found, by_all = split(vectors, chosen, k, balanced)
    np.testing.assert_array_equal(by_all, found)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("branching", [2, 16])
@pytest.mark.parametrize("seen", [1, 0.6])
def test_a_tree_is_the_same_on_any_number_of_threads(vectors, branching, seen):
    is_seen = np.random.default_rng(0).random(vectors.shape[0]) < seen
    vectors = sp.csr_matrix(sp.diags(is_seen.astype(np.float32)) @ vectors)
    vectors.eliminate_zeros()
    trees = []
    for n in (1, 2, 5):
        set_threads(n)
        trees.append(build_tree(vectors, branching=branching, max_leaf=4, seed=3))
    for other in trees[1:]:
        np.testing.assert_array_equal(other.leaves, trees[0].leaves)


def test_equal_rows_are_still_divided():
    alike = sp.csr_matrix(np.ones((100, 3), np.float32) / np.sqrt(3).astype(np.float32))
    for found in split(alike, np.arange(100, dtype=np.int32), 4, balanced=False):
        assert np.bincount(found).tolist() == [25, 25, 25, 25]


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


def deal_out(parts, unseen, k):
    """The rule in plain numpy: the smallest parts get the first and largest shares."""
    parts = [part for part in parts if len(part)]
    parts += [np.empty(0, np.int32)] * (k - len(parts))
    order = np.argsort([len(part) for part in parts], kind="stable")
    for place, share in zip(order, np.array_split(unseen, k), strict=True):
        parts[place] = np.concatenate((parts[place], share))
    return [part.tolist() for part in parts if len(part)]


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("k", [2, 7, 16])
@pytest.mark.parametrize("n_seen", [0, 1, 3, 500])
def test_labels_without_documents_join_the_smallest_parts(vectors, n_seen, k, balanced):
    vectors = sp.vstack([vectors[:n_seen], sp.csr_matrix((45, 300), dtype=np.float32)]).tocsr()
    rows, n = view_rows(vectors), n_seen + 45
    chosen = np.random.default_rng(0).permutation(n).astype(np.int32)
    seen, unseen = chosen[chosen < n_seen], chosen[chosen >= n_seen]
    cluster_of = np.zeros(n_seen, np.int64)
    if n_seen > 1:
        first = np.random.default_rng(5).choice(n_seen, min(k, n_seen), replace=False)
        cluster_of = cluster_by_all(rows, 300, seen, first, balanced)
    expected = deal_out([seen[cluster_of == c] for c in range(k)], unseen, k)
    clusters = Clusters(chosen, np.array([0, n]), np.array([k]), np.array([5], np.uint64))
    ordered, sizes = np.empty_like(chosen), np.zeros((1, 16), np.int64)
    scratch = Scratch(300)
    split_many(rows, scratch.columns, clusters, np.array([0]), balanced, ordered, sizes)
    ends = np.cumsum(sizes[sizes > 0])
    assert [part.tolist() for part in np.split(ordered, ends[:-1])] == expected
    again, same = np.empty_like(chosen), np.zeros_like(sizes)
    split_by_all(rows, scratch, clusters, 0, balanced, again, same)
    np.testing.assert_array_equal(again, ordered)
    np.testing.assert_array_equal(same, sizes)
