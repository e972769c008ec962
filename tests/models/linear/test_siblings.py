"""Labels like a label, against the cosine of weights that are read off one by one."""

import numpy as np
from command_line import planted_rows

import longtail
from longtail.models.linear.siblings import find_siblings


def test_siblings_are_ranked_by_the_cosine_of_their_weights():
    rng = np.random.default_rng(0)
    X = (rng.random((300, 40)) < 0.2).astype(np.float32) * rng.random((300, 40)).astype(np.float32)
    Y = (X @ rng.random((40, 60)) > 4.6).astype(np.float32)
    tree = longtail.Linear(flat=1, max_leaf=16).fit(X, Y).trees_[0]
    n_inner = int(tree.level[-2])
    weights = {}
    for row, parent in enumerate(tree.node.tolist()):
        for cell in range(int(tree.start[row]), int(tree.start[row + 1])):
            child = int(tree.child[parent]) + int(tree.offset[cell])
            weight = float(tree.code[cell]) * float(tree.unit[child])
            weights.setdefault(child, {})[row_feature(tree, row)] = weight
    for leaf, label in enumerate(tree.leaves.tolist()):
        node = n_inner + leaf
        parent = max(i for i in range(n_inner) if tree.child[i] <= node)
        others = range(int(tree.child[parent]), int(tree.child[parent + 1]))
        expected = {
            int(tree.leaves[other - n_inner]): cosine(weights.get(node), weights.get(other))
            for other in others
            if other != node
        }
        found = dict(find_siblings(tree, label, 100))
        assert found.keys() == {each for each, value in expected.items() if value > 0}
        for each, value in found.items():
            assert abs(value - expected[each]) < 1e-6
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert list(dict(find_siblings(tree, label, 2))) == list(found)[:2]


def row_feature(tree, row):
    return int(np.searchsorted(tree.row, row, side="right")) - 1


def cosine(one, other):
    if not one or not other:
        return 0.0
    product = sum(one[each] * other[each] for each in one.keys() & other.keys())
    norm = np.sqrt(sum(v * v for v in one.values()) * sum(v * v for v in other.values()))
    return product / norm


def test_the_model_tells_labels_that_are_alike():
    texts, labels = zip(*planted_rows(200, 0), strict=True)
    model = longtail.Linear().fit(list(texts), list(labels))
    assert all(0 < near <= 1 for _, near in model.find_near_labels(0, 3))
