"""Gains on held-out documents, and further members for the time that is left."""

import time

import numpy as np
import pytest
from planted import planted_dataset

from longtail import Fusion
from longtail.models.cost import Cost, Facts
from longtail.models.fusion.growth import SEED_STEP, STACKERS, Judge, grow
from longtail.models.fusion.limits import NO_LIMITS
from longtail.models.fusion.plan import Member, Plan, Scheme
from longtail.models.fusion.stacking import learn_stacking
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.progress import Silent
from longtail.topk import TopK

DATA = planted_dataset()
SCHEME = Scheme(1, 0.1, refit=False)


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def make_trainer(*members, budget=600.0, left_out=()):
    plan = Plan(members, dict.fromkeys(left_out, "no time"), SCHEME, budget)
    facts = Facts(300, 12, DATA.X.shape[1], DATA.X.nnz, has_texts=False, device="cpu")
    return MemberTrainer(
        DATA,
        DATA.X,
        plan,
        facts,
        device="cpu",
        seed=0,
        began=time.monotonic(),
        run_dir=None,
        resume=False,
        checkpoint_seconds=300.0,
        progress=Said(),
    )


def right_about(trainer, share, seed):
    """Return lists that have the right label first for a share of the held-out documents."""
    ((_, held),) = trainer.splits
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(12)[:10] for _ in held], np.int32)
    for i, row in enumerate(held):
        right = DATA.Y[row].indices
        if rng.random() < share:
            labels[i] = [*right, *(other for other in labels[i] if other not in right)][:10]
            labels[i] = list(dict.fromkeys([*labels[i], *range(12)]))[:10]
    scores = np.tile(np.linspace(0.9, 0.1, 10, dtype=np.float32), (len(held), 1))
    return [TopK(labels, scores)]


def make_member(name, *, seconds=1.0, epochs=5):
    model = name.split("-")[0]
    return Member(name, model, "", Cost(0.0, seconds / epochs, epochs) if epochs else Cost(seconds))


def hold(trainer, member, share, seed=0):
    return HeldOutMember(member, [None], right_about(trainer, share, seed))


def test_a_gain_is_what_is_lost_without_a_member():
    trainer = make_trainer()
    members = {
        "good": hold(trainer, make_member("glas"), 0.95, seed=1),
        "poor": hold(trainer, make_member("mnn"), 0.0, seed=2),
    }
    judge = Judge(trainer)
    gains = judge.gains(members)
    assert gains["good"] > 20
    assert gains["poor"] < 10
    alone = {"good": members["good"]}
    assert judge.gains(alone) == {"good": judge.precision(alone)}


def test_what_stacking_takes_anyway_is_no_time_for_each_document(monkeypatch):
    def take_long(*asked):
        time.sleep(0.3)
        return learn_stacking(*asked)

    monkeypatch.setattr("longtail.models.fusion.growth.learn_stacking", take_long)
    trainer = make_trainer()
    judge = Judge(trainer)
    judge.prepare({"good": hold(trainer, make_member("glas"), 0.95)})
    assert trainer.stacking * len(judge.rows) < 0.3 * STACKERS


def grow_from(monkeypatch, trainer, members, shares, seconds=1.0):
    """Let further members be as good as `shares` say; return the names that were tried."""
    tried = []

    def hold_out(self, member, width):
        tried.append(member)
        self.taken[member.name] = seconds
        share = shares.get(member.name)
        return None if share is None else hold(self, member, share, seed=len(tried))

    monkeypatch.setattr(MemberTrainer, "hold_out", hold_out)
    grow(trainer, members, Judge(trainer), lambda *asked: Cost(1.0), 10, NO_LIMITS)
    return tried


def test_another_seed_that_gains_is_taken_until_one_does_not(monkeypatch):
    trainer = make_trainer(make_member("glas"))
    members = {"glas": hold(trainer, make_member("glas"), 0.4, seed=100)}
    tried = grow_from(monkeypatch, trainer, members, {"glas-2": 0.99, "glas-3": 0.0})
    assert [member.name for member in tried] == ["glas-2", "glas-3"]
    assert [member.seed for member in tried] == [SEED_STEP, 2 * SEED_STEP]
    assert list(members) == ["glas", "glas-2"]
    assert any(line.startswith("glas-2 gains ") for line in trainer.progress.lines)
    assert any("glas-3 is left out, as it gains" in line for line in trainer.progress.lines)


def test_models_that_were_left_out_come_first(monkeypatch):
    trainer = make_trainer(make_member("glas"), left_out=["mnn"])
    members = {"glas": hold(trainer, make_member("glas"), 0.4, seed=100)}
    tried = grow_from(monkeypatch, trainer, members, {"mnn": 0.99})
    assert tried[0].name == "mnn"
    assert list(members) == ["glas", "mnn"]


def test_nothing_is_begun_that_does_not_fit(monkeypatch):
    trainer = make_trainer(make_member("glas"), budget=10.0)
    members = {"glas": hold(trainer, make_member("glas", seconds=60), 0.4)}
    assert grow_from(monkeypatch, trainer, members, {}) == []


def test_models_without_epochs_have_no_further_seeds(monkeypatch):
    trainer = make_trainer(make_member("linear", epochs=0))
    members = {"linear": hold(trainer, make_member("linear", epochs=0), 0.4)}
    assert grow_from(monkeypatch, trainer, members, {}) == []


def test_further_members_are_part_of_the_model(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from longtail import load_model
    from longtail.models.fusion import growth
    from longtail.models.fusion import plan as planning

    monkeypatch.setattr(growth, "WORTH", -100.0)
    monkeypatch.setattr(planning, "known_members", lambda: ["linear", "glas"])
    rounds = iter(range(3))
    find_next = growth._find_next
    monkeypatch.setattr(
        growth, "_find_next", lambda *args: find_next(*args) if next(rounds, 2) < 1 else None
    )
    data = planted_dataset(n=120)
    model = Fusion(budget="1h", device="cpu").fit(data)
    assert list(model.members_) == ["linear", "glas", "glas-2"]
    assert model.members_["glas-2"].seed == SEED_STEP
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert list(again.report_) == ["linear", "glas", "glas-2"]
    assert again.report_["glas"].n_bytes > 0
    assert np.array_equal(again.predict(data).scores, model.predict(data).scores)
