"""Plans for sizes that nobody has at hand, by the formulas of training itself."""

import numpy as np
import pytest

from longtail.errors import ParameterError
from longtail.models import get_model_class
from longtail.models.cost import Facts
from longtail.models.sizing import Size, parse_count, size_models
from longtail.runtime.mapped import Extent, is_mapped
from longtail.runtime.memory import total_ram
from tests.command_line import run

SMALL = Size(documents=10_000, labels=2_000)


@pytest.mark.parametrize(
    ("text", "number"),
    [("5000", 5000), ("300k", 300_000), ("2.5M", 2_500_000), ("1B", 10**9), (" 3 K ", 3000)],
)
def test_counts_are_spelled_short(text: str, number: int) -> None:
    assert parse_count(text, "documents") == number


@pytest.mark.parametrize("text", ["", "many", "-3", "1e9", "10x", "1.5.2M", "9" * 30])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"The number of labels must be such as 5000, 300k"):
        parse_count(text, "labels")


@pytest.mark.parametrize(
    ("name", "value"), [("labels", 0), ("labels", 10**9), ("nodes", 0), ("documents", 10**13)]
)
def test_sizes_have_ranges(name: str, value: int) -> None:
    with pytest.raises(ParameterError, match=f"The '{name}' of a plan must be from"):
        Size(**{"documents": 10, "labels": 10, name: value})


def test_time_and_memory_are_those_of_training() -> None:
    """On one machine of two cores, they are what `train` would say."""
    (found,) = size_models(SMALL, "linear", {"preset": "fast"})
    model = get_model_class("linear").from_settings({"preset": "fast"})
    facts = Facts(10_000, 2_000, 1_000_000, 1_000_000, False, "cpu")
    assert found.seconds == model.estimate_training(facts)
    assert found.ram == total_ram(model.needs_of(SMALL.rows, SMALL.pairs, "cpu"))
    assert found.engine == "one machine"
    assert found.network == 0


def test_more_machines_take_less_time_and_send_more() -> None:
    one = {each.model: each for each in size_models(SMALL)}
    many = Size(documents=10_000, labels=2_000, nodes=4)
    for each in size_models(many):
        if each.model in ("linear", "glas"):
            assert each.network > 0
        if each.model == "linear":
            assert each.seconds == pytest.approx(one["linear"].seconds / 4)
            assert each.engine == "Ray"
        if each.model == "knn":
            assert each.seconds == one["knn"].seconds


def test_gpus_hold_the_networks() -> None:
    (found,) = size_models(Size(documents=10_000, labels=2_000, nodes=2, gpus=8), "glas")
    assert found.gpu > 0
    assert found.engine == "torchrun"


@pytest.mark.parametrize("name", ["glas", "mnn", "dxml", "rank-ae", "attention-xml"])
def test_gpus_are_planned_where_there_are_none(name, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (found,) = size_models(Size(documents=100_000, labels=50_000, gpus=4), name)
    assert found.gpu > 0


def test_few_documents_have_few_features() -> None:
    (few,) = size_models(Size(documents=3, labels=1), "glas")
    (named,) = size_models(Size(documents=3, labels=1, features=300), "glas")
    assert few == named


def test_the_table_leaves_out_what_nothing_takes_and_keeps_names_whole() -> None:
    shown = run("plan", "--documents", "3", "--labels", "1")
    assert "3 documents, 1 label; 1 node of" in shown.stdout
    assert "attention-xml" in shown.stdout
    assert "network" not in shown.stdout.partition("The packed")[0]
    many = run("plan", "--documents", "100M", "--labels", "5M", "--nodes", "16", "--gpus", "64")
    assert many.exit_code == 0
    for name in ("attention-xml", "parameters"):
        assert name in many.stdout
    assert "network" in many.stdout.partition("The packed")[0]


def test_an_extent_lies_in_files() -> None:
    assert is_mapped(Extent((3, 4), 5, 2))
    assert not is_mapped(np.zeros(3))


def test_the_command_shows_a_table_and_refuses_nonsense() -> None:
    shown = run("plan", "--documents", "1M", "--labels", "20k", "--model", "linear")
    assert shown.exit_code == 0
    assert "1,000,000 documents, 20,000 labels" in shown.stdout
    refused = run("plan", "--documents", "lots", "--labels", "20k")
    assert refused.exit_code == 2
    assert "Got 'lots' instead" in refused.stderr
    assert run("plan", "--documents", "9", "--labels", "9", "--set", "C=1").exit_code == 2


def test_every_model_has_a_formula_for_its_memory() -> None:
    found = size_models(Size(documents=500_000, labels=700_000))
    assert {each.model for each in found} >= {"attention-xml", "lexical", "linear"}
    assert all(each.ram for each in found)
    twice = {
        each.model: each.ram for each in size_models(Size(documents=1_000_000, labels=700_000))
    }
    assert all((twice[each.model] or 0) >= (each.ram or 0) for each in found)
