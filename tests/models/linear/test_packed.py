"""Trees as they are kept on disk."""

import numpy as np
import pytest
from planted import planted_dataset

from longtail.models.linear.beam import TreeWeights
from longtail.models.linear.model import Linear
from longtail.models.linear.packed import add_tree, describe_tree, round_weights, take_tree
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
    describe_tree("tree").check(files, sizes)
    return take_tree(files, "tree", dataset.X.shape[1])


def test_what_is_packed_comes_back_bit_for_bit(tree, dataset):
    files = pack(tree)
    again = unpack(files, dataset)
    for field in TreeWeights._fields:
        np.testing.assert_array_equal(getattr(again, field), getattr(tree, field), err_msg=field)
        assert getattr(again, field).dtype == getattr(tree, field).dtype
    n_bytes = sum(array.nbytes for array in files.arrays.values())
    assert n_bytes < 0.6 * sum(array.nbytes for array in tree)


def test_weights_are_off_by_half_a_unit_at_most(tree):
    rng = np.random.default_rng(0)
    rough = tree._replace(weight=rng.normal(size=len(tree.weight)).astype(np.float32))
    rounded = round_weights(rough)
    classifier = np.repeat(tree.child[tree.node], np.diff(tree.start)) + tree.offset
    for each in np.unique(classifier)[:20]:
        own = classifier == each
        most = np.abs(rough.weight[own]).max() / 254 * (1 + 2e-5)
        assert (np.abs(rounded.weight[own] - rough.weight[own]) <= most).all()
    np.testing.assert_array_equal(round_weights(rounded).weight, rounded.weight)


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
        ("offsets", with_value(100)),
        ("offsets", lambda a: a[:-1]),
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
