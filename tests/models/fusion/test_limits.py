"""What a fusion may weigh and take, and who is dropped for it."""

import pytest

from longtail.errors import ParameterError
from longtail.models.fusion.limits import Limits, choose_members
from longtail.models.fusion.weight import MemberReport, Weight, add_up, time_documents
from longtail.runtime.parallel import keep_to_threads, n_threads

MB = 1_000_000
NOTHING = Weight(0, 0.0)


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("300MB", 3e8), ("1.5 GB", 1.5e9), ("20kb", 2e4), ("1MiB", 2**20)]
)
def test_sizes(text, n_bytes):
    assert Limits.parse(text, None).n_bytes == n_bytes


@pytest.mark.parametrize(("text", "milliseconds"), [("5ms", 5), ("0.5 s", 500)])
def test_latencies(text, milliseconds):
    assert Limits.parse(None, text).milliseconds == milliseconds


@pytest.mark.parametrize("text", ["", "300", "-5MB", "0MB", "many", "5m"])
def test_sizes_that_are_none(text):
    with pytest.raises(
        ParameterError, match="'max_size' parameter of Fusion must be such as 300MB"
    ):
        Limits.parse(text, None)


@pytest.mark.parametrize("text", ["", "5", "0ms", "5MB"])
def test_latencies_that_are_none(text):
    with pytest.raises(ParameterError, match="'max_latency' parameter of Fusion must be such as"):
        Limits.parse(None, text)


def test_members_are_asked_side_by_side():
    members = [Weight(MB, 4.0), Weight(2 * MB, 1.0), Weight(3 * MB, 1.0)]
    with keep_to_threads(1):
        assert n_threads() == 1
        assert add_up(Weight(MB, 0.5), members) == (7 * MB, 6.5)
    together = add_up(Weight(MB, 0.5), members)
    assert together == (7 * MB, 0.5 + max(4.0, 6.0 / n_threads()))


def gains_of(**worth):
    return lambda names: sum(worth[name] for name in names)


def test_nothing_is_dropped_within_the_limits():
    weights = {"a": Weight(MB, 1.0), "b": Weight(MB, 1.0)}
    assert choose_members(weights, NOTHING, Limits(2 * MB, 10.0), gains_of(a=1, b=1)) == ["a", "b"]
    assert choose_members(weights, NOTHING, Limits(), gains_of(a=1, b=1)) == ["a", "b"]


def test_what_gains_least_for_its_bytes_goes_first():
    weights = {"a": Weight(10 * MB, 1.0), "b": Weight(10 * MB, 1.0), "c": Weight(60 * MB, 1.0)}
    limits = Limits(75 * MB)
    assert choose_members(weights, NOTHING, limits, gains_of(a=5, b=1, c=5)) == ["a", "b"]
    assert choose_members(weights, NOTHING, limits, gains_of(a=5, b=1, c=50)) == ["a", "c"]


def test_what_is_too_large_by_itself_goes_whatever_it_gains():
    weights = {"a": Weight(10 * MB, 1.0), "b": Weight(500 * MB, 1.0)}
    assert choose_members(weights, NOTHING, Limits(100 * MB), gains_of(a=1, b=90)) == ["a"]


def test_time_is_a_limit_as_well():
    weights = {"a": Weight(MB, 1.0), "b": Weight(MB, 30.0)}
    assert choose_members(weights, Weight(0, 0.1), Limits(None, 5), gains_of(a=1, b=9)) == ["a"]


def test_what_cannot_be_met_says_what_the_least_is():
    weights = {"a": Weight(10 * MB, 1.0), "b": Weight(20 * MB, 0.5)}
    with pytest.raises(
        ParameterError,
        match=r"^max_size 5.0 MB cannot be met: a alone, the least of the members, has 12.0 MB; "
        "allow at least that$",
    ):
        choose_members(weights, Weight(2 * MB, 0.0), Limits(5 * MB), gains_of(a=1, b=1))
    with pytest.raises(
        ParameterError,
        match=r"max_latency 0.1 ms cannot be met: b .* takes 0.7 ms for one document",
    ):
        choose_members(weights, Weight(2 * MB, 0.2), Limits(None, 0.1), gains_of(a=1, b=1))


def test_one_document_is_timed_after_a_first_that_does_not_count():
    asked = []
    assert time_documents(asked.append, 3) >= 0
    assert asked == [0, 1, 2, 0]


def test_a_report_is_one_line():
    report = MemberReport(0.417, 0.123, 12_340_000, 0.52, 47.2)
    assert report.line() == "gains 0.42 ± 0.12, 12.3 MB, 0.52 ms a document, trained in 47 s"
    assert report._replace(gain=None).line().startswith("12.3 MB")
