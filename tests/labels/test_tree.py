from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import ParameterError
from longtail.labels.tree import LabelTree, build_label_vectors, build_tree


def clustered_vectors(groups=4, per_group=6, seed=0):
    """Unit rows in `groups` directions, so that the right clusters are known."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((groups * per_group, groups * 5), np.float32)
    for label in range(len(dense)):
        dense[label, 5 * (label % groups) + rng.choice(5, 3, replace=False)] = 1
    return sp.csr_matrix(dense / np.linalg.norm(dense, axis=1, keepdims=True))


def check_is_tree(tree, n_labels):
    assert sorted(tree.leaves.tolist()) == list(range(n_labels))
    assert tree.sizes[0] == 1
    for level, starts in enumerate(tree.children):
        assert starts[0] == 0
        assert starts[-1] == tree.sizes[level + 1]
        assert (np.diff(starts) > 0).all()


def members(tree):
    """The sets of labels that share a parent."""
    starts = tree.children[-1]
    return [frozenset(tree.leaves[a:b].tolist()) for a, b in pairwise(starts)]


def test_label_vectors_are_normalized_sums_of_documents():
    X = sp.csr_matrix(np.array([[1, 0, 2], [0, 3, 0], [1, 1, 0]], np.float32))
    Y = sp.csr_matrix(np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]], np.float32))
    expected = np.array([[1, 3, 2], [1, 4, 0], [0, 0, 0]], np.float32)
    expected[0] /= np.sqrt(14)
    expected[1] /= np.sqrt(17)
    np.testing.assert_allclose(build_label_vectors(X, Y).toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize("balanced", [True, False])
def test_labels_that_share_their_words_share_a_parent(balanced):
    tree = build_tree(clustered_vectors(), branching=4, max_leaf=6, balanced=balanced, seed=2)
    check_is_tree(tree, 24)
    if balanced:
        assert set(members(tree)) == {frozenset(range(g, 24, 4)) for g in range(4)}


@pytest.mark.parametrize("branching", [2, 3, 16, 100])
@pytest.mark.parametrize("n_labels", [1, 2, 7, 100, 333])
def test_every_label_has_one_leaf_and_balanced_leaves_are_small(branching, n_labels):
    vectors = sp.random(n_labels, 50, 0.2, format="csr", dtype=np.float32, random_state=1)
    tree = build_tree(vectors, branching=branching, max_leaf=10, seed=0)
    check_is_tree(tree, n_labels)
    assert np.diff(tree.children[-1]).max() <= 10
    for starts in tree.children[:-1]:
        assert np.diff(starts).max() <= branching


def test_balanced_siblings_differ_by_one_label_at_most():
    vectors = sp.random(103, 40, 0.3, format="csr", dtype=np.float32, random_state=3)
    tree = build_tree(vectors, branching=8, max_leaf=13, seed=0)
    sizes = np.diff(tree.children[-1])
    assert tree.sizes == [1, 8, 103]
    assert sizes.max() - sizes.min() <= 1


def test_labels_without_documents_are_dealt_out_evenly():
    vectors = sp.vstack([clustered_vectors(), sp.csr_matrix((8, 20), dtype=np.float32)]).tocsr()
    tree = build_tree(vectors, branching=4, max_leaf=8, seed=2)
    check_is_tree(tree, 32)
    assert sorted(sum(label >= 24 for label in group) for group in members(tree)) == [2, 2, 2, 2]


def test_only_labels_without_documents_still_make_a_tree():
    tree = build_tree(sp.csr_matrix((50, 4), dtype=np.float32), branching=4, max_leaf=5)
    check_is_tree(tree, 50)


def test_max_depth_leaves_upper_levels_out():
    vectors = sp.random(500, 40, 0.3, format="csr", dtype=np.float32, random_state=3)
    deep = build_tree(vectors, branching=4, max_leaf=5, balanced=False)
    flat = build_tree(vectors, branching=4, max_leaf=5, max_depth=1, balanced=False)
    assert deep.depth > 3
    assert flat.depth == 2
    assert set(members(flat)) == set(members(deep))
    assert build_tree(vectors, max_leaf=5, max_depth=0).sizes == [1, 500]


def test_wide_nodes_are_made_of_several_splits():
    vectors = sp.random(4000, 40, 0.3, format="csr", dtype=np.float32, random_state=3)
    assert build_tree(vectors, branching=16, max_leaf=20).sizes == [1, 15, 210, 4000]
    assert build_tree(vectors, branching=210, max_leaf=20).sizes == [1, 210, 4000]
    assert build_tree(vectors, branching=209, max_leaf=20).sizes == [1, 15, 210, 4000]


def test_the_root_is_as_wide_as_it_may_be():
    children = [[0, 2], [0, 3, 6], [0, 2, 4, 6, 8, 10, 13], range(0, 27, 2)]
    tree = LabelTree([np.array(starts, np.int32) for starts in children], np.arange(26))
    assert tree.sizes == [1, 2, 6, 13, 26]
    assert tree.widen(13).sizes == [1, 13, 26]
    assert tree.widen(6).sizes == tree.widen(12).sizes == [1, 6, 13, 26]
    assert tree.widen(5).sizes == [1, 2, 6, 13, 26]
    assert tree.widen(6, max_depth=1).sizes == [1, 13, 26]


def test_labels_that_are_all_alike_are_split_all_the_same():
    vectors = sp.csr_matrix(np.ones((700, 1), np.float32))
    tree = build_tree(vectors, branching=16, max_leaf=10, balanced=False)
    check_is_tree(tree, 700)
    assert np.diff(tree.children[-1]).max() <= 10


def test_the_seed_decides():
    vectors = sp.random(200, 40, 0.3, format="csr", dtype=np.float32, random_state=3)
    first, again, other = (build_tree(vectors, max_leaf=5, seed=s).leaves for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_figure_1b_of_attentionxml():
    """8000 labels, K = M = 8 = 2³, H = 3: the binary tree becomes 1-16-128-1024-8000."""
    vectors = sp.random(8000, 64, 0.1, format="csr", dtype=np.float32, random_state=0)
    deep = build_tree(vectors, branching=2, max_leaf=8)
    assert deep.sizes == [*(2**level for level in range(11)), 8000]
    shallow = deep.compress(c=3, height=3)
    assert shallow.sizes == [1, 16, 128, 1024, 8000]
    check_is_tree(shallow, 8000)
    assert all(np.diff(starts).max() <= 8 for starts in shallow.children[1:])
    assert deep.compress(c=3, height=1).sizes == [1, 1024, 8000]
    # A label keeps its ancestors: those that stay are the same sets of labels as before.
    below = lambda tree, level: np.searchsorted(  # noqa: E731
        _first_leaves(tree, level), np.arange(8000), side="right"
    )
    assert np.array_equal(below(shallow, 1), below(deep, 4))


def _first_leaves(tree, level):
    starts = np.arange(tree.sizes[level])
    for children in tree.children[level:]:
        starts = children[starts]
    return starts


def test_compressing_too_far_is_an_error():
    vectors = sp.random(64, 16, 0.5, format="csr", dtype=np.float32, random_state=0)
    with pytest.raises(ParameterError, match="cannot be compressed to 4 levels 3 apart"):
        build_tree(vectors, branching=2, max_leaf=8).compress(c=3, height=4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"branching": 1}, "The 'branching' of a tree must be at least 2. Got 1."),
        ({"max_leaf": 0}, "The 'max_leaf' of a tree must be at least 1. Got 0."),
        ({"max_depth": -1}, "The 'max_depth' of a tree must be at least 0. Got -1."),
    ],
)
def test_impossible_shapes(parameters, message):
    with pytest.raises(ParameterError) as error:
        build_tree(clustered_vectors(), **parameters)
    assert str(error.value) == message


def test_parents_are_the_inverse_of_children():
    tree = LabelTree(
        [np.array([0, 2], np.int32), np.array([0, 1, 3], np.int32)], np.array([2, 0, 1], np.int32)
    )
    assert tree.parents(1).tolist() == [0, 0]
    assert tree.parents(2).tolist() == [0, 1, 1]
