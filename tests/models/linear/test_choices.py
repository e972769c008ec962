"""What training chooses from the data."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_rows

from longtail.models import Linear
from longtail.models.linear.choices import (
    choose_C,
    choose_C_of_levels,
    choose_demand,
    choose_passes,
    choose_prune,
)
from longtail.runtime.rows import scale_to_unit


def test_labels_with_few_documents_get_a_larger_C():
    C = choose_C(None, np.array([0, 1, 20, 200, 10**6]))
    assert C[0] == C[1] > C[2] > C[3] == C[4] == np.float32(0.4)
    assert C[1] == pytest.approx(0.4 * 200**0.4)


def test_nodes_above_frequent_labels_get_a_larger_C_than_these():
    root, cluster, label = choose_C_of_levels(None, [np.array([1000])] * 3)
    assert root == cluster == np.float32(0.5)
    assert label == np.float32(0.4)
    assert choose_C_of_levels(0.7, [np.array([5])] * 2) == [np.float32(0.7)] * 2


def test_what_is_given_is_taken():
    assert choose_C(0.7, np.array([1, 1000])).tolist() == [np.float32(0.7)] * 2
    assert choose_prune(0.0, sp.csr_matrix((1, 1)), flat=True) == 0.0
    assert choose_passes(3, 3) == 3


def test_small_weights_of_long_documents_stay():
    short, long = (scale_to_unit(sp.csr_matrix(np.ones((4, n), np.float32))) for n in (10, 400))
    assert choose_prune(None, short, flat=False) == 0.1
    assert choose_prune(None, long, flat=False) == pytest.approx(0.85 / 20)
    empty = sp.csr_matrix((4, 10), dtype=np.float32)
    assert choose_prune(None, empty, flat=False) == 0.0


def test_more_weights_stay_without_a_tree():
    short, long = (scale_to_unit(sp.csr_matrix(np.ones((4, n), np.float32))) for n in (10, 400))
    assert choose_prune(None, short, flat=True) == 0.05
    assert choose_prune(None, long, flat=True) == choose_prune(None, long, flat=False)
    X, Y = planted_rows(n=400, n_labels=10)
    flat, tree = (Linear(flat=most).fit(X, Y) for most in (10, 9))
    assert flat.prune_ < tree.prune_


def test_more_is_demanded_of_frequent_labels():
    demand = choose_demand(np.array([0, 1, 10, 1000]))
    assert demand[0] == demand[1] == 0 < demand[2] < demand[3]
    assert demand[3] == pytest.approx(0.02 * np.log(1000))


def test_the_demand_is_part_of_a_label_s_bias(monkeypatch):
    X, Y = planted_rows(n=400, n_labels=10)
    usual = Linear().fit(X, Y).trees_[0]
    monkeypatch.setattr("longtail.models.linear.choices.DEMAND", 0)
    without = Linear().fit(X, Y).trees_[0]
    counts = np.asarray(Y.sum(axis=0)).ravel()[usual.leaves]
    np.testing.assert_allclose(without.bias[1:] - usual.bias[1:], 0.02 * np.log(counts), rtol=1e-3)


def test_several_trees_take_fewer_passes():
    assert choose_passes(None, 1) > choose_passes(None, 3)


def test_a_given_C_changes_the_weights_of_rare_labels_only_where_it_differs():
    X, Y = planted_rows(n=400, n_labels=10)
    chosen, same, other = (Linear(C=C).fit(X, Y).trees_[0] for C in (None, 0.4, 2.0))
    assert not np.array_equal(chosen.bias, same.bias)
    assert not np.array_equal(chosen.bias, other.bias)


def test_the_choice_is_said_stored_and_shown(tmp_path):
    said = []

    class Listener:
        def say(self, text):
            said.append(text)

        def stage(self, name, total):
            pass

        def advance(self, amount):
            pass

    X, Y = planted_rows()
    model = Linear().fit(X, Y, progress=Listener())
    (line,) = [text for text in said if text.startswith("Chosen: C is 0.4")]
    assert f"weights below {model.prune_:.2g} are left out" in line
    assert model.make_card().notes == [line]
    model.save(tmp_path / "model")
    from longtail import load_model

    assert load_model(tmp_path / "model").prune_ == model.prune_
    assert Linear(C=1.0, prune=0.1).fit(X, Y).describe_training() == []
