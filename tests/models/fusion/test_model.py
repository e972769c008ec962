import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset, planted_rows, planted_texts

from longtail import Fusion, evaluate, load_model, train
from longtail.errors import (
    DataError,
    ModelFileError,
    ParameterError,
    TrainingError,
    reraise_interrupt,
)
from longtail.models.base import Model
from longtail.models.cost import Cost, Facts
from longtail.models.fusion import weight
from longtail.models.fusion.explain import leave_out_words
from longtail.models.fusion.member import Member
from longtail.models.fusion.plan import Plan
from longtail.models.fusion.scheme import Scheme
from longtail.models.fusion.training import MemberTrainer, TimeEstimates
from longtail.models.fusion.worth import Judge
from longtail.models.knn.model import KNN
from longtail.models.lexical.model import Lexical
from longtail.models.linear.model import Linear
from longtail.models.relabel import add_label
from longtail.progress import DeadlineProgress, OutOfTimeError
from longtail.runtime.store import read_folder, write_folder
from longtail.text.tfidf import Tfidf

PARTS = "linear,knn"


class Listener:
    """A Progress that remembers what it was told."""

    def __init__(self):
        self.lines, self.stages = [], []

    def stage(self, name, total):
        self.stages.append(name)

    def advance(self, amount):
        pass

    def note(self, text):
        pass

    def say(self, text):
        self.lines.append(text)

    def said(self, member):
        return any(member in line for line in self.lines)


def spoil(monkeypatch, model_class, error):
    """Make every training of `model_class` fail."""

    def fail(self, X, Y, progress):
        raise error

    monkeypatch.setattr(model_class, "fit_rows", fail)


def test_the_plan_comes_first_then_what_each_part_took():
    heard = Listener()
    Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert heard.lines[0].startswith("Plan for 300 documents and 12 labels on the CPU, about ")
    assert heard.said("linear  about ")
    assert heard.said(
        "each member is trained 3 times, each time without another third of the documents, "
        "then once on all"
    )
    assert heard.said("On 300 held-out documents:")
    assert heard.said("  knn alone: P@1/3/5 ")
    assert heard.said("  stacked (logistic): P@1/3/5 ")
    assert heard.lines[-1].startswith("Trained in ")
    assert heard.stages[:2] == ["linear 1/3: classifiers", "linear 2/3: classifiers"]
    assert "linear: classifiers" in heard.stages


def test_only_members_that_propose_prepare_a_search(monkeypatch):
    prepared = []
    monkeypatch.setattr(
        Model, "prepare_search", lambda self, X, progress: prepared.append((self, X.shape[0]))
    )
    model = Fusion(members=PARTS).fit(planted_dataset())
    proposing = [model.members_[name] for name in model.proposers_]
    assert prepared == [(member, 300) for member in proposing]
    assert all(member.only_scores for member in model.members_.values())


def test_every_document_is_judged_by_parts_that_had_not_seen_it():
    model = Fusion(members=PARTS).fit(planted_dataset())
    assert sorted(model.held_out_.rows) == list(range(300))
    Y = planted_dataset().Y[model.held_out_.rows]
    assert evaluate(model.held_out_.top, Y)["P@1"] > 95
    assert model.calibration_ is None  # that is the recipe's part


def test_the_recipe_calibrates_on_what_the_fusion_held_out():
    trained = train(planted_dataset(), settings={"members": PARTS})
    assert trained.report["n_documents"] == 300
    assert trained.report["P@1"] > 95
    assert trained.model.calibration_.n_documents == 300
    assert trained.model.calibration_.error < 0.02


def test_texts_become_rows_once_for_all_parts():
    model = Fusion(members=PARTS).fit(planted_texts())
    assert model.features_ is not None
    assert all(member.features_ is None for member in model.members_.values())
    assert all(member.trained_on == "rows" for member in model.members_.values())


def test_a_part_that_fails_is_left_out_and_the_rest_goes_on(monkeypatch):
    spoil(monkeypatch, KNN, RuntimeError("no luck"))
    heard = Listener()
    model = Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert heard.said("knn is left out: RuntimeError: no luck")
    assert list(model.members_) == ["linear"]
    assert evaluate(model.predict(planted_dataset(seed=1)), planted_dataset(seed=1))["P@1"] > 95


def test_a_part_that_fails_on_all_documents_stays_as_it_was(monkeypatch):
    learn, calls = KNN.fit_rows, []

    def fail_at_last(self, X, Y, progress):
        calls.append(X.shape[0])
        if X.shape[0] == 300:
            raise MemoryError("too much")
        learn(self, X, Y, progress)

    monkeypatch.setattr(KNN, "fit_rows", fail_at_last)
    heard = Listener()
    model = Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert calls == [200, 200, 200, 300]
    assert heard.said(
        "knn stays as it is, trained on a part of the documents: MemoryError: too much"
    )
    assert list(model.members_) == ["linear", "knn"]


def test_time_that_was_set_aside_for_stacking_is_left_for_trainings_on_all(monkeypatch):
    judge = Judge._judge

    def seem_long(self, *asked):
        found = judge(self, *asked)
        self.trainer.stacking = 1e6  # seconds for each document
        return found

    monkeypatch.setattr(Judge, "_judge", seem_long)
    heard = Listener()
    Fusion(members=PARTS, budget="1m").fit(planted_dataset(), progress=heard)
    assert heard.said("knn is left out: it would take")
    assert not heard.said("linear stays as it is")


def in_compiled_code(stop):
    """Raise what numba makes of Ctrl-C inside compiled code."""
    try:
        raise stop
    except KeyboardInterrupt as inner:
        raise SystemError("CPUDispatcher(<function search>) returned a result") from inner


@pytest.mark.parametrize("at", [100, 200, 300])
def test_ctrl_c_in_compiled_code_is_no_failure_of_a_member(monkeypatch, at):
    """At 200 documents members are trained with some held out, at 300 with all."""
    learn, heard = KNN.fit_rows, Listener()

    def interrupt(self, X, Y, progress):
        if X.shape[0] >= at:
            in_compiled_code(KeyboardInterrupt())
        learn(self, X, Y, progress)

    monkeypatch.setattr(KNN, "fit_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert not heard.said("knn is left out")
    assert not heard.said("knn stays as it is")


def test_ctrl_c_while_a_member_predicts_or_stacking_is_learned(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(KNN, "predict_rows", lambda *args: in_compiled_code(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            Fusion(members=PARTS).fit(planted_dataset())
    monkeypatch.setattr(
        "longtail.models.fusion.learning.learn_stacking",
        lambda *args, **more: in_compiled_code(KeyboardInterrupt()),
    )
    with pytest.raises((KeyboardInterrupt, SystemError)) as stop:
        Fusion(members=PARTS).fit(planted_dataset())
    with pytest.raises(KeyboardInterrupt):
        reraise_interrupt(stop.value)


def test_another_error_in_compiled_code_is_a_members_failure(monkeypatch):
    spoil(monkeypatch, KNN, SystemError("out of luck"))
    heard = Listener()
    Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert heard.said("knn is left out: SystemError: out of luck")


def test_a_member_that_fails_half_way_leaves_no_trace(monkeypatch):
    learn, calls = KNN.fit_rows, []

    def fail_in_the_second_fold(self, X, Y, progress):
        calls.append(X.shape[0])
        if len(calls) == 2:
            raise ValueError("half-way")
        learn(self, X, Y, progress)

    monkeypatch.setattr(KNN, "fit_rows", fail_in_the_second_fold)
    heard = Listener()
    model = Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert calls == [200, 200]
    assert heard.said("knn is left out: ValueError: half-way")
    assert list(model.members_) == list(model.report_) == ["linear"]


def test_a_full_disk_costs_what_is_kept_and_not_the_training(monkeypatch, tmp_path):
    def write(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("longtail.models.fusion.training.write_folder", write)
    heard, model = Listener(), Fusion(members=PARTS)
    model.run_dir = tmp_path / "run"
    model.fit(planted_dataset(), progress=heard)
    notes = [line for line in heard.lines if "cannot be kept for --resume" in line]
    assert notes[0].startswith("Note: linear cannot be kept for --resume: ")
    assert "No space left on device" in notes[0]
    assert list(model.members_) == ["linear", "knn"]
    assert not list(tmp_path.iterdir())


def test_a_second_is_enough_for_one_member():
    heard = Listener()
    model = Fusion(budget="1s").fit(planted_dataset(n=2000), progress=heard)
    assert model.members_
    assert model.predict(planted_dataset().X[:3]).k == 5


def test_limits_leave_out_what_gains_least():
    heard = Listener()
    data = planted_dataset()
    whole = Fusion(members=PARTS).fit(data)
    sizes = {name: report.n_bytes for name, report in whole.report_.items()}
    limit = f"{(whole.to_files().n_bytes - min(sizes.values()) / 2) / 1000:.3f}kB"
    small = Fusion(members=PARTS, max_size=limit).fit(data, progress=heard)
    assert len(small.members_) == 1
    assert heard.said("too much to be within the limits, though it was named")
    assert heard.said("  together: about ")
    assert small.to_files().n_bytes < whole.to_files().n_bytes


def test_a_member_that_is_too_large_is_trained_in_a_cheaper_form(monkeypatch):
    whole = Linear().trees
    monkeypatch.setattr(
        weight,
        "weigh_member",
        lambda model, *more: weight.Weight(10**8 if model.trees == whole else 10**5, 1.0),
    )
    model = Fusion(members="linear", max_size="1MB").fit(planted_dataset(n=120))
    assert list(model.members_) == ["linear-fast"]
    assert model.members_["linear-fast"].trees < whole
    assert list(model.dropped_) == ["linear"]


def test_limits_that_cannot_be_met():
    with pytest.raises(ParameterError, match=r"max_size 1.0 kB cannot be met: .* allow "):
        Fusion(members=PARTS, max_size="1kB").fit(planted_dataset())
    with pytest.raises(ParameterError, match=r"max_latency 1e-06 ms cannot be met: .* takes"):
        Fusion(members=PARTS, max_latency="0.000001ms").fit(planted_texts())


def test_limits_hold_where_nothing_is_held_out():
    few = planted_dataset(n=15)
    heard = Listener()
    whole = Fusion(members=PARTS).fit(few, progress=heard)
    assert heard.said("no documents are held out")
    with pytest.raises(ParameterError, match=r"max_size 1.0 kB cannot be met: .* allow at least"):
        Fusion(members=PARTS, max_size="1kB").fit(few)
    sizes = {name: report.n_bytes for name, report in whole.report_.items()}
    limit = f"{sum(sizes.values()) / 1000:.3f}kB"  # which label names exceed
    small = Fusion(members=PARTS, max_size=limit).fit(few, progress=heard)
    (kept,) = small.members_
    assert sizes[kept] == min(sizes.values())
    assert list(small.dropped_) == [max(sizes, key=lambda name: sizes[name])]
    assert heard.said("too much to be within the limits")
    assert small.predict(few.X).k == whole.predict(few.X).k


def test_what_words_alone_take_is_refused_before_training(monkeypatch):
    spoil(monkeypatch, Linear, AssertionError("nothing should be trained"))
    with pytest.raises(
        ParameterError, match=r"max_size 0.1 kB cannot be met: what all models share, words and"
    ):
        Fusion(members="linear", max_size="0.1kB").fit(planted_texts())


def test_the_report_says_what_members_gain_weigh_and_take(tmp_path):
    heard = Listener()
    model = Fusion(members=PARTS).fit(planted_dataset(), progress=heard)
    assert heard.said("Members (gain: points of P@1, P@5 and PSP@5 on held-out documents):")
    for name in ("linear", "knn"):
        report = model.report_[name]
        assert heard.said(f"  {name}: {report.line()}")
        assert report.n_bytes > 1000
        assert report.milliseconds > 0
        assert report.seconds > 0
    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").report_ == model.report_
    files = read_folder(tmp_path / "model")
    files.config["report"]["linear"]["n_bytes"] = "many"
    write_folder(tmp_path / "broken", files)
    with pytest.raises(ModelFileError, match=r"report.linear.n_bytes must be"):
        load_model(tmp_path / "broken")


def test_members_that_do_not_pay_are_dropped_unless_they_are_named(monkeypatch, tmp_path):
    from longtail.models.fusion import eligible, worth

    monkeypatch.setattr(eligible, "known_members", lambda: ["linear", "knn"])
    monkeypatch.setattr(worth, "FREE_BYTES", 1.0)
    monkeypatch.setattr(worth, "PRICE", 1000.0)
    heard, data = Listener(), planted_dataset()
    model = Fusion(budget="10m").fit(data, progress=heard)
    (dropped,) = model.dropped_
    assert {dropped, *model.members_} == {"linear", "knn"}
    assert heard.said(f"{dropped} is dropped: it gains ")
    assert heard.said(f"  {dropped} (dropped): {model.dropped_[dropped].line()}")
    assert f"{dropped} (dropped): gains " in " ".join(model.make_card().notes)
    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").dropped_ == model.dropped_
    named = Fusion(members=PARTS).fit(data)
    assert list(named.members_) == ["linear", "knn"]
    assert not named.dropped_


def test_the_plan_alone_trains_nothing_to_the_end():
    lines = Fusion(members=PARTS).plan_lines(planted_dataset())
    assert lines[0].startswith("Plan for 300 documents and 12 labels on the CPU")
    assert not Fusion(members=PARTS).is_fitted


def test_members_are_trained_side_by_side_and_stopped_together():
    plan = Plan([], {}, Scheme(1, 0.1, refit=False), None)
    facts = Facts(300, 12, 36, 3000, has_texts=False, device="cuda")
    data = planted_dataset()
    trainer = MemberTrainer(
        data,
        data.X,
        plan,
        facts,
        device="cuda",
        seed=0,
        began=time.monotonic(),
        run_dir=None,
        resume=False,
        checkpoint_seconds=300.0,
        progress=Listener(),
    )
    linear, knn, glas = (Member(name, name, "", Cost(1)) for name in ("linear", "knn", "glas"))
    meet = threading.Barrier(2, timeout=30)

    def work(member):
        if member.name in ("linear", "glas"):
            meet.wait()  # both lanes are here at once
        return None if member.name == "knn" else member.name.upper()

    assert trainer.in_lanes(work, [linear, knn, glas]) == {"linear": "LINEAR", "glas": "GLAS"}

    def stop(member):
        if member.name == "glas":
            raise KeyboardInterrupt
        watched = DeadlineProgress(Listener(), "linear", np.inf, lambda: trainer._ended)
        for _ in range(3000):
            time.sleep(0.01)
            watched.advance(1)

    with pytest.raises(KeyboardInterrupt):
        trainer.in_lanes(stop, [linear, glas])


def test_no_part_works(monkeypatch):
    for model_class in (KNN, Linear):
        spoil(monkeypatch, model_class, RuntimeError("no luck"))
    with pytest.raises(TrainingError, match="no member of the fusion could be trained"):
        Fusion(members=PARTS).fit(planted_dataset())


def test_a_budget_that_runs_out_drops_what_is_left(monkeypatch):
    learn = Linear.fit_rows

    def take_long(self, X, Y, progress):
        time.sleep(0.4)
        learn(self, X, Y, progress)

    monkeypatch.setattr(Linear, "fit_rows", take_long)
    heard = Listener()
    model = Fusion(members=PARTS, budget="1s").fit(planted_dataset(), progress=heard)
    assert heard.said("knn is left out: it would take about ")
    assert heard.said("; a budget of ")
    assert list(model.members_) == ["linear"]


def test_estimates_follow_the_members_that_were_trained_in_the_same_place():
    estimates = TimeEstimates("cuda")
    linear, knn, glas, reader = (
        Member(name, name, "", Cost(rest, epoch, epochs))
        for name, rest, epoch, epochs in (
            ("linear", 99, 0, 0),
            ("knn", 10, 0, 0),
            ("glas", 9, 5, 4),
            ("attention-xml", 10, 5, 10),
        )
    )
    estimates.record(linear, seconds=399, trainings=2)  # planned 198
    assert estimates.expect(linear) == 199.5
    assert estimates.expect(knn) == pytest.approx(10 * 400 / 199)
    assert estimates.expect(reader) == 60
    estimates.record(glas, seconds=59, trainings=1)  # planned 29
    assert estimates.expect(reader) == pytest.approx(60 * 2)
    assert estimates.cost(reader) == Cost(20, 10, 10)
    on_cpu = TimeEstimates("cpu")
    on_cpu.record(linear, seconds=399, trainings=2)
    assert on_cpu.expect(glas) == 29  # the processor's seconds say nothing of torch's steps
    assert on_cpu.expect(knn) == pytest.approx(10 * 400 / 199)
    estimates.record(glas, seconds=10_000, trainings=1)  # no other member is as slow as that
    assert estimates.expect(reader) == 60 * 4


def test_a_part_is_stopped_when_the_budget_is_spent():
    limited = DeadlineProgress(Listener(), "glas", time.monotonic() - 1)
    with pytest.raises(OutOfTimeError, match="the budget is spent"):
        limited.advance(1)
    limited.note("still here")
    limited.say("nothing of this is shown")
    assert limited.progress.lines == []


def test_held_out_documents_without_labels_make_all_parts_count_alike(monkeypatch):
    X, Y = planted_rows(n=60)
    Y = Y.tolil()
    scheme = Scheme(1, 0.1, refit=True)
    monkeypatch.setattr("longtail.models.fusion.plan.choose_schemes", lambda n: [scheme])
    ((_, held),) = scheme.split(60, seed=0)
    Y[held] = 0
    heard = Listener()
    model = Fusion(members=PARTS).fit(X, Y.tocsr(), progress=heard)
    assert heard.said("The held-out documents carry no label: all members get the same weight")
    assert model.stacker_.name == "mean"
    assert model.held_out_ is None
    assert model.calibration_ is None


def test_a_few_documents_are_enough():
    X, Y = planted_rows(n=10)
    heard = Listener()
    model = Fusion(members=PARTS).fit(X, Y, progress=heard)
    assert heard.said(
        "no documents are held out, as 10 are too few; all members get the same weight"
    )
    assert model.predict(X).k == 5
    assert model.calibration_ is None


def test_a_single_labelled_document_cannot_be_held_out():
    X, Y = planted_rows(n=40)
    Y = Y.tolil()
    Y[1:] = 0
    heard = Listener()
    model = Fusion(members=PARTS).fit(X, Y.tocsr(), progress=heard)
    assert heard.said("linear is left out: of 2")
    assert heard.said("Nothing could be held out: all members get the same weight")
    assert list(model.members_) == ["linear", "knn"]
    assert model.predict(X[:1]).labels[0, 0] in Y[0].nonzero()[1]


def test_what_is_done_is_kept_for_a_run_that_goes_on(monkeypatch, tmp_path):
    data = planted_dataset()
    whole = Fusion(members=PARTS).fit(data)
    learn = KNN.fit_rows

    def interrupt(self, X, Y, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(KNN, "fit_rows", interrupt)
    stopped = Fusion(members=PARTS)
    stopped.run_dir = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(data)
    kept = sorted(folder.name for folder in (tmp_path / "run" / "members").iterdir())
    assert kept == ["linear-1", "linear-2", "linear-3"]

    monkeypatch.setattr(KNN, "fit_rows", learn)
    heard, resumed = Listener(), Fusion(members=PARTS)
    resumed.run_dir, resumed.resume = tmp_path / "run", True
    resumed.fit(data, progress=heard)
    assert not any(stage.startswith("linear 1/3") for stage in heard.stages)
    test = planted_dataset(seed=1)
    assert np.array_equal(resumed.predict(test).scores, whole.predict(test).scores)


def test_kept_parts_of_other_data_are_trained_again(tmp_path):
    for seed in (0, 1):
        heard, model = Listener(), Fusion(members="linear")
        model.run_dir, model.resume = tmp_path / "run", True
        model.fit(planted_dataset(seed=seed), progress=heard)
        assert "linear 1/3: classifiers" in heard.stages


def test_a_damaged_part_is_trained_again(tmp_path):
    model = Fusion(members="linear")
    model.run_dir, model.resume = tmp_path / "run", True
    model.fit(planted_dataset())
    (tmp_path / "run" / "members" / "linear-1" / "weights.safetensors").write_bytes(b"x")
    heard = Listener()
    model.fit(planted_dataset(), progress=heard)
    assert [s for s in heard.stages if "classifiers" in s] == ["linear 1/3: classifiers"]


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ParameterError, match="one process; start it without torchrun"):
        Fusion(members=PARTS).fit(planted_dataset())


def test_parts_that_read_texts_only_need_texts():
    with pytest.raises(
        DataError, match="the member attention-xml cannot be trained on feature rows"
    ):
        Fusion(members="linear,attention-xml").fit(planted_dataset())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"members": "linear,glass"}, "fusion has no member 'glass'; did you mean 'glas'"),
        ({"members": "fusion"}, "fusion has no member 'fusion'"),
        ({"budget": "ten minutes"}, "must be a time such as 90s, 10m or 2h"),
        (
            {"stacker": "magic"},
            "must be 'mean' or 'logistic' or 'boosted' or none. Got 'magic' instead",
        ),
        ({"device": "tpu"}, "The 'device' parameter of Fusion must be 'auto' or 'cpu' or 'cuda'"),
    ],
)
def test_parameters_out_of_range(parameters, message):
    with pytest.raises(ParameterError, match=message):
        Fusion(**parameters).fit(planted_dataset())


def test_parts_of_other_labels_are_not_opened(tmp_path):
    model = Fusion(members=PARTS).fit(planted_texts())
    model.save(tmp_path / "model")
    files = read_folder(tmp_path / "model")
    files.texts["inner.knn.label_names"] = [f"other {i}" for i in range(12)]
    write_folder(tmp_path / "broken", files)
    with pytest.raises(ModelFileError, match=r"inner.knn.label_names. cannot be a copy"):
        load_model(tmp_path / "broken")


@pytest.mark.parametrize("document_type", ["rows", "texts"])
def test_an_explanation_names_the_votes_and_the_words(document_type):
    data = planted_texts() if document_type == "texts" else planted_dataset()
    model = Fusion(members=PARTS).fit(data)
    document = data.texts[0] if document_type == "texts" else data.X[0]
    label = data.label_names[data.Y[0].indices[0]]
    found = model.explain(document, label)
    assert {(vote.member, vote.label) for vote in found.votes} == {
        ("linear", label),
        ("knn", label),
    }
    assert all(vote.rank is not None and vote.rank <= 3 for vote in found.votes)
    assert all(vote.weight > 0 for vote in found.votes)
    assert sum(map(abs, found.members.values())) == pytest.approx(1)
    own = {3 * data.Y[0].indices[0] + i for i in range(3)}
    first = next(term.name for term in found.terms if not term.name.endswith("…"))
    assert first in {f"word{i}" for i in own} | {f"feature {i}" for i in own}
    assert found.neighbours
    assert len({vote.label for vote in model.explain(document).votes}) == 5
    assert list(found.member_terms) == ["linear", "knn"]
    assert found.to_dict()["votes"][0]["member"] == "linear"
    assert found.to_dict()["member_terms"]["knn"][0]["term"] == found.member_terms["knn"][0].name
    assert "<th>linear</th>" in found.to_html()


def test_explaining_two_documents_or_an_unknown_label():
    model = Fusion(members="linear").fit(planted_dataset())
    with pytest.raises(DataError, match="one document can be explained at a time; got 2"):
        model.explain(planted_dataset().X[:2])
    with pytest.raises(ParameterError, match="the model knows no label 'x'"):
        model.explain(planted_dataset().X[0], "x")


def test_nearest_documents_are_shown_with_their_texts():
    data = planted_texts()
    near = Fusion(members=PARTS).fit(data).explain(data.texts[0]).neighbours
    assert near[0].text == data.texts[0][: len(near[0].text)]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_a_neural_part_keeps_its_checkpoints_below_the_run_folder(monkeypatch, tmp_path):
    from longtail.models.glas.model import GLaS

    folders = []
    monkeypatch.setattr(
        GLaS, "fit_rows", lambda self, X, Y, progress: folders.append(self.run_dir) or 1 / 0
    )
    model, heard = Fusion(members="linear,glas", device="cpu"), Listener()
    model.run_dir = Path(tmp_path / "run")
    model.fit(planted_dataset(), progress=heard)
    assert folders == [tmp_path / "run" / "members" / "glas-1.run"]
    assert heard.said("glas is left out: ZeroDivisionError")


def test_an_empty_row_gets_frequent_labels_with_their_shares():
    model = Fusion(members=PARTS).fit(planted_dataset())
    top = model.predict(sp.csr_matrix((1, model.n_features_), dtype=np.float32), k=2)
    counts = np.sort(model.training_counts_.label_counts)[::-1]
    np.testing.assert_allclose(top.scores[0], counts[:2] / 300, rtol=1e-6)


# -- updating ----------------------------------------------------------------------------------


def with_new_label(n, seed):
    """Return texts about words of their own, which carry a label that nobody knows."""
    data = planted_texts(n=n, seed=seed)
    texts = [f"{text} word1 word2" for text in data.texts]
    return texts, [["brand new"]] * n


def test_update_takes_in_documents_and_labels_at_once(tmp_path):
    known = planted_texts(n=300, seed=0)
    model = Fusion(members="linear,knn").fit(known)
    before = evaluate(model.predict(known), known)["P@1"]
    texts, labels = with_new_label(30, seed=5)
    listener = Listener()
    model.partial_fit(texts, labels, progress=listener)
    assert model.label_names_[-1] == "brand new"
    assert [len(member.label_names_) for member in model.members_.values()] == [
        len(known.label_names) + 1
    ] * 2
    assert model.training_counts_.n_documents == 330
    assert model.shares_[-1] == pytest.approx(30 / 330)
    found = model.predict(texts, k=3).names
    assert np.mean(["brand new" in row for row in found]) > 0.5
    assert evaluate(model.predict(known), known)["P@1"] > before - 5
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict(texts).scores, model.predict(texts).scores)


def test_members_that_cannot_be_updated_follow_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(Lexical, "can_update", False)
    known = planted_texts(n=300, seed=0)
    model = Fusion(members="linear,lexical").fit(known)
    texts, labels = with_new_label(30, seed=5)
    listener = Listener()
    model.partial_fit(texts, labels, progress=listener)
    assert listener.said("lexical: left as they are")
    n_known = len(known.label_names)
    assert [len(m.label_names_) for m in model.members_.values()] == [n_known + 1, n_known]
    assert "linear" in model.proposers_
    assert np.mean(["brand new" in row for row in model.predict(texts, k=4).names]) > 0.8
    scores = model.score(texts[:2], np.array([[n_known, 0], [-1, n_known]]))
    assert (scores[0] > 0).all()
    assert scores[1, 0] == 0
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict(texts).scores, model.predict(texts).scores)


@pytest.mark.parametrize("members", ["linear,lexical,knn", "forest,lexical", "glas,lexical,knn"])
def test_new_labels_keep_apart_from_one_that_was_added_by_its_name(members, tmp_path):
    """Other members do not have that label; their numbers for new ones would be too low."""
    if "glas" in members:
        pytest.importorskip("torch")
    known = planted_texts(n=300, seed=0)
    model = Fusion(members=members).fit(known)
    add_label(model, "zebra")
    text = f"{known.texts[0]} zebra"
    own = model.explain(text, "zebra").member_terms
    assert {name: terms[0].name for name, terms in own.items()} == {"lexical": "zebra"}
    texts, labels = with_new_label(30, seed=5)
    model.partial_fit(texts, labels)
    new = list(model.label_names_).index("brand new")
    for member in model.members_.values():
        assert member.training_counts_.padded(new + 1)[new] == 30
        assert list(member.label_names_) == list(model.label_names_)
    found = model.predict(texts, k=3).names
    assert np.mean(["brand new" in row for row in found]) > 0.4
    assert not any("zebra" in row for row in found)
    assert "zebra" in model.predict([text], k=5).names[0]
    assert model.explain(texts[0], "brand new").terms
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict(texts).scores, model.predict(texts).scores)
    model.partial_fit([text] * 30, [["zebra"]] * 30)
    assert model.predict([text], k=1).names == [["zebra"]]


def test_a_member_that_knows_no_word_of_the_new_documents_stays_as_it_is(monkeypatch):
    known = planted_texts(n=300, seed=0)
    model = Fusion(members="linear,knn").fit(known)
    texts, labels = with_new_label(30, seed=5)

    def refuse(self, X, Y, train, progress):
        raise DataError("no")

    monkeypatch.setattr(Linear, "update_rows", refuse)
    listener = Listener()
    model.partial_fit(texts, labels, progress=listener)
    assert listener.said("linear: left as it is: no")
    assert "knn" in model.proposers_
    assert np.mean(["brand new" in row for row in model.predict(texts, k=3).names]) > 0.5
    monkeypatch.setattr(KNN, "update_rows", refuse)
    with pytest.raises(DataError, match=r"^no$"):
        model.partial_fit(texts, labels)


def test_update_refines_members_that_can_train_on():
    known = planted_texts(n=300, seed=0)
    model = Fusion(members="linear,knn").fit(known)
    texts, labels = with_new_label(30, seed=5)
    model.partial_fit(texts, labels, train=True)
    assert np.mean(["brand new" in row for row in model.predict(texts, k=3).names]) > 0.5


def test_a_failed_update_leaves_all_members_as_they_were(monkeypatch):
    known = planted_texts(n=300, seed=0)
    model = Fusion(members="linear,knn").fit(known)
    before = model.predict(known)
    texts, labels = with_new_label(30, seed=5)

    def fail(self, X, Y, train, progress):
        raise TrainingError("no")

    monkeypatch.setattr(KNN, "update_rows", fail)
    with pytest.raises(TrainingError):
        model.partial_fit(texts, labels)
    after = model.predict(known)
    assert np.array_equal(after.labels, before.labels)
    assert np.array_equal(after.scores, before.scores)
    monkeypatch.setattr(KNN, "can_update", False)
    monkeypatch.setattr(Linear, "can_update", False)
    with pytest.raises(ParameterError, match=r"none of the members \(linear, knn\) can be updated"):
        model.partial_fit(texts, labels)


def test_a_word_of_which_only_the_beginning_is_known_is_taken_out_by_that():
    features = Tfidf(ngrams=1).fit(["farmers brew", "farming beer"])
    found = leave_out_words("Farmers in the farmhouse, beer", features)
    assert found.names == ["farmers", "beer", "farm…"]
    assert found.documents == [
        " in the farmhouse, beer",
        "Farmers in the farmhouse, ",
        " in the , beer",
    ]
