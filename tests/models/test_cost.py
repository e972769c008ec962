"""How long training takes: said before it begins, refused where a parameter makes it absurd."""

import pytest
from planted import planted_dataset

from longtail.errors import ParameterError
from longtail.models import get_model_class
from longtail.models.cost import Facts, format_seconds
from longtail.progress import Silent

FACTS = Facts(50_000, 30_000, 100_000, 5_000_000, has_texts=True, device="cpu")


class Said(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def make(name, **parameters):
    return get_model_class(name)(**parameters)


def test_times_are_shown_as_people_say_them():
    shown = [format_seconds(seconds) for seconds in (0.2, 45, 200, 7500, 10 * 86_400, 1e12)]
    assert shown == ["1 s", "45 s", "3 min", "2 h 5 min", "10 days", "31,688 years"]


def test_what_takes_long_is_said_before_training(monkeypatch):
    said = Said()
    make("linear").fit(planted_dataset(), progress=said)
    assert [line for line in said.lines if not line.startswith("Chosen: ")] == []
    said = Said()
    monkeypatch.setattr("longtail.models.estimates.LONG", 0.0)
    monkeypatch.setattr("longtail.models.estimates.WORTH_SAYING", 0)
    make("linear").fit(planted_dataset(), progress=said)
    assert said.lines[0] == "Time: training takes about 1 s"
    assert said.lines[1].startswith("Memory: training takes about ")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("linear", {"trees": 30}),
        ("glas", {"epochs": 100}),
        ("mnn", {"batch_size": 1}),
        ("mnn", {"epochs": 100}),
        ("dxml", {"walks": 1000}),
        ("dxml", {"epochs": 120}),
        ("rank-ae", {"epochs": 100}),
        ("attention-xml", {"trees": 10}),
        ("attention-xml", {"epochs": 400}),
        ("attention-xml", {"levels": 6}),
    ],
)
def test_the_estimate_follows_parameters(name, more):
    usual = make(name).estimate_training(FACTS)
    assert make(name, **more).estimate_training(FACTS) > 2 * usual


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("glas", "epochs", 1_000_000),
        ("mnn", "epochs", 1_000_000),
        ("dxml", "walks", 1_000_000),
        ("rank-ae", "epochs", 1_000_000),
        ("attention-xml", "trees", 1000),
    ],
)
def test_what_is_absurd_stops_and_names_the_parameter(name, parameter, value):
    model = make(name, **{parameter: value})
    with pytest.raises(ParameterError, match=rf"with {parameter}={value}, .* smaller {parameter}"):
        model.say_time(FACTS, Silent())


def test_many_documents_alone_are_not_refused():
    said = Said()
    make("attention-xml").say_time(FACTS._replace(n_documents=10**9, n_values=10**11), said)
    assert len(said.lines) == 1


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("linear", "trees", 10**6),
        ("linear", "power", 10**12),
        ("linear", "max_passes", 10**9),
        ("glas", "epochs", 10**9),
        ("glas", "sampled", 10**12),
        ("dxml", "walks", 10**9),
        ("dxml", "window", 10**9),
        ("attention-xml", "trees", 10**6),
    ],
)
def test_values_that_can_have_no_use_are_out_of_range(name, parameter, value):
    with pytest.raises(ParameterError, match=rf"'{parameter}' parameter of .* Got {value} instead"):
        make(name, **{parameter: value}).check_parameters()
