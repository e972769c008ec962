"""What members gain on held-out documents, and which do not pay."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from made_up_members import DATA, hold, make_member, make_trainer

from longtail.models.fusion import weight, worth
from longtail.models.fusion.stacking import learn_stacking
from longtail.models.fusion.training import HeldOutMember
from longtail.models.fusion.weight import Weight, add_up
from longtail.models.fusion.worth import (
    GIGABYTE,
    KILOBYTE,
    LEAST_GAIN,
    MEMBERS,
    PRICE,
    SECOND_SEED,
    STACKERS,
    Gain,
    Judge,
    Rule,
    Worth,
    find_price,
)

MANY = 10**12  # documents, for which a kilobyte each is free
MB = 1_000_000
NONE = Weight(0, 0.0)


class MadeUpScale:
    """Says what members weigh."""

    def __init__(self, **weights):
        self.weights = weights

    def total(self, members):
        return add_up(Weight(MB, 0.1), [self.weights[name] for name in members])


@pytest.fixture
def members():
    trainer = make_trainer()
    return trainer, {
        "good": hold(trainer, make_member("glas"), 0.95, seed=1),
        "poor": hold(trainer, make_member("mnn"), 0.0, seed=2),
    }


def test_a_gain_is_what_is_lost_without_a_member(members):
    trainer, held = members
    judge = Judge(trainer)
    assert judge.gain(held, "good").points > 20
    assert judge.gain(held, "poor").points < 10
    alone = {"good": held["good"]}
    assert judge.gain(alone, "good").points == judge.value(alone)


def test_points_are_the_mean_of_three_metrics_document_by_document(members):
    trainer, held = members
    judge = Judge(trainer)
    choice = judge._stack(held, judge._places, "logistic")
    wanted = [choice.report[name] for name in ("P@1", "P@5", "PSP@5")]
    assert len(judge.values(held)) == len(trainer.splits[0][1])
    assert judge.value(held) == pytest.approx(np.mean(wanted))


def test_what_stacking_takes_anyway_is_no_time_for_each_document(monkeypatch, members):
    def take_long(*asked):
        time.sleep(0.3)
        return learn_stacking(*asked)

    monkeypatch.setattr("longtail.models.fusion.worth.learn_stacking", take_long)
    trainer, held = members
    judge = Judge(trainer)
    judge.prepare({"good": held["good"]})
    assert trainer.stacking * len(judge.rows) < 0.3 * STACKERS


def test_fewer_documents_judge_where_there_is_little_time(monkeypatch):
    monkeypatch.setattr(worth, "LEAST_JUDGED", 5)
    judge = Judge(make_trainer(*[make_member("glas")] * 7, budget=100.0))
    assert len(judge.rows) == len(judge.trainer.splits[0][1]) == 30
    judge._keep_to_time(0.01)
    assert len(judge.rows) == 30
    judge._keep_to_time(1000.0)
    assert len(judge.rows) == 5


def test_fewer_documents_are_taken_from_all_over_the_file(monkeypatch, members):
    """Files are sorted at times, and their first documents carry the same labels."""
    monkeypatch.setattr(worth, "LEAST_JUDGED", 5)
    trainer, held = members
    ((_, rows),) = trainer.splits
    judge = Judge(trainer)
    judge._take(5 / 30)
    assert judge.rows.tolist() == rows[::6].tolist()
    asked = []

    def note(lists, splits, *more):
        asked.append((lists, splits))
        return learn_stacking(lists, splits, *more)

    monkeypatch.setattr(worth, "learn_stacking", note)
    judge.value(held)
    ((lists, ((_, judged),)),) = asked
    assert judged.tolist() == judge.rows.tolist()
    for name, (top,) in lists.items():
        assert np.array_equal(top.labels, held[name].lists[0].labels[::6])
        assert np.array_equal(top.scores, held[name].lists[0].scores[::6])


def test_the_first_members_of_two_lanes_prepare_once(monkeypatch, members):
    trainer, held = members
    judge, asked = Judge(trainer), []

    def prepare(members):
        asked.append(set(members))
        time.sleep(0.1)  # long enough for the other lane to come

    monkeypatch.setattr(judge, "_prepare", prepare)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(judge.prepare, [{name: each} for name, each in held.items()]))
    assert len(asked) == 1


def test_few_documents_leave_a_gain_to_what_is_usual():
    assert Gain(0.0, 0.01).expect(MEMBERS) == pytest.approx(0.0, abs=0.01)
    assert Gain(0.0, 50.0).expect(MEMBERS) == pytest.approx(MEMBERS.points, abs=0.01)
    assert Gain(2.0, 0.1).expect(MEMBERS) == pytest.approx(2.0, abs=0.1)


def test_a_seed_is_not_given_up_for_what_few_documents_say(monkeypatch, members):
    few, many = Gain(-0.3, 0.3), Gain(-0.3, 0.1)
    assert Worth(few, LEAST_GAIN, SECOND_SEED).pays
    assert not Worth(many, LEAST_GAIN, SECOND_SEED).pays

    trainer, held = members
    held["good-2"] = held["good"]
    monkeypatch.setattr(Judge, "gain", lambda self, members, name: few)
    found = {
        name: worth.find_worth(held, name, Judge(trainer), MadeUpScale(**dict.fromkeys(held, NONE)))
        for name in held
    }
    assert {name: each.rule for name, each in found.items()} == {
        "good": SECOND_SEED,
        "poor": MEMBERS,
        "good-2": SECOND_SEED,
    }
    assert {each.price for each in found.values()} == {LEAST_GAIN}


def test_a_line_says_what_is_expected_where_that_is_not_what_was_measured():
    after = "should gain 0.24 for what it weighs and takes"
    unsure = Worth(Gain(0.28, 0.06), 0.24, SECOND_SEED)
    assert not unsure.pays
    usual = "probably 0.23 by what members gain as a rule"
    assert unsure.line() == f"gains 0.28 ± 0.06, {usual}, and {after}"
    assert Worth(Gain(0.1, 0.06), 0.24, SECOND_SEED).line() == f"gains 0.10 ± 0.06, and {after}"


def test_seeds_gain_less_and_less():
    assert SECOND_SEED.after(1) == SECOND_SEED
    unknown = Gain(0.0, 100.0)  # of which documents say nothing
    paid = [Worth(unknown, LEAST_GAIN, SECOND_SEED.after(n)).pays for n in range(1, 6)]
    assert paid == [True, True, False, False, False]


def test_a_doubling_of_bytes_or_of_time_has_a_price():
    bytes_ = GIGABYTE * 100 * MB / 1e9
    assert find_price(Weight(200 * MB, 8.0), Weight(100 * MB, 8.0), MANY) == pytest.approx(
        PRICE + bytes_
    )
    assert find_price(Weight(100 * MB, 8.0), Weight(100 * MB, 4.0), MANY) == pytest.approx(PRICE)
    assert find_price(Weight(100 * MB, 8.0), Weight(100 * MB, 8.0), MANY) == 0
    assert find_price(Weight(4 * MB, 0.5), Weight(MB, 0.1), 1) == 0  # small and quick is free
    few = find_price(Weight(200 * MB, 8.0), Weight(100 * MB, 8.0), 100_000)  # a kilobyte for each
    assert few == pytest.approx(PRICE + bytes_ + KILOBYTE)
    assert find_price(Weight(100 * MB, 8.0), Weight(100 * MB, 4.0), MANY, "cuda") == 0
    slow = find_price(Weight(100 * MB, 40.0), Weight(100 * MB, 20.0), MANY, "cuda")
    assert slow == pytest.approx(PRICE)


def test_a_member_that_gains_nothing_for_its_weight_is_dropped(monkeypatch, members):
    trainer, held = members
    held["good-2"] = held["good"]
    judge = Judge(trainer)
    for name in ("MEMBERS", "SECOND_SEED"):  # what these few documents say is taken as it is
        monkeypatch.setattr(worth, name, Rule(0.0, 1e6))
    light = dict.fromkeys(held, Weight(MB // 10, 0.1))
    heavy = {**light, "poor": Weight(900 * MB, 0.1), "good-2": Weight(900 * MB, 0.1)}
    dropped = worth.find_unpaid(held, judge, MadeUpScale(**heavy))
    assert "good-2" in dropped
    assert "good" not in dropped
    twin = dropped["good-2"]
    assert twin.surplus < 0
    assert not twin.pays
    assert twin.line().startswith(f"gains {twin.gain.points:.2f} ± {twin.gain.error:.2f}, and ")
    one = {"good": held["good"]}
    assert worth.find_unpaid(one, judge, MadeUpScale(good=Weight(900 * MB, 9.0))) == {}


def judge_by(monkeypatch, logistic, boosted):
    """Let stackers say what three documents get without and with `poor`."""

    def judge(self, members, stacker):
        known = {"logistic": logistic, "boosted": boosted}[stacker]
        self.asked.append((stacker, *sorted(members)))
        return np.array(known["poor" in members], np.float64) * ("good" in members)

    monkeypatch.setattr(Judge, "_judge", judge)
    monkeypatch.setattr(Judge, "asked", [], raising=False)
    monkeypatch.setattr(worth, "ENOUGH", 1)
    monkeypatch.setattr(worth, "MEMBERS", Rule(0.0, 1e6))


NO_GAIN = ([50, 50, 50], [51, 49, 50])  # 0.00 ± 0.47
GAIN = ([50, 50, 50], [52, 50, 51])


def test_a_member_is_not_dropped_if_boosted_stacking_gains_by_it(monkeypatch, members):
    trainer, held = members
    scale = MadeUpScale(good=Weight(MB, 0.1), poor=Weight(MB, 0.1))
    judge_by(monkeypatch, NO_GAIN, GAIN)
    judge = Judge(trainer)
    assert worth.find_unpaid(held, judge, scale) == {}
    assert judge.gain(held, "poor").points == pytest.approx(0.5)  # the mean of both
    judge_by(monkeypatch, NO_GAIN, NO_GAIN)
    assert list(worth.find_unpaid(held, Judge(trainer), scale)) == ["poor"]


def test_second_opinions_are_asked_for_if_there_is_doubt_and_time(monkeypatch, members):
    trainer, held = members
    scale = MadeUpScale(good=Weight(MB, 0.1), poor=Weight(MB, 0.1))
    judge_by(monkeypatch, ([50, 50, 50], [49, 49, 49]), GAIN)  # no doubt
    judge = Judge(trainer)
    assert list(worth.find_unpaid(held, judge, scale)) == ["poor"]
    assert {stacker for stacker, *_ in judge.asked} == {"logistic"}
    judge_by(monkeypatch, NO_GAIN, GAIN)
    judge = Judge(make_trainer(budget=100.0))
    judge.trainer.stacking = 0.1  # seconds for a document and member: 5 s for a set of members
    assert list(worth.find_unpaid(held, judge, scale)) == ["poor"]
    assert {stacker for stacker, *_ in judge.asked} == {"logistic"}


def test_documents_without_labels_say_nothing(monkeypatch, members):
    trainer, held = members
    monkeypatch.setattr("longtail.models.fusion.worth.learn_stacking", lambda *asked: None)
    assert Judge(trainer).value(held) == 0
    assert DATA.Y.nnz


def test_seeds_take_as_long_as_the_quickest_of_them(monkeypatch):
    trainer, first = make_trainer(), make_member("glas")
    held = {
        "glas": hold(trainer, first, 0.9, seed=1),
        "glas-2": hold(trainer, first.with_seed(2, "another"), 0.9, seed=2),
        "mnn": hold(trainer, make_member("mnn"), 0.9, seed=3),
    }
    weighed = iter([Weight(MB, 15.0), Weight(2 * MB, 2.0), Weight(3 * MB, 9.0)])
    monkeypatch.setattr(weight, "weigh_member", lambda *args: next(weighed))
    monkeypatch.setattr(HeldOutMember, "model", None)
    found = weight.Scale(trainer, None).weigh(held)
    assert found["glas"] == Weight(MB, 2.0)
    assert found["glas-2"] == Weight(2 * MB, 2.0)
    assert found["mnn"] == Weight(3 * MB, 9.0)
