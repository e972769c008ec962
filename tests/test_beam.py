import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_rows

from longtail.beam import check_tree, search
from longtail.models import Linear
from longtail.rows import scale_to_unit, view_rows


@pytest.fixture(scope="module")
def trained():
    X, Y = planted_rows(n=400, n_labels=30)
    model = Linear(trees=1, flat=0, branching=3, max_leaf=4, prune=0.0).fit(X, Y)
    return model.trees_[0], scale_to_unit(planted_rows(n=50, n_labels=30, seed=5)[0])


def weights_of(tree, node_count, n_features):
    """Every node's classifier as a dense column, from the chunks."""
    W = np.zeros((n_features, node_count))
    for chunk in range(len(tree.child) - 1):
        for row in range(tree.row[chunk], tree.row[chunk + 1]):
            cells = slice(tree.start[row], tree.start[row + 1])
            W[tree.feature[row], tree.child[chunk] + tree.offset[cells]] = tree.weight[cells]
    return W


def all_scores(tree, X, power):
    """The chain rule, literally: each node's log probability plus its parent's."""
    n_nodes = int(tree.level[-1])
    margins = X.toarray() @ weights_of(tree, n_nodes, X.shape[1]) + tree.bias
    own = -(np.maximum(0, 1 - margins) ** power) if power else -np.logaddexp(0, -margins)
    total = np.zeros_like(own)
    for node in range(int(tree.level[-2])):
        for chunk in range(tree.chunk[node], tree.chunk[node + 1]):
            for child in range(tree.child[chunk], tree.child[chunk + 1]):
                total[:, child] = total[:, node] + own[:, child]
    return total[:, tree.level[-2] :]


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_a_beam_as_wide_as_the_tree_finds_the_best_labels(trained, power):
    tree, X = trained
    table = np.full(X.shape[1], -1, np.int64)
    labels, scores = search(view_rows(X), 0, 50, tree, 100, 7, power, table)
    expected = all_scores(tree, X, power)
    order = np.argsort(-expected, axis=1)[:, :7]
    assert (table == -1).all()
    np.testing.assert_allclose(scores, np.take_along_axis(expected, order, 1), atol=1e-4)
    assert np.array_equal(labels[:, 0], tree.leaves[order[:, 0]])


def test_table_and_binary_search_agree_to_the_bit(trained):
    tree, X = trained
    table = np.full(X.shape[1], -1, np.int64)
    by_table = search(view_rows(X), 0, 50, tree, 4, 5, 3, table)
    by_search = search(view_rows(X), 0, 50, tree, 4, 5, 3, np.empty(0, np.int64))
    assert np.array_equal(by_table[0], by_search[0])
    assert np.array_equal(by_table[1], by_search[1])


def test_a_narrow_beam_never_scores_higher(trained):
    tree, X = trained
    none = np.empty(0, np.int64)
    narrow = search(view_rows(X), 0, 50, tree, 1, 3, 3, none)[1]
    wide = search(view_rows(X), 0, 50, tree, 50, 3, 3, none)[1]
    assert (narrow <= wide).all()


def test_fewer_labels_in_the_beam_than_wanted(trained):
    tree, X = trained
    labels, scores = search(view_rows(X), 0, 50, tree, 1, 20, 3, np.empty(0, np.int64))
    assert (labels[:, -1] == -1).all()
    assert np.isneginf(scores[:, -1]).all()
    assert (labels[:, 0] >= 0).all()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("feature", lambda a: np.where(np.arange(len(a)) == 3, 10**6, a)),
        ("feature", lambda a: np.where(np.arange(len(a)) == 3, -1, a)),
        ("leaves", lambda a: a + 1),
        ("leaves", lambda a: a[:-1]),
        ("offset", lambda a: a + np.uint16(100)),
        ("child", lambda a: a + 1),
        ("child", lambda a: a[::-1].copy()),
        ("row", lambda a: a * 2),
        ("start", lambda a: a[::-1].copy()),
        ("chunk", lambda a: a[1:]),
        ("level", lambda a: a + 1),
        ("bias", lambda a: a[:-1]),
        ("weight", lambda a: a[:-1]),
        ("weight", lambda a: a.astype(np.float64)),
    ],
)
def test_a_tree_that_would_read_outside_its_arrays_is_refused(trained, field, change):
    tree, X = trained
    check_tree(tree, X.shape[1], 30)
    array = getattr(tree, field)
    broken = tree._replace(**{field: change(array)})
    if broken.__getattribute__(field).dtype == np.int64 and field in ("feature", "leaves"):
        broken = broken._replace(**{field: getattr(broken, field).astype(np.int32)})
    with pytest.raises(ValueError, match=r"."):
        check_tree(broken, X.shape[1], 30)


def test_empty_documents_are_searched_too(trained):
    tree, X = trained
    empty = sp.csr_matrix((2, X.shape[1]), dtype=np.float32)
    labels, _ = search(view_rows(empty), 0, 2, tree, 10, 3, 3, np.empty(0, np.int64))
    assert (labels >= 0).all()
