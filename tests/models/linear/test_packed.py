"""Trees as they are kept on disk."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

from longtail.labels.tree import LabelTree
from longtail.models.linear.beam import TreeWeights
from longtail.models.linear.model import Linear
from longtail.models.linear.packed import add_tree, describe_tree, take_tree
from longtail.models.linear.solver import NodeWeights
from longtail.models.linear.training import Task, assemble
from longtail.runtime.store import Files


@pytest.fixture(scope="module")
def dataset():
    return planted_dataset(n_labels=30)


@pytest.fixture(scope="module")
def tree(dataset) -> TreeWeights:
    return Linear(flat=0, branching=4, max_leaf=4, trees=1, prune=0.001).fit(dataset).trees_[0]


def pack(tree) -> Files:
    files = Files()
    add_tree(files, "tree", tree)
    return files


def unpack(files, dataset) -> TreeWeights:
    sizes = {"n_features": dataset.X.shape[1], "n_labels": dataset.Y.shape[1]}
    describe_tree("tree", files).check(files, sizes)
    return take_tree(files, "tree", dataset.X.shape[1])


def test_what_is_packed_comes_back_bit_for_bit(tree, dataset):
    files = pack(tree)
    again = unpack(files, dataset)
    for field in TreeWeights._fields:
        np.testing.assert_array_equal(getattr(again, field), getattr(tree, field), err_msg=field)
        assert getattr(again, field).dtype == getattr(tree, field).dtype


def test_children_of_wide_nodes_are_kept_as_distances():
    dataset = planted_dataset(n_labels=300)
    tree = Linear(flat=1000).fit(dataset).trees_[0]
    files = pack(tree)
    assert tree.offset.dtype == np.uint16
    assert len(files.arrays["tree.offsets"]) < tree.offset.nbytes
    again = unpack(files, dataset)
    assert again.offset.dtype == tree.offset.dtype
    np.testing.assert_array_equal(again.offset, tree.offset)
    files.arrays["tree.offsets"][-1] += 100
    with pytest.raises(ValueError, match=r"tree\.offsets must hold whole numbers up to 299"):
        unpack(files, dataset)


def with_value(value):
    """A change that puts `value` in the fourth place."""

    def change(array):
        changed = array.copy()
        changed[3] = value
        return changed

    return change


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("nodes", with_value(127)),
        ("nodes", with_value(255)),
        ("nodes", np.zeros_like),
        ("nodes", lambda a: a[:-1]),
        ("nodes", lambda a: np.append(a, np.uint8(0))),
        ("nodes", lambda a: np.concatenate([a[:-1], np.full(9, 255, np.uint8)])),
        ("leaves", with_value(30)),
        ("leaves", lambda a: a[:-1]),
        ("children", with_value(100)),
        ("children", lambda a: a[:-1]),
        ("child", lambda a: a + 1),
        ("child", lambda a: a[::-1].copy()),
        ("rows", lambda a: a + 1),
        ("rows", lambda a: a[:-1]),
        ("lengths", with_value(255)),
        ("lengths", lambda a: a[:-1]),
        ("level", lambda a: a + 1),
        ("level", lambda a: a[:1]),
        ("bias", lambda a: a[:-1]),
        ("unit", lambda a: -a - 1),
        ("unit", with_value(np.nan)),
        ("codes", lambda a: a[:-1]),
        ("codes", with_value(-128)),
        ("codes", lambda a: a.astype(np.float32)),
        ("codes", lambda a: a[:, None]),
    ],
)
def test_a_tree_that_would_read_outside_its_arrays_is_refused(tree, dataset, field, change):
    files = pack(tree)
    files.arrays[f"tree.{field}"] = change(files.arrays[f"tree.{field}"])
    with pytest.raises(ValueError, match=r"tree\.\w+|\btree\b"):
        unpack(files, dataset)


def test_weights_are_off_by_half_a_unit_at_most():
    rng = np.random.default_rng(0)
    labels = LabelTree([np.array([0, 70], np.int32)], np.arange(70, dtype=np.int32))
    tasks = [Task(0, 0, None, first, last, 1.0) for first, last in ((0, 40), (40, 70))]
    dense = rng.normal(size=(9, 70)).astype(np.float32)
    dense[:, 5] = 0  # a classifier without weights
    rounded = as_dense(
        assemble(labels, tasks, [as_block(dense[:, :40]), as_block(dense[:, 40:])], 9)
    )
    most = np.abs(dense).max(axis=0) / 254 * (1 + 2e-5)
    assert (np.abs(rounded - dense) <= most).all()
    blocks = [as_block(rounded[:, :40]), as_block(rounded[:, 40:])]
    np.testing.assert_array_equal(as_dense(assemble(labels, tasks, blocks, 9)), rounded)


def as_dense(tree) -> np.ndarray:
    """The weights of a tree that is one node and its children."""
    child = 1 + tree.offset.astype(int)
    cells = tree.code * tree.unit[child], tree.offset, tree.start[tree.row]
    return sp.csr_matrix(cells, shape=(len(tree.row) - 1, len(tree.leaves))).toarray()


def as_block(dense) -> NodeWeights:
    """The weights of a node as training returns them, zeros left out."""
    rows = sp.csr_matrix(dense)
    return NodeWeights(
        np.arange(len(dense), dtype=np.int32),
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.uint8),
        rows.data,
        np.zeros(dense.shape[1], np.float32),
    )
