import numpy as np
import pytest

from longtail.errors import ParameterError
from longtail.models import get_model_class
from longtail.models.cost import Facts, format_seconds
from longtail.models.fusion.plan import (
    NOTHING_HELD_OUT,
    Scheme,
    choose_schemes,
    make_plan,
    measure_speed,
    parse_budget,
    parse_members,
)

ALL = ("linear", "knn", "glas", "attention-xml", "mnn", "dxml", "rank-ae")
SMALL = Facts(4880, 159, 1836, 335_000, has_texts=False, device="cpu")
LARGE = Facts(475_974, 25_018, 300_000, 6_000_000, has_texts=True, device="cpu")


def estimate(name, facts, preset=None):
    return get_model_class(name).estimate_seconds(facts, preset)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), (" 1.5 h ", 5400)]
)
def test_a_budget_is_a_time(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "0s", "10 minutes", "1d"])
def test_a_budget_that_is_none(text):
    with pytest.raises(ParameterError, match="must be a time such as 90s, 10m or 2h"):
        parse_budget(text)


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
    assert Scheme(3, 1 / 3, refit=True).trainings == pytest.approx(3)
    assert Scheme(1, 0.1, refit=True).trainings == pytest.approx(1.9)


def test_an_hour_is_enough_for_all_members_of_a_small_set():
    plan = make_plan(SMALL, [name for name in ALL if name != "attention-xml"], None, 3600)
    assert [member.name for member in plan.members] == [
        "linear",
        "knn",
        "glas",
        "mnn",
        "dxml",
        "rank-ae",
    ]
    assert plan.scheme.folds == 3
    assert plan.seconds < 3600


def test_ten_minutes_without_a_gpu_leave_out_what_is_too_slow_and_say_so():
    plan = make_plan(LARGE, ALL, None, 600)
    assert [member.name for member in plan.members] == ["linear", "knn"]
    assert plan.left_out["glas"].startswith("it would take about ")
    assert plan.left_out["glas"].endswith(" even with preset=fast")
    assert "even with" not in plan.left_out["mnn"]
    lines = plan.lines(LARGE)
    assert lines[0].startswith("Plan for 475,974 documents and 25,018 labels on the CPU, about ")
    assert lines[0].endswith("(budget: 10 min):")
    assert lines[1].startswith("  linear         about ")
    assert "strong everywhere, and the quickest" in lines[1]
    assert any(line.startswith("  glas           left out: it would take about") for line in lines)
    assert lines[-1] == "  9,519 of 475,974 documents are held out for stacking"


def test_a_cheaper_form_is_taken_where_the_whole_does_not_fit():
    hour = make_plan(LARGE, ALL, None, 3600)
    glas = {member.name: member for member in hour.members}["glas"]
    assert (glas.preset, glas.reduced) == ("fast", True)
    assert glas.seconds == estimate("glas", LARGE, "fast") < estimate("glas", LARGE) / 2
    whole = format_seconds(hour.scheme.trainings * estimate("glas", LARGE))
    expected = (
        f"learns which labels go together (preset=fast; the full form would take about {whole})"
    )
    assert any(line.endswith(expected) for line in hour.lines(LARGE))
    assert "glas" not in hour.left_out
    assert hour.seconds <= 0.85 * 3600
    day = make_plan(LARGE, ALL, None, 24 * 3600)
    glas = {member.name: member for member in day.members}["glas"]
    assert (glas.preset, glas.reduced) == (None, False)


def test_cheaper_forms_are_presets_of_their_models():
    for name in ALL:
        model = get_model_class(name)
        assert set(model.cheaper_presets) <= set(model.presets)


def test_without_a_gpu_an_hour_is_enough_for_a_small_text_reader():
    facts = SMALL._replace(n_documents=20_000, n_values=20_000 * 60, has_texts=True)
    forms = {member.name: member.preset for member in make_plan(facts, ALL, None, 3600).members}
    assert forms["attention-xml"] == "small"
    assert "attention-xml" in make_plan(facts, ALL, None, 600).left_out


def test_a_short_budget_holds_out_less_rather_than_taking_a_cheaper_form():
    facts = SMALL._replace(n_labels=3000)
    both = make_plan(facts, ALL[:3], None, 150)
    assert [(member.name, member.reduced) for member in both.members][-1] == ("glas", False)
    assert both.scheme.folds == 1
    cheap = make_plan(facts, ALL[:3], None, 50)
    assert [(member.name, member.reduced) for member in cheap.members][-1] == ("glas", True)


def test_a_gpu_makes_room_for_more():
    plan = make_plan(LARGE._replace(device="cuda"), ALL, None, 600)
    assert {"glas", "mnn", "dxml"} <= {member.name for member in plan.members}
    assert {member.name: member.preset for member in plan.members}["glas"] == "large"
    small = make_plan(SMALL._replace(device="cuda"), ALL, None, 600)
    assert all(member.preset is None for member in small.members)


def test_a_short_budget_holds_out_less_rather_than_dropping_the_core():
    plan = make_plan(SMALL, ALL[:3], None, 60)
    assert [member.name for member in plan.members] == ["linear", "knn", "glas"]
    assert plan.scheme.folds == 1


def test_a_budget_too_short_for_anything_takes_the_quickest():
    plan = make_plan(LARGE, ALL, None, 1)
    assert len(plan.members) == 1
    quickest = min(ALL, key=lambda name: estimate(name, LARGE))
    assert plan.members[0].name == quickest
    assert plan.scheme == NOTHING_HELD_OUT
    expected = f"  the budget is too short for more than {quickest}, the quickest"
    assert plan.lines(LARGE)[-1] == expected


def test_named_members_are_taken_whatever_they_cost():
    plan = make_plan(LARGE, ALL, ["linear", "glas"], None)
    assert [member.name for member in plan.members] == ["linear", "glas"]
    assert plan.left_out == {}
    assert plan.lines(LARGE)[0].endswith("(budget: no limit):")


def test_names_of_members():
    assert parse_members(" linear, glas ") == ["linear", "glas"]
    with pytest.raises(ParameterError, match="fusion has no member 'glass'; did you mean 'glas'"):
        parse_members("linear,glass")
    for text in ("", "linear,linear"):
        with pytest.raises(ParameterError, match="names of models, each once"):
            parse_members(text)


def test_slower_machines_take_longer_but_a_gpu_does_not_care():
    slow = SMALL._replace(speed=0.5)
    assert estimate("glas", slow) == 2 * estimate("glas", SMALL)
    on_gpu = slow._replace(device="cuda")
    assert estimate("glas", on_gpu) == estimate("glas", SMALL._replace(device="cuda"))
    assert estimate("linear", on_gpu) == 2 * estimate("linear", SMALL)


def test_the_speed_of_this_machine_is_within_reason():
    assert 0.2 <= measure_speed() <= 5
