"""What is particular to the linear model; the contract tests try the rest."""

import numpy as np
import pytest
import scipy.sparse as sp
from numba import typeof
from planted import planted_dataset, planted_rows

from longtail import evaluate, load_model
from longtail.errors import ParameterError
from longtail.models import Linear
from longtail.runtime.parallel import set_threads

TREE = {"flat": 0, "branching": 3, "max_leaf": 4}


@pytest.mark.parametrize(
    "parameters",
    [
        {"flat": 100},
        {"balanced": True, **TREE},
        {"max_depth": 1, **TREE},
        {"loss": "logistic", "C": 5.0, **TREE},
        {"normalize": False, **TREE},
        {"bias": 0.0, **TREE},
        {"prune": 0.3, **TREE},
    ],
)
def test_every_option_learns_what_was_planted(parameters):
    test = planted_dataset(seed=1)
    top = Linear(**parameters).fit(planted_dataset()).predict(test)
    assert evaluate(top, test)["P@1"] > 95


def test_the_number_of_threads_changes_nothing():
    X, Y = planted_rows(n=400, n_labels=150)
    models = []
    for threads in (1, 3):
        set_threads(threads)
        models.append(Linear(**TREE).fit(X, Y))
    set_threads(None)
    for one, other in zip(models[0].trees_, models[1].trees_, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_code_is_compiled_once_for_trained_loaded_and_updated_trees(tmp_path):
    model = Linear(trees=3, **TREE).fit(planted_dataset())
    model.save(tmp_path / "model")
    kinds = {typeof(tree) for tree in (*model.trees_, *load_model(tmp_path / "model").trees_)}
    more = planted_dataset(seed=1)
    kinds |= {typeof(tree) for tree in model.partial_fit(more.X, more.Y).trees_}
    assert len(kinds) == 1


def test_more_trees_are_other_trees():
    model = Linear(trees=3, **TREE).fit(planted_dataset())
    leaves = {tuple(tree.leaves.tolist()) for tree in model.trees_}
    assert len(leaves) == 3


def test_trees_are_the_same_built_side_by_side_or_in_turn(monkeypatch):
    X, Y = planted_rows(n=200)
    together = Linear(flat=0, max_leaf=4).fit(X, Y)
    monkeypatch.setattr("longtail.models.linear.model.LARGE", 0)
    in_turn = Linear(flat=0, max_leaf=4).fit(X, Y)
    for one, other in zip(together.trees_, in_turn.trees_, strict=True):
        np.testing.assert_array_equal(one.leaves, other.leaves)
        np.testing.assert_array_equal(one.code, other.code)


def test_without_a_tree_there_is_one_of_them():
    assert len(Linear(trees=3).fit(planted_dataset()).trees_) == 1


def test_labels_that_nobody_has_seen_come_last():
    X, Y = planted_rows()
    Y = sp.hstack([Y, sp.csr_matrix((300, 40))]).tocsr()
    top = Linear(**TREE).fit(X, Y).predict(X, k=5)
    assert top.labels.max() < 12


def test_pruning_makes_the_model_smaller():
    X, Y = planted_rows()
    sizes = [len(Linear(prune=p, **TREE).fit(X, Y).trees_[0].code) for p in (0.0, 0.1, 0.5)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_presets_differ_in_their_trees():
    X, Y = planted_rows(n=600, n_labels=300)
    depth = {
        preset: len(Linear.from_settings({"preset": preset}).fit(X, Y).trees_[0].level)
        for preset in ("fast", "parabel", "bonsai")
    }
    assert depth == {"fast": 3, "parabel": 5, "bonsai": 4}


@pytest.mark.parametrize(
    ("parameters", "range_text", "got"),
    [
        ({"trees": 0}, "from 1 to 1000", "0"),
        ({"branching": 1}, "at least 2", "1"),
        ({"C": 0.0}, "above 0 and at most 1000000.0, or none", "0.0"),
        ({"C": float("nan")}, "above 0 and at most 1000000.0, or none", "nan"),
        ({"loss": "hinge"}, "'squared-hinge' or 'logistic'", "'hinge'"),
        ({"max_depth": -1}, "at least 0, or none", "-1"),
        ({"prune": -1.0}, "at least 0, or none", "-1.0"),
        ({"bias": 1e-40}, "0 or at least 0.001", "1e-40"),  # weights of it would be infinite
    ],
)
def test_parameters_out_of_range(parameters, range_text, got):
    (name,) = parameters
    with pytest.raises(ParameterError) as error:
        Linear(**parameters).fit(planted_dataset())
    expected = f"The '{name}' parameter of Linear must be {range_text}. Got {got} instead."
    assert str(error.value) == expected
