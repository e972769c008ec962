"""Fewer passes where there is no time for all."""

import numpy as np
import pytest
from planted import planted_rows

from longtail import evaluate
from longtail.models import Linear
from longtail.models.linear import training
from longtail.models.linear.training import LEAST_PASSES, Pace


@pytest.fixture
def now(monkeypatch):
    """Return the time in a list, to be changed."""
    time = [100.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: time[0])
    return time


def test_without_a_limit_all_passes_are_made(now):
    pace = Pace(None, effort=10.0, most=8)
    pace.count(5.0, 5.0)
    now[0] += 1e6
    assert pace.choose_passes() == 8


def test_passes_are_as_many_as_there_is_time_for(now):
    pace = Pace(150.0, effort=10.0, most=8)
    assert pace.choose_passes() == 8, "nothing is known before the first block is done"
    now[0] += 10
    pace.count(
        2.0, 2.0
    )  # five seconds for each; eight are left, which would take the time there is
    assert pace.choose_passes() == 8
    now[0] += 20  # now fifteen seconds for each, and 20 seconds for eight
    assert pace.choose_passes() == LEAST_PASSES
    pace.count(4.0, 6.0)  # made with fewer passes; five seconds for each, two are left
    assert pace.choose_passes() == 8
    now[0] += 15  # 7.5 for each, five seconds for two of them
    assert pace.choose_passes() == 2
    now[0] += 100
    assert pace.choose_passes() == LEAST_PASSES


def test_a_tree_without_time_is_finished_with_few_passes(monkeypatch):
    made = []
    train = training.TreeWork.train

    def note(work, number, scratch, passes=None):
        made.append(passes)
        return train(work, number, scratch, passes)

    monkeypatch.setattr(training.TreeWork, "train", note)
    X, Y = planted_rows(n=2000, n_labels=60)
    settings = {"trees": 1, "flat": 0, "branching": 4, "max_leaf": 4}
    whole = Linear(**settings).fit(X, Y)
    assert set(made) == {15}
    made.clear()
    model = Linear(**settings)
    model.stop_at = 0.0
    model.fit(X, Y)
    assert made[-1] == LEAST_PASSES < made[0] == 15
    reached, most = (evaluate(each.predict(X, k=1), Y)["P@1"] for each in (model, whole))
    assert reached > 0.8 * most
    assert not np.array_equal(model.trees_[0].code, whole.trees_[0].code)
