"""What training chooses from the data."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_rows

from longtail.models import Linear
from longtail.models.linear.choices import (
    RULES,
    Costs,
    choose_demand,
    choose_passes,
    choose_prune,
    choose_tolerance,
)
from longtail.models.linear.solver import Settings
from longtail.models.linear.trial import LEAST, try_costs
from longtail.progress import SILENT
from longtail.runtime.rows import scale_to_unit

STEEP, EVEN = RULES.values()


def test_labels_with_few_documents_get_a_larger_C():
    C = STEEP.of_labels(np.array([0, 1, 20, 200, 10**6]))
    assert C[0] == C[1] > C[2] > C[3] == C[4] == np.float32(0.4)
    assert C[1] == pytest.approx(0.4 * 200**0.4)


def test_nodes_above_frequent_labels_get_a_larger_C_than_these():
    root, cluster, label = STEEP.of_levels([np.array([1000])] * 3)
    assert root == cluster == np.float32(0.5)
    assert label == np.float32(0.4)


def test_the_even_rule_gives_frequent_labels_more_and_rare_ones_less():
    (few, many), (few_even, many_even) = (
        rule.of_labels(np.array([1, 1000])) for rule in (STEEP, EVEN)
    )
    assert many < many_even < few_even < few


def test_what_is_given_is_taken():
    assert Costs.constant(0.7).of_levels([np.array([5])] * 2) == [np.float32(0.7)] * 2
    assert choose_prune(0.0, sp.csr_matrix((1, 1)), flat=True) == 0.0
    assert choose_passes(3, 3) == 3
    assert choose_tolerance(0.1, 3) == 0.1


def words_of(n, n_labels, noise, seed=0):
    """Return documents of one label each; `noise` is how often a document has another's label."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(n_labels, size=n)
    own = rng.integers(20, size=(n, 4)) + 20 * topics[:, None]
    common = 20 * n_labels + rng.integers(200, size=(n, 10))
    columns = np.concatenate([own, common], axis=1)
    X = sp.csr_matrix((np.ones(columns.size), columns.ravel(), np.arange(0, 14 * n + 1, 14)))
    labels = np.where(rng.random(n) < noise, rng.integers(n_labels, size=n), topics)
    Y = sp.csr_matrix((np.ones(n, np.float32), (np.arange(n), labels)), shape=(n, n_labels))
    return scale_to_unit(sp.csr_matrix(X, dtype=np.float32)), Y


def test_a_trial_takes_the_larger_C_where_words_are_right_and_the_smaller_one_amid_noise():
    settings = Settings(False, 1.0, 0.5, 8, 0.0)
    timid, bold = Costs.constant(1e-4), Costs.constant(2.0)
    X, Y = words_of(3000, 40, noise=0.0)
    assert [
        try_costs(X, Y, both, settings, 0, SILENT) for both in ((timid, bold), (bold, timid))
    ] == [1, 0]
    X, Y = words_of(3000, 40, noise=0.7)
    assert try_costs(X, Y, (Costs.constant(50), Costs.constant(0.05)), settings, 0, SILENT) == 1


def test_a_trial_of_what_is_the_same_or_on_few_documents_changes_nothing():
    settings = Settings(False, 1.0, 0.5, 8, 0.0)
    X, Y = words_of(3000, 40, noise=0.0)
    assert try_costs(X, Y, (STEEP, STEEP), settings, 0, SILENT) == 0
    few = slice(0, LEAST - 1)
    both = Costs.constant(1e-4), Costs.constant(2.0)
    assert try_costs(X[few], Y[few], both, settings, 0, SILENT) == 0


def test_the_rule_that_a_trial_chose_is_said_kept_and_used_by_updates(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.models.linear.model.try_costs", lambda *given: 1)
    X, Y = planted_rows(n=400, n_labels=10)
    assert Linear().fit(X, Y).choices == {"C_rule": "steep"}, "without a tree nothing is tried"
    model = Linear(flat=0).fit(X, Y)
    assert model.choices == {"C_rule": "even"}
    assert "C is 0.8 for labels of many documents, up to 2.3" in model.describe_training()[0]
    given = Linear(flat=0, C_rule="even").fit(X, Y)
    np.testing.assert_array_equal(given.trees_[0].bias, model.trees_[0].bias)
    from longtail import load_model

    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").choices == model.choices
    assert Linear(flat=0, C=1.0).fit(X, Y).choices == {}


def test_small_weights_of_long_documents_stay():
    short, long = (scale_to_unit(sp.csr_matrix(np.ones((4, n), np.float32))) for n in (10, 400))
    assert choose_prune(None, short, flat=False) == 0.1
    assert choose_prune(None, long, flat=False) == pytest.approx(1.1 / 20)
    empty = sp.csr_matrix((4, 10), dtype=np.float32)
    assert choose_prune(None, empty, flat=False) == 0.0


def test_more_weights_stay_without_a_tree():
    short, long = (scale_to_unit(sp.csr_matrix(np.ones((4, n), np.float32))) for n in (10, 400))
    assert choose_prune(None, short, flat=True) == 0.05
    assert choose_prune(None, long, flat=True) == pytest.approx(0.85 / 20)
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


def test_several_trees_take_fewer_passes_and_end_sooner():
    assert choose_passes(None, 1) > choose_passes(None, 3)
    assert choose_tolerance(None, 1) < choose_tolerance(None, 3)


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
