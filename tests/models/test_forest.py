"""Forest: trees against a slow literal growth, leaves that vote, more documents, crafted files."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset, planted_texts

from longtail import Dataset, Forest, load_model
from longtail.errors import ModelFileError
from longtail.models.forest.clusters import grow_clusters
from longtail.models.forest.growing import grow_tree, judge_split, weigh_labels
from longtail.models.forest.questions import Questions
from longtail.models.forest.trees import Trees, find_leaves
from longtail.models.forest.voting import find_labels
from longtail.progress import DeadlineProgress, OutOfTimeError, Progress, Silent
from longtail.runtime.parallel import set_threads
from longtail.runtime.rows import view_rows
from longtail.runtime.store import read_folder, write_folder
from longtail.runtime.varint import decode, encode
from longtail.search.voters import Carried

BITS = 2**64


def random_data(n=60, n_features=12, n_labels=7, seed=0, negative=True):
    """Return sparse rows, some of whose features are dense, and labels of each document."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_features)) * (rng.random((n, n_features)) < 0.4)
    X[:, 0] = 5 + rng.random(n)  # without zeros
    X[:, 1] = np.where(rng.random(n) < 0.5, -1, 0)  # zeros above all values
    X[:, 2] = 1.0  # always the same
    X = X if negative else np.abs(X)
    Y = (rng.random((n, n_labels)) < 0.25).astype(np.float32)
    Y[np.arange(n), rng.integers(n_labels, size=n)] = 1
    return sp.csr_matrix(X, dtype=np.float32), sp.csr_matrix(Y)


def grow(X, Y, min_split=2, min_leaf=1, share=0.5, seed=3):
    documents = np.arange(X.shape[0], dtype=np.int32)
    rows, carried = view_rows(X), Carried.of(Y)
    weights = weigh_labels(carried)
    return grow_tree(
        rows, carried, X.shape[1], documents, weights, min_split, min_leaf, share, seed
    )


# -- growing ------------------------------------------------------------------------------------


class SplitMix:
    """The random numbers of a tree, in Python's own whole numbers."""

    def __init__(self, seed):
        self.state = seed

    def draw(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % BITS
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % BITS
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % BITS
        return z ^ (z >> 31)

    def share(self):
        return (self.draw() >> 11) / 2**53


def is_tried(feature, key, limit):
    z = (feature + key) * 0x9E3779B97F4A7C15 % BITS
    z = (z ^ (z >> 32)) * 0x94D049BB133111EB % BITS
    return (z >> 32) < limit


def literal_gain(y, right):
    """The sum over both sides of |S|²/n, from dense label vectors."""
    return sum((y[side].sum(axis=0) ** 2).sum() / side.sum() for side in (right, ~right))


def literal_question(X, y, documents, min_leaf, limit, random):
    """Return feature, threshold and the documents that go right; None if nothing is possible."""
    key, best, best_gain = random.draw(), None, 0.0
    cells = [f for d in documents for f in X[d].indices if is_tried(int(f), key, limit)]
    for feature in dict.fromkeys(cells):
        values = X[documents, feature].toarray().ravel()
        low, high = values.min(), values.max()
        if low == high or cells.count(feature) < min_leaf:
            continue
        threshold = np.float32(np.float64(low) + random.share() * (np.float64(high) - low))
        threshold = threshold if low <= threshold < high else low
        right = values > threshold
        if min(right.sum(), (~right).sum()) < min_leaf:
            continue
        gain = literal_gain(y[documents], right)
        if gain > best_gain * (1 + 1e-9):
            best, best_gain = (feature, threshold, right), gain
    return best


def literal_tree(X, Y, min_split, min_leaf, share, seed):
    """Grow a tree by the definition; return its nodes and leaves in preorder."""
    y = Y.toarray().astype(np.float64)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    random, nodes, leaves = SplitMix(seed), [], []

    def visit(documents):
        found = None
        is_pure = np.allclose(y[documents], y[documents[0]])
        if len(documents) >= max(min_split, 2 * min_leaf) and not is_pure:
            for limit in (int(share * 2**32), 2**32):
                found = literal_question(X, y, documents, min_leaf, limit, random)
                if found is not None:
                    break
        if found is None:
            leaves.append(documents.tolist())
            return 1
        feature, threshold, right = found
        node = [int(feature), float(threshold), 0]
        nodes.append(node)
        node[2] = visit(documents[~right])
        return node[2] + visit(documents[right])

    visit(np.arange(X.shape[0]))
    return nodes, leaves


def leaves_of(tree):
    return [part.tolist() for part in np.split(tree.documents, np.cumsum(tree.sizes)[:-1])]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("min_split", "min_leaf", "share"), [(2, 1, 1.0), (2, 1, 0.3), (8, 3, 0.3), (10, 1, 0.05)]
)
def test_tree_equals_literal_growth(seed, min_split, min_leaf, share):
    X, Y = random_data(seed=seed)
    tree = grow(X, Y, min_split, min_leaf, share, seed)
    share = max(share, 3 / X.shape[1])  # three of all features at least
    nodes, leaves = literal_tree(X, Y, min_split, min_leaf, share, seed)
    assert [n[0] for n in nodes] == tree.features.tolist()
    assert [n[1] for n in nodes] == tree.thresholds.tolist()
    assert [n[2] for n in nodes] == tree.left.tolist()
    assert leaves_of(tree) == leaves
    assert len(leaves) > 3


def test_split_criterion_by_hand():
    # Labels 0; 0; 0 and 1; 1. Of two labels, each is 1/√2 in y.
    Y = Carried.of(sp.csr_matrix([[1, 0], [1, 0], [1, 1], [0, 1]], dtype=np.float32))
    weights, T = weigh_labels(Y), np.array([2 + 0.5**0.5, 1 + 0.5**0.5])
    moved, R = np.array([2, 3], np.int32), np.zeros(2)
    # Left (2, 0), right (1/√2, 1 + 1/√2): 4/2 + (1/2 + 1 + √2 + 1/2)/2.
    found = judge_split(Y, moved, 4, weights, float(T @ T), T, R)
    assert found == pytest.approx(2 + (2 + 2**0.5) / 2)
    assert not R.any()


def test_leaves_are_as_large_as_asked_and_hold_each_document_once():
    X, Y = random_data(n=200)
    tree = grow(X, Y, min_leaf=4)
    assert tree.sizes.min() >= 4
    assert sorted(tree.documents.tolist()) == list(range(200))


def test_documents_that_cannot_be_told_apart_share_a_leaf():
    X = sp.csr_matrix(np.ones((6, 2), np.float32))
    tree = grow(X, sp.csr_matrix(np.eye(6, dtype=np.float32)))
    assert tree.sizes.tolist() == [6]
    assert not len(tree.features)


def test_documents_of_the_same_labels_are_not_split():
    X, _ = random_data(n=30)
    tree = grow(X, sp.csr_matrix(np.tile(np.array([[1, 1, 0]], np.float32), (30, 1))))
    assert tree.sizes.tolist() == [30]


# -- walking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("negative", [False, True])
def test_documents_fall_into_their_own_leaves(negative):
    X, Y = random_data(negative=negative)
    trees = Trees.of([grow(X, Y, seed=seed) for seed in range(4)], X.shape[1])
    leaves = find_leaves(X, trees)
    for tree in range(4):
        for d in range(X.shape[0]):
            leaf = leaves[d, tree]
            assert trees.start[tree] <= leaf < trees.start[tree + 1]
            assert d in trees.documents[trees.borders[leaf] : trees.borders[leaf + 1]]


def test_scores_are_mean_shares_by_hand():
    # One question: feature 0 above 0.5. Left are documents 0 and 1, right is document 2.
    questions = Questions(
        np.array([0], np.int32), np.array([0.5], np.float32), np.array([1], np.int32)
    )
    trees = Trees(
        np.array([0, 2, 3]),
        np.array([0, 2, 3, 6]),  # the second tree has one leaf of all three
        np.array([0, 1, 2, 0, 1, 2], np.int32),
        questions,
    )
    Y = Carried.of(sp.csr_matrix([[1, 0], [1, 1], [0, 1]], dtype=np.float32))
    found = find_labels(sp.csr_matrix(np.array([[0.5], [0.7]], np.float32)), trees, Y)
    scores = np.zeros((2, 2))
    for d in range(2):
        cells = slice(found.start[d], found.start[d + 1])
        scores[d, found.labels[cells]] = found.scores[cells]
    np.testing.assert_allclose(scores, [[(1 + 2 / 3) / 2, (1 / 2 + 2 / 3) / 2], [1 / 3, 5 / 6]])


@pytest.mark.parametrize("min_split", [4, 9, 25])
def test_small_nodes_can_be_taken_for_leaves(min_split):
    X, Y = random_data(n=120)
    new, _ = random_data(n=20, seed=9)
    stopped = Trees.of([grow(X, Y, min_split=min_split, share=1.0)], X.shape[1])
    whole = find_labels(new, stopped, Carried.of(Y), min_split=1000)
    shares = np.asarray(Y.mean(axis=0)).ravel()
    for d in range(20):
        cells = slice(whole.start[d], whole.start[d + 1])
        np.testing.assert_allclose(whole.scores[cells], shares[whole.labels[cells]], rtol=1e-6)
    plain = find_labels(new, stopped, Carried.of(Y))
    same = find_labels(new, stopped, Carried.of(Y), min_split=min_split)
    for mine, other in zip(plain, same, strict=True):
        np.testing.assert_array_equal(mine, other)


# -- clusters -----------------------------------------------------------------------------------


def grow_by_clusters(X, Y, min_split=2, min_leaf=1, branching=4, seed=3):
    rows, carried = view_rows(X), Carried.of(Y)
    documents = np.arange(X.shape[0], dtype=np.int32)
    rarity = np.ones(X.shape[1], np.float32)
    lengths = 1 / np.maximum(np.sqrt(X.multiply(X).sum(axis=1)).A1, 1e-9)
    known = documents, rarity, lengths, weigh_labels(carried)
    return grow_clusters(rows, carried, *known, min_split, min_leaf, branching, seed)


def grouped_data(n_groups=3, each=8):
    """Return documents of groups; each group has its own features and its own label."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(n_groups), each)
    X = np.zeros((len(group), 4 * n_groups), np.float32)
    for d, g in enumerate(group):
        X[d, 4 * g : 4 * g + 4] = 1 + rng.random(4)
    return sp.csr_matrix(X), sp.csr_matrix(np.eye(n_groups, dtype=np.float32)[group]), group


def test_groups_of_their_own_labels_and_features_become_leaves():
    X, Y, group = grouped_data()
    tree = grow_by_clusters(X, Y)
    assert [len({group[d] for d in leaf}) for leaf in leaves_of(tree)] == [1, 1, 1]
    assert tree.below.tolist() == [1, 1, 1]
    assert tree.spans.tolist() == [1, 1, 1]


def test_a_branch_is_the_mean_of_its_documents():
    X, Y, _ = grouped_data()
    tree = grow_by_clusters(X, Y)
    rows = X.toarray() / np.linalg.norm(X.toarray(), axis=1, keepdims=True)
    for branch, documents in enumerate(leaves_of(tree)):
        mean = rows[documents].mean(axis=0)
        found = np.zeros(X.shape[1])
        cells = slice(tree.start[branch], tree.start[branch + 1])
        found[tree.columns[cells]] = tree.values[cells]
        step = mean.max() / np.linalg.norm(mean) / 127  # as it is rounded
        np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=step)


@pytest.mark.parametrize("min_leaf", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_clusters_hold_each_document_once_and_are_as_large_as_asked(min_leaf, seed):
    X, Y = random_data(n=200, seed=seed)
    tree = grow_by_clusters(X[:, 3:], Y, min_leaf=min_leaf, seed=seed)
    assert sorted(tree.documents.tolist()) == list(range(200))
    assert tree.sizes.min() >= min_leaf
    assert len(tree.sizes) > 5


def literal_leaf(tree, x):
    """Walk by the definition: to the branch with the largest product, the first of several."""
    leaf, n_leaves, branch = 0, len(tree.sizes), 0
    while n_leaves > 1:
        best, at = None, leaf
        while at < leaf + n_leaves:
            cells = slice(tree.start[branch], tree.start[branch + 1])
            product = np.float32(0)
            for value, column in zip(tree.values[cells], tree.columns[cells], strict=True):
                product += value * x[column]
            if best is None or product > best[0]:
                best = product, at, branch
            at += tree.below[branch]
            branch += tree.spans[branch]
        leaf, n_leaves, branch = best[1], tree.below[best[2]], best[2] + 1
    return leaf


def test_documents_walk_to_the_most_similar_clusters():
    X, Y = random_data(n=150)
    X, new = X[:, 3:].tolil(), random_data(n=40, seed=8)[0].toarray()[:, 3:]
    X[:, [0, 4]] = 0  # no branch knows these
    X = X.tocsr()
    grown = [grow_by_clusters(X, Y, seed=seed) for seed in range(3)]
    trees = Trees.of(grown, X.shape[1])
    values = np.split(trees.cuts.centres.values, np.cumsum([len(tree.values) for tree in grown]))
    leaves = find_leaves(sp.csr_matrix(new), trees)
    for number, tree in enumerate(grown):
        own = [literal_leaf(tree._replace(values=values[number]), x) for x in new]
        assert (leaves[:, number] - trees.start[number]).tolist() == own
        assert len(set(own)) > 3


def test_documents_without_features_or_of_the_same_labels_are_one_leaf():
    X, Y = random_data(n=30)
    nothing = sp.csr_matrix(X.shape, dtype=np.float32)
    assert grow_by_clusters(nothing, Y).sizes.tolist() == [30]
    same = sp.csr_matrix(np.tile(np.array([[1, 1, 0]], np.float32), (30, 1)))
    assert grow_by_clusters(X, same).sizes.tolist() == [30]


def test_what_nodes_ask_for_is_chosen_by_the_data():
    rng = np.random.default_rng(0)
    signs = sp.csr_matrix(rng.normal(size=(400, 4)).astype(np.float32))
    same = (signs.toarray()[:, 0] * signs.toarray()[:, 1] > 0).astype(int)
    Y = sp.csr_matrix(np.eye(2, dtype=np.float32)[same])
    assert Forest().fit(Dataset(Y, ["other", "same"], X=signs)).choices["cuts"] == "features"
    topics = rng.integers(20, size=400)  # a document has some of the many words of its topic
    words = (rng.random((400, 600)) < 0.02) | (
        (np.arange(600) // 30 == topics[:, None]) & (rng.random((400, 600)) < 0.15)
    )
    Y = sp.csr_matrix(np.eye(20, dtype=np.float32)[topics])
    data = Dataset(Y, [str(i) for i in range(20)], X=sp.csr_matrix(words, dtype=np.float32))
    model = Forest().fit(data)
    assert model.choices["cuts"] == "clusters"
    assert any("clusters" in line for line in model.describe_training())


def test_saved_clusters_say_the_same(tmp_path):
    data = rows_dataset()
    model = Forest(n_trees=10, cuts="clusters").fit(data)
    assert model.trees_.n_trees == 4
    assert model.n_trees == 10
    model.save(tmp_path / "model")
    before, after = model.predict(data, 7), load_model(tmp_path / "model").predict(data, 7)
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_array_equal(before.scores, after.scores)


# -- the model ----------------------------------------------------------------------------------


def rows_dataset(n=300, seed=0):
    X, Y = random_data(n=n, seed=seed)
    return Dataset(Y, [f"label {i}" for i in range(Y.shape[1])], X=X)


def arrays_of(held):
    """Return all arrays of nested tuples, in order."""
    if not isinstance(held, tuple):
        return [held]
    return [array for each in held for array in arrays_of(each)]


@pytest.mark.parametrize("cuts", [None, "features", "clusters"])
def test_threads_change_no_bit(cuts):
    data = rows_dataset()
    try:
        models = []
        for n in (1, 3):
            set_threads(n)
            models.append(Forest(n_trees=9, cuts=cuts, seed=4).fit(data))
            models[-1].top = models[-1].predict(data, 7)
    finally:
        set_threads(None)
    one, three = models
    for mine, other in zip(arrays_of(one.trees_), arrays_of(three.trees_), strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(one.top.labels, three.top.labels)
    np.testing.assert_array_equal(one.top.scores, three.top.scores)


def test_another_seed_is_another_forest():
    data = rows_dataset()
    one, two = (Forest(n_trees=3, seed=seed).fit(data).trees_ for seed in (0, 1))
    assert one.documents.tolist() != two.documents.tolist()


def test_choice_is_said_stored_and_taken_over(tmp_path):
    said = []

    class Notes(Silent):
        def say(self, text):
            said.append(text)

    data = planted_dataset()
    model = Forest(n_trees=5).fit(data, progress=Notes())
    assert any("split" in line for line in said)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.choices == model.choices
    again = Forest(n_trees=5).with_parameters(**model.choices).fit(data)
    assert again.choices == model.choices
    assert again.describe_training() == []
    for mine, other in zip(arrays_of(again.trees_), arrays_of(model.trees_), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_trees_are_grown_on_samples():
    data = rows_dataset(n=100)
    model = Forest(n_trees=6, max_documents=30).fit(data)
    parts = model.trees_.documents.reshape(6, 30)
    assert all(len(set(part.tolist())) == 30 for part in parts)
    assert len({tuple(sorted(part.tolist())) for part in parts}) == 6


def test_training_stops_in_time_with_fewer_trees():
    model = Forest(n_trees=1000, cuts="features", min_split=2, share=0.5)
    model.stop_at = 0.0
    model.fit(rows_dataset(n=50))
    assert 1 <= model.n_trees < 1000
    assert model.n_trees == model.trees_.n_trees


def test_a_deadline_ends_training():
    with pytest.raises(OutOfTimeError):
        Forest(n_trees=50).fit(
            rows_dataset(n=50), progress=DeadlineProgress(Silent(), "forest", 0.0)
        )


def test_an_interrupt_ends_training_between_trees():
    class Interrupts(Silent, Progress):
        def advance(self, amount):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Forest(n_trees=50).fit(rows_dataset(n=50), progress=Interrupts())


def test_documents_without_labels_do_not_vote():
    data = rows_dataset(n=40)
    Y = data.Y.tolil()
    Y[7] = 0
    model = Forest(n_trees=3).fit(Dataset(Y.tocsr(), data.label_names, X=data.X))
    assert 7 not in model.numbers_
    assert len(model.numbers_) == 39


def test_new_documents_fall_into_leaves():
    texts = planted_texts()
    model = Forest(n_trees=20).fit(texts)
    n = model.n_kept
    new = [f"zebra {texts.texts[0]}"] * 3
    model.partial_fit(new, [["striped"]] * 3)
    assert model.n_kept == n + 3
    trees = model.trees_
    for document in range(n, n + 3):  # once in each tree
        assert (trees.documents == document).sum() == trees.n_trees
    assert "striped" in model.predict(new[:1], 5).names[0]


def test_labels_are_the_models_own():
    data = rows_dataset(n=40)
    model = Forest(n_trees=3).fit(data)
    before = model.predict(data, 7)
    data.Y.indices[:] = 0
    np.testing.assert_array_equal(model.predict(data, 7).scores, before.scores)


def test_similar_documents_share_leaves():
    data = planted_dataset()
    model = Forest(n_trees=20).fit(data)
    found = model.explain(data.X[3])
    similar = {each.number: each.similarity for each in found.neighbours}
    assert similar[3] == 1.0
    label = data.label_names[int(data.Y[3].indices[0])]
    near = model.explain(data.X[3], label).neighbours
    assert label in near[0].labels
    examples = model.find_examples(0, 3)
    assert all(data.label_names[0] in each.labels for each in examples)


# -- crafted files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forest") / "model"
    Forest(n_trees=4, cuts="features", min_split=2, share=0.5).fit(rows_dataset(n=60)).save(folder)
    return folder


@pytest.fixture(scope="module")
def saved_clusters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters") / "model"
    Forest(n_trees=10, cuts="clusters", min_split=2).fit(rows_dataset(n=60)).save(folder)
    return folder


def numbers_in(files, part):
    n = len(files.arrays["trees.thresholds"])
    return decode(files.arrays[f"trees.{part}"], n, part)


def spoil_feature(files):
    features = numbers_in(files, "features")
    features[3] = 12
    files.arrays["trees.features"] = encode(features)


def spoil_left(value):
    def spoil(files):
        left = numbers_in(files, "left")
        left[0] = value
        files.arrays["trees.left"] = encode(left)

    return spoil


def spoil_leaves(files):
    leaves = files.arrays["trees.leaves"].copy()
    leaves[0] += 1
    files.arrays["trees.leaves"] = leaves


def spoil_sizes(files):
    lengths = files.arrays["leaves.lengths"].copy()
    lengths[0], lengths[1] = 0, lengths[0] + lengths[1]
    files.arrays["leaves.lengths"] = lengths


def spoil_documents(files):
    files.arrays["numbers"] = files.arrays["numbers"][:-1]


def spoil_threshold(files):
    thresholds = files.arrays["trees.thresholds"].copy()
    thresholds[0] = np.nan
    files.arrays["trees.thresholds"] = thresholds


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_feature,
        spoil_left(0),
        spoil_left(10**6),
        spoil_leaves,
        spoil_sizes,
        spoil_documents,
        spoil_threshold,
    ],
)
def test_crafted_folders_are_refused(saved, tmp_path, spoil):
    files = read_folder(saved)
    spoil(files)
    write_folder(tmp_path / "crafted", files)
    with pytest.raises(ModelFileError, match="do not fit together"):
        load_model(tmp_path / "crafted")


def spoil_branches(part, value):
    def spoil(files):
        numbers = decode(files.arrays[f"trees.{part}"], files.arrays["trees.branches"].sum(), part)
        numbers[0] = value
        files.arrays[f"trees.{part}"] = encode(numbers)

    return spoil


def spoil_centres(files):
    files.arrays["centres.unit"] = files.arrays["centres.unit"][:-1]


@pytest.mark.parametrize(
    "spoil",
    [
        *(spoil_branches(part, value) for part in ("below", "spans") for value in (0, 1, 10**6)),
        spoil_leaves,
        spoil_sizes,
        spoil_centres,
    ],
)
def test_crafted_clusters_are_refused(saved_clusters, tmp_path, spoil):
    files = read_folder(saved_clusters)
    spoil(files)
    write_folder(tmp_path / "crafted", files)
    with pytest.raises(ModelFileError, match="do not fit together"):
        load_model(tmp_path / "crafted")
