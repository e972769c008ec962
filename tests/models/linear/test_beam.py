import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_rows

from longtail.models import Linear
from longtail.models.linear import beam
from longtail.models.linear.beam import (
    NOTHING_REACHED,
    UNKNOWN,
    find_paths,
    score_paths,
    search,
    walk,
)
from longtail.runtime.rows import scale_to_unit, view_rows


@pytest.fixture(scope="module")
def trained():
    X, Y = planted_rows(n=400, n_labels=30)
    model = Linear(trees=1, flat=0, branching=3, max_leaf=4, prune=0.0).fit(X, Y)
    return model.trees_[0], scale_to_unit(planted_rows(n=50, n_labels=30, seed=5)[0])


def weights_of(tree):
    """Every node's classifier as a dense column, from the rows."""
    W = np.zeros((len(tree.row) - 1, int(tree.level[-1])))
    for feature in range(len(W)):
        for row in range(tree.row[feature], tree.row[feature + 1]):
            cells = slice(tree.start[row], tree.start[row + 1])
            children = tree.child[tree.node[row]] + tree.offset[cells]
            W[feature, children] = tree.code[cells] * tree.unit[children]
    return W


def all_scores(tree, X, power):
    """The chain rule, literally: each node's log probability plus its parent's."""
    margins = X.toarray() @ weights_of(tree) + tree.bias
    doubt = beam.DOUBT / (1 + np.maximum(0, margins))
    own = -(np.maximum(0, 1 - margins) ** power) - doubt if power else -np.logaddexp(0, -margins)
    total = np.zeros_like(own)
    for node in range(int(tree.level[-2])):
        for child in range(tree.child[node], tree.child[node + 1]):
            total[:, child] = total[:, node] + own[:, child]
    return total[:, tree.level[-2] :]


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_a_beam_as_wide_as_the_tree_finds_the_best_labels(trained, power):
    tree, X = trained
    labels, scores = search(view_rows(X), 0, 50, tree, 100, 7, power)
    expected = all_scores(tree, X, power)
    order = np.argsort(-expected, axis=1)[:, :7]
    np.testing.assert_allclose(scores, np.take_along_axis(expected, order, 1), atol=1e-4)
    assert np.array_equal(labels[:, 0], tree.leaves[order[:, 0]])


def test_walking_and_halving_agree_to_the_bit(trained, monkeypatch):
    tree, X = trained
    halving = search.py_func
    monkeypatch.setattr(beam, "STEPS_OF_A_SEARCH", 0)
    for name in ("walk", "_sum_children", "_add_feature"):
        monkeypatch.setattr(beam, name, getattr(beam, name).py_func)
    by_halving = halving(view_rows(X), 0, 5, tree, 4, 5, 3)
    by_walking = search(view_rows(X), 0, 5, tree, 4, 5, 3)
    assert np.array_equal(by_halving[0], by_walking[0])
    np.testing.assert_allclose(by_halving[1], by_walking[1], rtol=1e-5)


def test_a_narrow_beam_never_scores_higher(trained):
    tree, X = trained
    narrow = search(view_rows(X), 0, 50, tree, 1, 3, 3)[1]
    wide = search(view_rows(X), 0, 50, tree, 50, 3, 3)[1]
    assert (narrow <= wide).all()


def test_a_beam_wider_than_any_tree_is_as_wide_as_the_tree(trained):
    tree, X = trained
    rows, n_nodes = view_rows(X), int(tree.level[-1])
    whole, wider = (walk(rows, 0, 50, tree, width, 5, 3) for width in (n_nodes, 2**60))
    for own, other in zip((*whole[:2], *whole[2]), (*wider[:2], *wider[2]), strict=True):
        np.testing.assert_array_equal(own, other)


def test_fewer_labels_in_the_beam_than_wanted(trained):
    tree, X = trained
    labels, scores = search(view_rows(X), 0, 50, tree, 1, 20, 3)
    assert (labels[:, -1] == -1).all()
    assert np.isneginf(scores[:, -1]).all()
    assert (labels[:, 0] >= 0).all()


def test_empty_documents_are_searched_too(trained):
    tree, X = trained
    empty = sp.csr_matrix((2, X.shape[1]), dtype=np.float32)
    labels, _ = search(view_rows(empty), 0, 2, tree, 10, 3, 3)
    assert (labels >= 0).all()


def test_what_a_search_has_reached_changes_no_bit_of_a_score(trained):
    tree, X = trained
    rows, paths = view_rows(X), find_paths(tree)
    _, _, reached = walk(rows, 0, 20, tree, 2, 3, 3)
    labels = np.tile(np.arange(len(tree.leaves), dtype=np.int32), (20, 1))
    by_sums, by_margins = (np.full(labels.shape, UNKNOWN) for _ in range(2))
    score_paths(rows, 0, tree, paths, labels, by_sums, 3, NOTHING_REACHED)
    score_paths(rows, 0, tree, paths, labels, by_margins, 3, reached)
    assert (by_sums <= 0).all()
    assert np.array_equal(by_sums, by_margins)


def test_margins_beyond_what_is_sure_still_order_labels():
    surer = [beam._log_probability.py_func(np.float32(m), 3) for m in (0.9, 1.0, 1.5, 4.0, 100.0)]
    assert surer == sorted(set(surer))
    assert -1e-6 < surer[-1] < 0
