"""Further members for the time that is left."""

import numpy as np
import pytest
from made_up_members import hold, make_member, make_trainer
from planted import planted_dataset

from longtail import Fusion
from longtail.models.cost import Cost
from longtail.models.fusion import worth
from longtail.models.fusion.growth import grow
from longtail.models.fusion.limits import NO_LIMITS
from longtail.models.fusion.member import SEED_STEP
from longtail.models.fusion.training import MemberTrainer
from longtail.models.fusion.weight import Weight
from longtail.models.fusion.worth import Judge


class FreeScale:
    """Members weigh nothing."""

    def total(self, members):
        return Weight(0, 0.0)


FREE = FreeScale()


def grow_from(monkeypatch, trainer, members, shares, seconds=1.0):
    """Let further members be as good as `shares` say; return the names that were tried."""
    tried = []

    def hold_out(self, member, width):
        tried.append(member)
        assert len(tried) < 20, "it would not end"
        self.taken[member.name] = seconds
        share = shares.get(member.name)
        return None if share is None else hold(self, member, share, seed=len(tried))

    monkeypatch.setattr(MemberTrainer, "hold_out", hold_out)
    judge = Judge(trainer)
    grow(trainer, members, judge, FREE, lambda *asked: Cost(1.0), 10, NO_LIMITS, set())
    return tried


def test_another_seed_that_gains_is_taken_until_one_does_not(monkeypatch):
    monkeypatch.setattr(worth, "SECOND_SEED", worth.Rule(0.0, 1e6))  # documents alone decide
    trainer = make_trainer(make_member("glas"))
    members = {"glas": hold(trainer, make_member("glas"), 0.4, seed=100)}
    tried = grow_from(monkeypatch, trainer, members, {"glas-2": 0.99, "glas-3": 0.0})
    assert [member.name for member in tried] == ["glas-2", "glas-3"]
    assert [member.seed for member in tried] == [SEED_STEP, 2 * SEED_STEP]
    assert list(members) == ["glas", "glas-2"]
    assert any(line.startswith("glas-2 gains ") for line in trainer.progress.lines)
    assert any("glas-3 is left out: it gains" in line for line in trainer.progress.lines)


def test_another_seed_of_a_kind_has_the_name_of_the_kind(monkeypatch):
    """It joins the voice of its kind; and the kind is given up where it does not gain."""
    monkeypatch.setattr(worth, "SECOND_SEED", worth.Rule(0.0, 1e6))  # documents alone decide
    trainer = make_trainer(make_member("glas"), make_member("glas-wide"))
    members = {
        "glas": hold(trainer, make_member("glas"), 0.0, seed=100),
        "glas-wide": hold(trainer, make_member("glas-wide"), 0.4, seed=101),
    }
    tried = grow_from(monkeypatch, trainer, members, {"glas-wide-2": 0.99})
    seeds = {member.name: member.seed for member in tried}
    assert seeds == {"glas-2": SEED_STEP, "glas-wide-2": SEED_STEP, "glas-wide-3": 2 * SEED_STEP}
    assert len(tried) == 3


def test_models_that_were_left_out_come_first(monkeypatch):
    trainer = make_trainer(make_member("glas"), left_out=["mnn"])
    members = {"glas": hold(trainer, make_member("glas"), 0.4, seed=100)}
    tried = grow_from(monkeypatch, trainer, members, {"mnn": 0.99})
    assert tried[0].name == "mnn"
    assert list(members) == ["glas", "mnn"]


def test_another_kind_of_a_model_is_tried_though_the_first_gains_nothing(monkeypatch):
    monkeypatch.setattr(worth, "MEMBERS", worth.Rule(0.0, 1e6))  # documents alone decide
    trainer = make_trainer(make_member("glas", epochs=0), left_out=["forest"])
    members = {"glas": hold(trainer, make_member("glas", epochs=0), 0.4, seed=100)}
    tried = grow_from(monkeypatch, trainer, members, {"forest": 0.0, "forest-clusters": 0.99})
    assert [(member.name, member.preset) for member in tried] == [
        ("forest", "features"),
        ("forest-clusters", "clusters"),
    ]
    assert list(members) == ["glas", "forest-clusters"]


def test_a_member_that_was_reduced_is_tried_whole(monkeypatch):
    small = make_member("glas")._replace(preset="fast", cheaper=True)
    trainer = make_trainer(small)
    members = {"glas": hold(trainer, small, 0.4, seed=100)}
    tried = grow_from(monkeypatch, trainer, members, {"glas-2": 0.99})
    assert tried[0].name == "glas-2"
    assert not tried[0].reduced
    assert list(members) == ["glas", "glas-2"]


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
    from longtail.models.fusion import eligible, growth, learning
    from longtail.models.glas.model import GLaS

    monkeypatch.setattr(GLaS, "choose_epochs", lambda self, n_documents: 1)
    monkeypatch.setattr(worth.Worth, "pays", True)
    monkeypatch.setattr(learning, "find_unpaid", lambda *asked: {})
    monkeypatch.setattr(eligible, "known_members", lambda: ["linear", "glas"])
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
