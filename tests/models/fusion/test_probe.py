"""Members are measured on a few of the documents."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from planted import planted_dataset

from longtail.models.cost import Facts
from longtail.models.fusion.probe import (
    CLOCK,
    LEAST,
    SHARE,
    SLOWEST,
    Prober,
    Stopwatch,
    Trial,
)
from longtail.models.knn.model import KNN
from longtail.models.linear.model import Linear
from longtail.progress import OutOfTimeError


def make_prober(budget=60.0, n=600, **more):
    data = planted_dataset(n=n)
    facts = Facts(n, data.n_labels, data.X.shape[1], data.X.nnz, has_texts=False, device="cpu")
    began = time.monotonic()
    return Prober(data, data.X, facts, budget=budget, began=began, device="cpu", seed=0, **more)


@pytest.fixture
def clocks(monkeypatch):
    """The clocks of the measuring, and how far ahead they are: nothing waits for made-up work."""
    clocks = SimpleNamespace(ahead=0.0)
    clocks.process_time = lambda: time.process_time() + clocks.ahead
    clocks.monotonic = lambda: time.monotonic() + clocks.ahead
    monkeypatch.setattr("longtail.models.fusion.probe.time", clocks)
    return clocks


def work_until(end, clocks):
    clocks.ahead += max(end - clocks.process_time(), 0.0)


def test_steps_are_told_from_the_rest():
    watch = Stopwatch(60, by_processor=False)
    watch.stage("reading", 1)
    time.sleep(0.05)
    watch.advance(1)
    watch.stage("training", 30)
    time.sleep(0.05)  # the first step
    watch.advance(10)
    for _ in range(2):
        time.sleep(0.01)
        watch.advance(10)
    assert watch.passed == 30
    assert 0.001 <= watch.each < 0.003
    assert watch.seconds >= 0.12


def test_a_first_step_counts_if_there_is_no_other():
    watch = Stopwatch(60, by_processor=False)
    watch.stage("training", 10)
    time.sleep(0.02)
    watch.advance(10)
    assert 0.002 <= watch.each < 0.02


def test_measuring_stops_in_time():
    watch = Stopwatch(0.01, by_processor=False)
    time.sleep(0.02)
    with pytest.raises(OutOfTimeError, match="the time for measuring is over"):
        watch.advance(1)


def test_measuring_stops_by_the_clock_where_the_processor_is_busy_elsewhere(monkeypatch):
    watch = Stopwatch(60, by_processor=True, end=time.monotonic() - 1)
    with pytest.raises(OutOfTimeError, match="the time for measuring is over"):
        watch.advance(1)
    prober = make_prober(budget=10.0)
    prober._by_clock = CLOCK * 10.0
    monkeypatch.setattr(Prober, "_try", lambda *args: pytest.fail("there is no time for this"))
    assert prober("linear", None).seconds() > 0


def test_time_that_grows_with_the_documents(monkeypatch, clocks):
    learn = Linear.fit_rows

    def take_a_millisecond_each(self, X, Y, progress):
        end = clocks.process_time() + X.shape[0] / 1000
        learn(self, X[:64], Y[:64], progress)
        work_until(end, clocks)

    monkeypatch.setattr(Linear, "fit_rows", take_a_millisecond_each)
    monkeypatch.setattr(Linear, "has_estimate", classmethod(lambda cls: False))
    prober = make_prober(budget=3000.0, n=4000)
    cost = prober("linear", None)
    assert cost.epochs == 0
    assert cost.seconds() / prober._slowness == pytest.approx(4.0, rel=0.4)
    assert prober("linear", None) is cost  # once is enough


def test_a_sample_is_large_enough_to_tell_how_time_grows(monkeypatch):
    asked = []
    learn = KNN.fit_rows

    def count(self, X, Y, progress):
        asked.append(X.shape[0])
        learn(self, X, Y, progress)

    monkeypatch.setattr(KNN, "fit_rows", count)
    make_prober(budget=3000.0, n=8000)("knn", None)
    assert asked[0] == LEAST  # loads code
    assert asked[1] == KNN.least_sample == 3000


def test_code_that_only_larger_samples_load_is_no_training(monkeypatch, clocks):
    learn, loaded = Linear.fit_rows, []

    def load_code_once(self, X, Y, progress):
        end = clocks.process_time() + X.shape[0] / 1000
        if X.shape[0] > LEAST and not loaded:
            loaded.append(X.shape[0])
            end += 3.0
        learn(self, X[:64], Y[:64], progress)
        work_until(end, clocks)

    monkeypatch.setattr(Linear, "fit_rows", load_code_once)
    monkeypatch.setattr(Linear, "has_estimate", classmethod(lambda cls: False))
    prober = make_prober(budget=600.0, n=4000)  # 2.25 s for samples of one model
    cost = prober("linear", None)
    assert loaded
    assert cost.seconds() / prober._slowness == pytest.approx(4.0, rel=0.4)
    assert prober.loading >= 3.0
    assert prober.seconds <= SHARE * 600.0


@pytest.mark.parametrize(
    ("n", "seconds"), [(2_000, 3.6), (10_000, 31.6), (100_000, 100), (1e6, 100)]
)
def test_the_farther_from_the_samples_the_more_the_formula_counts(monkeypatch, n, seconds):
    """A document takes a millisecond, by the formula all take 100 s."""

    def try_it(self, model, n_documents, limit):
        return Trial(n_documents, n_documents / 1000, 1.0, 0.0, is_whole=True)

    monkeypatch.setattr(Prober, "_try", try_it)
    monkeypatch.setattr(Linear, "estimate_cost", classmethod(lambda cls, facts, preset=None: 100.0))
    prober = make_prober(budget=600.0)  # samples of 500 and of 1,000 documents
    prober._order = np.arange(n)
    prober.facts = prober.facts._replace(n_documents=int(n))
    assert prober("linear", None).seconds() == pytest.approx(seconds, rel=0.01)


def test_a_model_with_a_formula_of_its_own_is_told_from_others(monkeypatch):
    assert Linear.has_estimate()
    monkeypatch.delattr(Linear, "estimate_cost")
    assert not Linear.has_estimate()


def test_waiting_while_code_is_loaded_makes_no_machine_slow(monkeypatch):
    learn, waits = Linear.fit_rows, [0.5]

    def wait_once(self, X, Y, progress):
        time.sleep(waits.pop() if waits else 0)  # as for another process that compiles the same
        learn(self, X, Y, progress)

    monkeypatch.setattr(Linear, "fit_rows", wait_once)
    prober = make_prober(budget=3000.0)
    prober("linear", None)
    assert prober.loading >= 0.5
    assert prober.seconds > 0  # of trials after the first alone
    assert len(prober._slow) > 0


def test_code_that_labels_is_loaded_before_anything_is_measured(monkeypatch):
    done, learn, label = [], Linear.fit_rows, Linear.predict_documents

    def note_learning(self, *asked):
        done.append("learns")
        return learn(self, *asked)

    def note_labelling(self, *asked):
        done.append("labels")
        return label(self, *asked)

    monkeypatch.setattr(Linear, "fit_rows", note_learning)
    monkeypatch.setattr(Linear, "predict_documents", note_labelling)
    make_prober(budget=3000.0)("linear", None)
    assert done[:3] == ["learns", "labels", "learns"]
    assert done.count("labels") == 1


def test_one_trial_that_waits_makes_no_machine_slow():
    prober = make_prober(budget=3000.0)
    prober._slow = [1.1, 40.0, 1.2]
    assert prober._slowness == 1.2
    prober._slow = [40.0, 30.0, 50.0]
    assert prober._slowness == SLOWEST


def test_epochs_are_told_from_the_rest():
    pytest.importorskip("torch")
    cost = make_prober(budget=3000.0)("mnn", None)
    assert cost.epochs == 10
    assert 0 < cost.epoch < 60
    assert cost.rest >= 0


def test_a_short_budget_is_not_spent_on_measuring(monkeypatch):
    prober = make_prober(budget=10.0)
    prober.seconds = SHARE * 10.0
    monkeypatch.setattr(Prober, "_try", lambda *args: pytest.fail("there is no time for this"))
    assert prober("linear", None).seconds() > 0
    assert make_prober(budget=None)("linear", None).seconds() > 0


def test_what_is_out_of_reach_is_not_tried(monkeypatch):
    monkeypatch.setattr(Prober, "_try", lambda *args: pytest.fail("far too slow"))
    monkeypatch.setattr(Linear, "estimate_cost", classmethod(lambda cls, facts, preset=None: 1e6))
    assert make_prober()("linear", None).seconds() >= 1e6


def test_a_member_that_fails_on_a_sample_is_estimated(monkeypatch):
    def fail(self, X, Y, progress):
        raise RuntimeError("no luck")

    monkeypatch.setattr(Linear, "fit_rows", fail)
    assert make_prober()("linear", None).seconds() > 0


def test_ctrl_c_while_measuring_is_no_failure(monkeypatch):
    def interrupt(self, X, Y, progress):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            raise SystemError("returned a result with an exception set") from stop

    monkeypatch.setattr(Linear, "fit_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_prober()("linear", None)
