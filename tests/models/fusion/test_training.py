"""Members in training, within the time that there is."""

import time
from importlib.util import find_spec

import pytest
from made_up_members import make_member, make_trainer

from longtail.models.cost import Cost
from longtail.models.fusion.scheme import Scheme
from longtail.models.knn.model import KNN

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize(("seconds", "is_begun"), [(300.0, True), (1.3, True), (2.0, False)])
def test_a_rough_estimate_somewhat_too_long_is_begun_with_hope(seconds, is_begun):
    """Of 600 s some are set aside; the numbers are seconds, or times what is left."""
    member = make_member("knn", epochs=0)
    trainer = make_trainer(member)
    trainer.taken["linear"] = 1.0  # the first member is trained whatever it takes
    takes = seconds if seconds > 10 else seconds * trainer.time_for("cpu")
    found = trainer.hold_out(make_member("knn", seconds=takes, epochs=0), 5)
    assert (found is not None) == is_begun
    assert any("is left out: it would take" in line for line in trainer.progress.lines) != is_begun


def test_an_estimate_of_epochs_is_not_hoped_for_but_shortened():
    trainer = make_trainer(make_member("mnn"))
    trainer.taken["linear"] = 1.0
    member = make_member("mnn", seconds=1.3 * trainer.time_for("cpu"), epochs=10)
    assert trainer._may_hope(member, trainer.time_for("cpu")) is False
    assert trainer._fit_into_time(member, 1.0, trainer.time_for("cpu")).epochs < 10


def test_what_was_begun_with_hope_is_given_up_in_time():
    member = make_member("knn", seconds=100.0, epochs=0)
    trainer = make_trainer(member, budget=0.0)  # nothing is left
    trainer.taken["linear"] = 1.0
    limit = trainer._limit(trainer._new_model(member), member, None, 1.0)
    assert limit < trainer.deadline


@pytest.mark.parametrize(("others", "seconds"), [((), 150), (("mnn",), 100)])
def test_beyond_its_estimate_a_member_takes_only_what_later_ones_do_not_need(others, seconds):
    """A later one takes nearly all of the budget by its estimate."""
    member = make_member("glas", seconds=100.0)
    later = [make_member(name, seconds=600.0) for name in others]
    trainer = make_trainer(member, *later)
    model = trainer._new_model(member)
    trainer._limit(model, member, None, 1.0)
    assert model.stop_at - time.monotonic() == pytest.approx(seconds, abs=5)


@pytest.mark.parametrize(("alone", "seconds"), [(True, 95), (False, 57)])
def test_a_member_that_is_the_only_one_may_take_all_the_time(alone, seconds):
    member = make_member("linear", epochs=0)
    trainer = make_trainer(member, budget=100.0)
    if alone:
        trainer.splits = []
    model = trainer._new_model(member)
    trainer._limit(model, member, None, 1.0)
    assert model.stop_at - time.monotonic() == pytest.approx(seconds, abs=3)


def test_later_trainings_take_over_what_the_first_one_chose():
    """Else a stacker would read scores of another temperature than it learned from."""
    member = make_member("knn", epochs=0)
    trainer = make_trainer(member)
    found = trainer.hold_out(member, 5)
    assert found is not None
    chosen = found.model.choices
    assert chosen.keys() == {"n_neighbours", "temperature"}
    assert found.model.get_parameters()["temperature"] is None
    again = trainer.refit(member, None)
    assert again.choices == chosen
    assert {name: again.get_parameters()[name] for name in chosen} == chosen
    other = make_trainer(member)
    other._choices["knn"] = {"n_neighbours": 3, "temperature": 0.3}
    assert other.hold_out(member, 5).model.choices == other._choices["knn"]


def test_a_member_that_is_trained_once_stays_so_unless_time_is_left():
    member = make_member("glas", seconds=400.0, epochs=5)
    trainer = make_trainer(member)
    trainer.plan = trainer.plan._replace(scheme=Scheme(1, 0.1, refit=True))
    trainer.taken["linear"] = 1.0
    found = trainer.hold_out(member, 5)
    assert found.member.once, "there is no time for 1.9 trainings of 400 s"
    assert "glas" not in trainer._to_refit
    slow = found.member._replace(cost=Cost(0.0, 1e6, 5), preset="fast")
    assert trainer.refit(slow, found.model) is found.model
    again = trainer.refit(found.member, found.model)
    assert again is not found.model, "it took far less than was planned"
    assert again.training_counts_.n_documents > found.model.training_counts_.n_documents


def test_quick_members_are_trained_on_all_before_slow_ones_take_the_time():
    slow, quick = make_member("glas", seconds=500.0), make_member("knn", epochs=0)
    trainer = make_trainer(slow, quick, budget=60.0)
    trainer.taken = {"glas": 1.0, "knn": 1.0}
    trainer._to_refit = {"glas": slow, "knn": quick}
    assert trainer.time_for("cpu") < 0, "the slow one takes it all"
    found = trainer.refit(quick, None)
    assert found.training_counts_.n_documents == 300
    stays = trainer.refit(slow, found)
    assert stays is found
    assert trainer.progress.lines[-1].startswith("glas stays as it is, trained on a part of")


def test_a_kept_member_counts_what_its_training_took(monkeypatch, tmp_path):
    """Else the last training, on all documents, would get the seconds that loading takes."""
    learn, times = KNN.fit_rows, []

    def fit_slowly(self, X, Y, progress):
        times.append(time.monotonic())
        time.sleep(2)
        learn(self, X, Y, progress)

    monkeypatch.setattr(KNN, "fit_rows", fit_slowly)
    member = make_member("knn", seconds=2.0, epochs=0)
    assert make_trainer(member, run_dir=tmp_path).hold_out(member, 5) is not None
    n_trained, resumed = len(times), make_trainer(member, run_dir=tmp_path, resume=True)
    assert resumed.hold_out(member, 5) is not None
    assert len(times) == n_trained, "it was kept"
    assert resumed.taken["knn"] > 2
    assert resumed.estimates.expect(member) > 2


@needs_torch
@pytest.mark.parametrize(("epochs", "goes_on"), [(2, True), (3, False)])
def test_checkpoints_are_gone_on_from_if_they_fit_the_new_plan(epochs, goes_on, tmp_path):
    member = make_member("glas", seconds=100.0)._replace(epochs=2)
    trainer = make_trainer(member, run_dir=tmp_path)
    folder = tmp_path / "members" / "glas-1.run"
    trainer._keep = lambda *asked: None  # as if it were stopped just before the end
    trainer.checkpoint_seconds = 0
    assert trainer.hold_out(member, 5) is not None
    assert list(folder.glob("step-*"))

    member = member._replace(epochs=epochs)
    resumed = make_trainer(member, run_dir=tmp_path, resume=True)
    found = resumed.hold_out(member, 5)
    assert found is not None, resumed.progress.lines
    assert found.model.get_parameters()["epochs"] == epochs
    line = "glas 1/1 is trained from the start: no checkpoint of it fits"
    assert (line not in resumed.progress.lines) == goes_on
    assert (resumed.estimates.expect(member) > 0.9 * member.seconds) == goes_on
    assert not folder.exists()


def test_one_lane_may_end_a_training_while_another_looks_at_the_time(monkeypatch):
    trainer = make_trainer(make_member("knn"))
    trainer._to_refit = {name: make_member(name) for name in ("knn", "linear")}
    expect = trainer.estimates.expect

    def end_one(member):
        trainer._to_refit.pop("linear", None)
        return expect(member)

    monkeypatch.setattr(trainer.estimates, "expect", end_one)
    assert trainer.time_for("cpu") < 600


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_member_that_could_not_be_opened_again_is_left_out(has_folder, monkeypatch, tmp_path):
    fit = KNN.fit

    def fit_wrong(self, *asked, **more):
        fit(self, *asked, **more).training_counts_.label_counts[0] = 1000

    monkeypatch.setattr(KNN, "fit", fit_wrong)
    member = make_member("knn", epochs=0)
    trainer = make_trainer(member, run_dir=tmp_path if has_folder else None)
    assert trainer.hold_out(member, 5) is None
    assert trainer.progress.lines[-1].startswith(
        "knn is left out: it could not be opened again: label_counts must hold whole numbers from 0"
    )
    assert not list(tmp_path.iterdir())
