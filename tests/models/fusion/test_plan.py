import numpy as np
import pytest
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.errors import ParameterError
from longtail.models import get_model_class
from longtail.models.cost import Cost, Facts, format_seconds
from longtail.models.fusion.eligible import find_facts, find_order, parse_members
from longtail.models.fusion.limits import Limits
from longtail.models.fusion.member import Member
from longtail.models.fusion.plan import (
    LEAST_EPOCHS,
    USABLE,
    find_budget,
    find_form,
    make_plan,
    parse_budget,
)
from longtail.models.fusion.scheme import NOTHING_HELD_OUT, Scheme, choose_schemes
from longtail.models.registry import BUILT_IN

ALL = ("linear", "knn", "attention-xml", "glas", "mnn", "dxml", "rank-ae")
ROWS = tuple(name for name in ALL if name != "attention-xml")
SMALL = Facts(4880, 159, 1836, 335_000, has_texts=False, device="cpu")
LARGE = Facts(475_974, 25_018, 300_000, 6_000_000, has_texts=True, device="cpu")

# Seconds of all that is no epoch, of an epoch, and epochs, for models and their cheaper presets.
COSTS = {
    ("linear", None): Cost(10),
    ("linear", "fast"): Cost(4),
    ("knn", None): Cost(5),
    ("attention-xml", None): Cost(20, 30, 10),
    ("attention-xml", "small"): Cost(10, 5, 10),
    ("glas", None): Cost(5, 10, 5),
    ("glas", "fast"): Cost(5, 3, 5),
    ("glas", "large"): Cost(5, 40, 4),
    ("mnn", None): Cost(5, 2, 10),
    ("dxml", None): Cost(20, 2, 10),
    ("rank-ae", None): Cost(5, 5, 10),
}


ONCE, TENTH = Scheme(1, 0.0, refit=False), Scheme(1, 0.1, refit=True)
GLAS = Member("glas", "glas", "", COSTS["glas", None])


def measure(name, preset):
    return COSTS[name, preset]


def plan_for(facts, usable, budget, **more):
    return make_plan(facts, usable, None, budget, measure, **more)


def forms_of(plan):
    return {member.name: (member.preset, member.epochs) for member in plan.members}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), (" 1.5 h ", 5400)]
)
def test_a_budget_is_a_time(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "0s", "10 minutes", "1d"])
def test_a_budget_that_is_none(text):
    with pytest.raises(ParameterError, match="must be a time such as 90s, 10m or 2h"):
        parse_budget(text)


def test_only_named_members_have_no_limit():
    assert find_budget(None, None) == 600
    assert find_budget(None, "linear") is None
    assert find_budget("1m", "linear") == 60


def test_times_are_shown_as_people_say_them():
    shown = [format_seconds(seconds) for seconds in (0.2, 45, 200, 7500)]
    assert shown == ["1 s", "45 s", "3 min", "2 h 5 min"]


def test_few_documents_are_folded_many_are_held_out_once():
    assert choose_schemes(19)[0] == NOTHING_HELD_OUT
    assert choose_schemes(4880)[0] == Scheme(3, 1 / 3, refit=True)
    assert choose_schemes(33_485)[0] == Scheme(1, 0.1, refit=True)
    assert choose_schemes(475_974) == [Scheme(1, 0.02, refit=False)]
    assert choose_schemes(2_000_000) == [Scheme(1, 0.005, refit=False)]


def test_each_document_is_held_out_by_one_fold():
    splits = Scheme(3, 1 / 3, refit=True).split(100, seed=0)
    assert sorted(np.concatenate([held for _, held in splits])) == list(range(100))
    for kept, held in splits:
        assert sorted([*kept, *held]) == list(range(100))
    for kept, held in Scheme(3, 1 / 3, refit=True).split(20_000, seed=0):
        assert (len(kept), len(held)) in {(13_333, 3333), (13_334, 3333)}
    ((kept, held),) = Scheme(1, 0.1, refit=True).split(100, seed=0)
    assert (len(kept), len(held)) == (90, 10)


def test_folds_and_a_last_training_cost_three():
    assert Scheme(3, 1 / 3, refit=True).trainings(GLAS) == pytest.approx(3)
    assert TENTH.trainings(GLAS) == pytest.approx(1.9)
    assert TENTH.trainings(GLAS._replace(once=True)) == pytest.approx(0.9)


def test_only_members_of_epochs_do_without_a_last_training():
    assert [way.once for way in TENTH.ways(GLAS)] == [False, True]
    assert TENTH.ways(GLAS._replace(cost=Cost(10))) == [GLAS._replace(cost=Cost(10))]
    assert Scheme(3, 1 / 3, refit=True).ways(GLAS) == [GLAS]
    assert Scheme(1, 0.02, refit=False).ways(GLAS) == [GLAS]


def test_a_last_training_is_given_up_before_a_better_preset_or_epochs():
    whole = 320  # seconds of a training of attention-xml; 60 with preset=small
    for seconds, expected in (
        (1.9 * whole, (None, None, False)),
        (1.9 * whole - 1, (None, None, True)),
        (0.9 * whole - 1, ("small", None, False)),
        (1.9 * 60 - 1, ("small", None, True)),
        (0.9 * 60 - 1, ("small", 9, True)),
    ):
        member, _ = find_form("attention-xml", seconds + 1e-6, TENTH, measure)
        assert (member.preset, member.epochs, member.once) == expected
    assert "(preset=small, 9 of 10 epochs, not trained on held-out documents, " in member.describe()


def test_a_cost_in_fewer_epochs():
    cost = Cost(20, 30, 10)
    assert cost.seconds() == 320
    assert cost.seconds(4) == 140
    assert [cost.epochs_in(seconds) for seconds in (10, 20, 79, 80, 10_000)] == [0, 0, 1, 2, 10]
    assert Cost(20).epochs_in(100) == 0
    assert cost.times(2) == Cost(40, 60, 10)
    assert Cost.guess(100, 0) == Cost(100)
    assert Cost.guess(100, 5).seconds() == pytest.approx(100)


def test_an_hour_is_enough_for_all_members_of_a_small_set():
    plan = plan_for(SMALL, ROWS, 3600)
    assert [member.name for member in plan.members] == list(ROWS)
    assert plan.scheme.folds == 3
    assert plan.left_out == {}
    assert plan.seconds("cpu") == pytest.approx(3 * (10 + 5 + 55 + 25 + 40 + 55))


def test_what_does_not_fit_is_left_out_and_said():
    plan = plan_for(LARGE, ALL, 45)
    assert forms_of(plan) == {"linear": (None, None), "knn": (None, None), "glas": ("fast", None)}
    lines = plan.lines(LARGE)
    assert lines[0].startswith("Plan for 475,974 documents and 25,018 labels on the CPU, about ")
    assert lines[0].endswith("(budget: 45 s):")
    assert lines[1].startswith("  linear         about 10 s: strong everywhere, and the quickest")
    assert "  glas           about 20 s: learns which labels go together (preset=fast, " in lines[3]
    assert plan.left_out["attention-xml"] == "it would take about 59 s even with preset=small"
    assert lines[-1] == "  9,519 of 475,974 documents are held out for stacking"


def test_named_members_that_need_more_than_the_budget_are_told_of():
    plan = make_plan(LARGE, ALL, ["linear", "glas"], 45, measure)
    assert [member.name for member in plan.members] == ["linear", "glas"]
    assert plan.lines(LARGE)[-1].startswith("  the members that are named need about ")
    enough = make_plan(LARGE, ALL, ["linear", "glas"], 4500, measure)
    assert "named" not in enough.lines(LARGE)[-1]


def test_the_text_reader_comes_before_others_where_it_fits():
    plan = plan_for(LARGE, ALL, 400)
    assert [member.name for member in plan.members][:3] == ["linear", "knn", "attention-xml"]
    assert forms_of(plan)["attention-xml"] == (None, None)


def test_fewer_epochs_rather_than_none():
    seconds = 20 + 6 * 30
    member, _ = find_form("attention-xml", seconds, ONCE, lambda name, _: COSTS[name, None])
    assert (member.preset, member.epochs, member.reduced) == (None, 6, True)
    assert member.seconds == seconds
    assert "(6 of 10 epochs, as there is no time for more)" in member.describe()
    few = 20 + (LEAST_EPOCHS * 10 - 1) * 30
    member, quickest = find_form("attention-xml", few, ONCE, lambda name, _: COSTS[name, None])
    assert member is None
    assert quickest.seconds == 320


def test_a_cheaper_form_rather_than_fewer_epochs():
    member, _ = find_form("attention-xml", 250, ONCE, measure)
    assert (member.preset, member.epochs) == ("small", None)


def test_kinds_of_a_model_are_members_of_their_own():
    """Trees of clusters are for few values, and taken if there is time for them."""
    facts = SMALL._replace(n_documents=200_000)
    costs = {**COSTS, ("forest", "features"): Cost(5), ("forest", "clusters"): Cost(20)}

    def plan_within(facts, seconds):
        usable = ["linear", "forest"]
        return make_plan(facts, usable, None, seconds / USABLE, lambda *key: costs[key])

    plan = plan_within(facts, 40)
    assert forms_of(plan) == {
        "linear": (None, None),
        "forest": ("features", None),
        "forest-clusters": ("clusters", None),
    }
    assert "preset" not in "".join(plan.lines(facts)), "no form is a cheaper one"
    assert list(forms_of(plan_within(facts, 30))) == ["linear", "forest"]
    many = facts._replace(n_values=2_000_000)
    assert list(forms_of(plan_within(many, 40))) == ["linear", "forest"]


def test_cheaper_forms_are_presets_of_their_models():
    for name in ALL:
        model = get_model_class(name)
        assert set(model.cheaper_presets) <= set(model.presets)


def test_a_short_budget_holds_out_less_rather_than_dropping_the_core():
    facts = SMALL._replace(n_documents=30_000)
    with_refit = plan_for(facts, ROWS[:3], 1.9 * 70 / USABLE + 1)
    assert with_refit.scheme.refit
    without = plan_for(facts, ROWS[:3], 35 / USABLE)
    assert [member.name for member in without.members] == ["linear", "knn", "glas"]
    assert not without.scheme.refit


def test_training_on_all_is_worth_more_than_a_whole_form_of_a_late_core_member():
    plan = plan_for(SMALL._replace(n_documents=30_000), ROWS[:3], 60 / USABLE)
    assert forms_of(plan)["glas"] == ("fast", None)
    assert plan.scheme.refit
    assert plan.lines(SMALL)[-1].endswith(", then each member but glas is trained on all")


def test_trees_come_early_where_documents_are_rows():
    orders = [{name: find_order(name, texts) for name in BUILT_IN} for texts in (False, True)]
    of_rows, of_texts = orders
    assert of_rows["linear"] < of_rows["forest"] < of_rows["glas"] < of_rows["mnn"]
    assert of_texts["attention-xml"] < of_texts["forest"] < of_texts["mnn"] < of_texts["glas"]
    assert {name for name in of_rows if of_rows[name] != of_texts[name]} == {"forest", "glas"}
    X = sp.identity(3, format="csr")
    facts, usable = find_facts(Dataset(X, ["a", "b", "c"], X=X), X, None, "cpu")
    assert not facts.has_texts
    assert usable[:3] == ["linear", "knn", "forest"]


def test_what_is_spent_already_is_not_planned_again():
    assert "glas" in forms_of(plan_for(LARGE, ROWS, 60))
    assert "glas" not in forms_of(plan_for(LARGE, ROWS, 60, spent=30))


def test_a_gpu_has_a_lane_of_its_own():
    budget = 0.98 * 95 / USABLE + 0.1  # 15 for linear and knn, 80 for the rest
    usable = ["linear", "knn", "mnn", "rank-ae"]
    assert forms_of(plan_for(LARGE, usable, budget))["rank-ae"] == (None, None)
    assert forms_of(plan_for(LARGE, usable, budget - 2))["rank-ae"] == (None, 9)
    gpu = plan_for(LARGE._replace(device="cuda"), usable, budget - 14)
    assert forms_of(gpu)["rank-ae"] == (None, None)
    assert gpu.seconds("cuda") == pytest.approx(0.98 * 80)


def test_a_gpu_takes_no_larger_form():
    """Three times the bytes of glas gained next to nothing beside attention-xml."""
    plan = plan_for(LARGE._replace(device="cuda"), ALL, 3600)
    assert forms_of(plan)["glas"] == (None, None)


def test_another_seed_of_the_text_reader_comes_before_rarer_models():
    gpu, seconds = LARGE._replace(device="cuda"), 0.98 * (320 + 55 + 320) / USABLE + 1
    plan = plan_for(gpu, ALL, seconds)
    names = [member.name for member in plan.members]
    assert names == ["linear", "knn", "attention-xml", "attention-xml-2", "glas"]
    first, second = plan.members[2:4]
    assert second.model == "attention-xml"
    assert second.seed != first.seed
    assert "attention-xml-2  about 5 min: another seed of attention-xml" in "\n".join(
        plan.lines(gpu)
    )
    assert plan.seconds("cuda") == pytest.approx(0.98 * (320 + 55 + 320))
    short = plan_for(gpu, ALL, 0.98 * (320 + 310) / USABLE)
    assert "attention-xml-2" not in {member.name for member in short.members}


def test_a_reduced_form_gets_no_second_seed():
    names = [m.name for m in plan_for(LARGE._replace(device="cuda"), ALL, 300).members]
    assert names[2:4] == ["attention-xml", "glas"]
    assert "attention-xml-2" not in names


def test_a_budget_too_short_for_the_first_takes_it_alone():
    plan = plan_for(LARGE, ALL, 1)
    assert forms_of(plan) == {"linear": ("fast", None)}
    assert plan.scheme == NOTHING_HELD_OUT
    assert plan.lines(LARGE)[-1] == "  the budget is too short for more than linear"
    costs = {("knn", None): Cost(0.1), **{key: COSTS[key] for key in COSTS if key[0] == "linear"}}
    plan = make_plan(LARGE, ["linear", "knn"], None, 1, lambda *key: costs[key])
    assert forms_of(plan) == {"linear": ("fast", None)}
    assert plan.left_out == {"knn": "there is no time for it"}


def test_named_members_are_taken_whatever_they_cost():
    plan = make_plan(LARGE, ALL, ["linear", "glas"], None, measure)
    assert [member.name for member in plan.members] == ["linear", "glas"]
    assert plan.left_out == {}
    assert plan.lines(LARGE)[0].endswith("(budget: no limit):")


def test_members_that_are_too_large_or_too_slow_are_not_begun():
    costs = {
        "linear": Cost(1, n_bytes=10_000_000, milliseconds=0.2),
        "glas": Cost(1, 1, 5, n_bytes=200_000_000, milliseconds=0.4),
        "mnn": Cost(1, 1, 5, n_bytes=1_000, milliseconds=50.0),
    }
    limits = Limits.parse("100MB", "5ms")
    plan = make_plan(LARGE, list(costs), None, 600, lambda name, preset: costs[name], limits=limits)
    assert [member.name for member in plan.members] == ["linear"]
    assert plan.left_out["glas"] == "a model of it has at least 200.0 MB"
    assert plan.left_out["mnn"] == "a model of it takes at least 50 ms for one document"
    with pytest.raises(
        ParameterError, match=r"max_size 1.0 MB cannot be met: .*linear.* has 10.0 MB"
    ):
        make_plan(
            LARGE,
            ["linear"],
            None,
            600,
            lambda name, preset: costs[name],
            limits=Limits.parse("1MB", None),
        )


def test_a_member_that_could_not_be_measured_does_not_stand_for_those_that_cost_too_much():
    costs = {
        "linear": Cost(1, n_bytes=10_000_000, milliseconds=0.06),
        "knn": Cost(1, n_bytes=10_000_000, milliseconds=0.2),
        "forest": Cost(1),
    }
    least = r"max_latency 0.001 ms cannot be met: .* linear, the least .* takes 0.06 ms"
    for seconds in (600, 0.5):
        with pytest.raises(ParameterError, match=least):
            make_plan(
                LARGE,
                list(costs),
                None,
                seconds,
                lambda name, preset: costs[name],
                limits=Limits.parse(None, "0.001ms"),
            )
    plan = make_plan(
        LARGE,
        list(costs),
        None,
        600,
        lambda name, preset: costs[name],
        limits=Limits.parse(None, "0.1ms"),
    )
    assert [member.name for member in plan.members] == ["linear", "forest"]


def test_names_of_members():
    assert parse_members(" linear, glas ") == ["linear", "glas"]
    with pytest.raises(ParameterError, match="fusion has no member 'glass'; did you mean 'glas'"):
        parse_members("linear,glass")
    for text in ("", "linear,linear"):
        with pytest.raises(ParameterError, match="names of models, each once"):
            parse_members(text)
