"""New documents and labels for a trained tree, and why a label is given or not."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_rows

from longtail import Dataset, evaluate, load_model
from longtail.errors import DataError, ModelFileError
from longtail.models import Linear
from longtail.models.linear import update
from longtail.models.linear.beam import find_paths

TREE = {"flat": 0, "branching": 3, "max_leaf": 4}
NAMES = [f"label {i}" for i in range(30)]


def dataset(rows, n_labels, seed=0):
    """Planted documents, some of which carry only labels below `n_labels`."""
    X, Y = planted_rows(n=900, n_labels=30, seed=seed)
    chosen = np.arange(900)[rows]
    known = np.asarray(Y[:, n_labels:].sum(axis=1)).ravel() == 0
    kept = chosen[known[chosen]] if n_labels < 30 else chosen
    return Dataset(X=X[kept], Y=Y[kept][:, :n_labels].tocsr(), label_names=NAMES[:n_labels])


OLD, NEW = dataset(slice(0, 500), 24), dataset(slice(500, 700), 30)
OLD_TEST, NEW_TEST = dataset(slice(700, 900), 24), dataset(slice(700, 900), 30)


@pytest.fixture(params=[TREE, {}], ids=["trees", "flat"])
def model(request):
    return Linear(**request.param).fit(OLD)


def precision(model, test):
    return evaluate(model.predict(test), test)["P@1"]


def state(model):
    return [array.copy() for tree in model.trees_ for array in tree]


@pytest.mark.parametrize("train", [False, True])
def test_new_labels_are_found_and_old_ones_are_not_lost(model, train, tmp_path):
    before = precision(model, OLD_TEST)
    model.partial_fit(NEW, train=train)
    assert list(model.label_names_) == NAMES
    assert precision(model, NEW_TEST) > 85
    assert precision(model, OLD_TEST) > before - 3
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert np.array_equal(loaded.predict(NEW_TEST).scores, model.predict(NEW_TEST).scores)


def test_documents_of_known_labels_alone_change_weights_only(model):
    shapes = [(tree.level.tolist(), tree.leaves.tolist()) for tree in model.trees_]
    model.partial_fit(OLD_TEST)
    assert [(tree.level.tolist(), tree.leaves.tolist()) for tree in model.trees_] == shapes
    assert precision(model, OLD_TEST) > 95


def test_the_same_documents_twice_add_no_label_and_lose_nothing(model):
    model.partial_fit(NEW)
    once = precision(model, NEW_TEST)
    model.partial_fit(NEW)
    assert len(model.label_names_) == 30
    assert precision(model, NEW_TEST) > once - 3


def test_labels_known_by_name_alone_come_to_life(model):
    X, Y = OLD.X, sp.hstack([OLD.Y, sp.csr_matrix((len(OLD), 6))]).tocsr()
    model = Linear(**TREE).fit(Dataset(X=X, Y=Y, label_names=NAMES))
    assert model.predict(NEW_TEST, k=3).labels.max() < 24
    model.partial_fit(NEW)
    assert precision(model, NEW_TEST) > 85


def test_untouched_blocks_stay_to_the_bit():
    model = Linear(**TREE, kept=0).fit(OLD)
    one = NEW.take(np.array([0]))
    before = model.trees_[0]
    model.partial_fit(one)
    after, paths = model.trees_[0], find_paths(model.trees_[0])
    touched = paths.parent[paths.leaf[[int(i) for i in one.Y.indices if i < 24]]]
    others = np.setdiff1d(np.arange(before.level[-3], before.level[-2]), touched)
    assert len(others)
    for node in others:
        old = before.bias[before.child[node] : before.child[node + 1]]
        new = after.bias[after.child[node] :][: len(old)]
        assert np.array_equal(old, new)


def test_the_documents_kept_are_a_sample_of_all():
    model = Linear(kept=50).fit(OLD)
    assert len(model.kept_) == 50
    model.partial_fit(NEW)
    assert len(model.kept_) == 50
    n_new = int((model.kept_.Y[:, 24:].sum(axis=1) > 0).sum())
    assert 0 < n_new < 40
    assert model.kept_.Y.shape[1] == 30


@pytest.mark.parametrize("field", ["kept.X.columns", "kept.X.codes", "kept.Y.lengths"])
def test_kept_documents_that_do_not_fit_are_refused(field):
    files = Linear(**TREE).fit(OLD).to_files()
    files.arrays[field] = files.arrays[field][:-1]
    with pytest.raises(ModelFileError, match="do not fit together"):
        Linear.from_files(files, "model")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_what_goes_wrong_leaves_the_model_as_it_was(model, failure, monkeypatch):
    before, names = state(model), list(model.label_names_)

    def fail(*args):
        raise failure

    monkeypatch.setattr(update, "train_node", fail)
    with pytest.raises(failure):
        model.partial_fit(NEW)
    assert all(np.array_equal(a, b) for a, b in zip(before, state(model), strict=True))
    assert list(model.label_names_) == names


def test_documents_without_a_known_feature_are_refused(model):
    empty = sp.csr_matrix((3, OLD.X.shape[1]), dtype=np.float32)
    with pytest.raises(DataError, match="has both a label and a feature"):
        model.partial_fit(Dataset(X=empty, Y=NEW.Y[:3], label_names=NAMES))


# -- explaining -----------------------------------------------------------------------------------


def test_words_and_constants_add_up_to_the_margins_of_the_path(model):
    row = OLD_TEST.X[0]
    weights = model.explain_row(row, 5)
    total = 0.0
    for tree, paths in zip(model.trees_, model._find_paths(), strict=True):
        rows = model.read_rows(row).rows
        node = paths.leaf[5]
        while paths.parent[node] >= 0:
            parent = paths.parent[node]
            for feature, value in zip(rows.columns, rows.values, strict=True):
                for place in range(tree.row[feature], tree.row[feature + 1]):
                    cells = slice(tree.start[place], tree.start[place + 1])
                    own = tree.code[cells][tree.offset[cells] == node - tree.child[parent]]
                    is_near = tree.node[place] == parent
                    total += float(value * is_near * own.sum() * tree.unit[node])
            node = parent
    assert weights.sum() == pytest.approx(total / len(model.trees_), abs=1e-4)


def test_a_label_that_was_not_given_says_how_far_it_is(model):
    row = OLD_TEST.X[:1]
    top = model.predict(row, k=24)
    label = int(top.labels[0][top.labels[0] >= 0][-1])
    found = model.explain(row, NAMES[label])
    score = model.score(row, [[label]])[0, 0]
    assert found.notes[0].startswith(f"Score {score:.3f}, rank ")
    best = model.explain(row, NAMES[int(top.labels[0, 0])])
    assert "rank 1;" in best.notes[0]
    assert sum(term.weight for term in best.terms) > sum(term.weight for term in found.terms)


def test_a_label_outside_the_beam_is_explained_too():
    model = Linear(**TREE, beam=1).fit(OLD)
    row = OLD_TEST.X[:1]
    reached = np.concatenate(model._reach(row))
    outside = int(np.setdiff1d(np.arange(24), reached)[0])
    found = model.explain(row, NAMES[outside])
    assert "of 3 trees its branch is not among the best 1 (beam)" in found.notes[1]
    assert "behind the first" in found.notes[0]


def test_a_label_that_nobody_carries_is_never_given():
    Y = sp.hstack([OLD.Y, sp.csr_matrix((len(OLD), 1))]).tocsr()
    model = Linear(**TREE).fit(Dataset(X=OLD.X, Y=Y, label_names=NAMES[:25]))
    assert "No training document carries" in model.explain(OLD.X[:1], "label 24").notes[0]
