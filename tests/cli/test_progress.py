"""How the command line shows where training stands."""

import signal
from contextlib import suppress

import pytest

from longtail import bars as progress
from longtail.bars import Bars, Lines
from longtail.cli.exits import remember_ctrl_c, stop_if_pressed


@pytest.fixture
def clock(monkeypatch):
    """Return the time that the module under test sees, to be moved by hand."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_notes_in_a_log_file_are_rare_and_tell_the_time_left(clock, capsys):
    with Lines() as lines:
        lines.stage("training", 400)
        for _ in range(4):
            clock[0] += 20
            lines.advance(100)
            lines.note("loss 0.5")
    assert capsys.readouterr().err.splitlines() == [
        "training: loss 0.5, about 40 s left",
        "training: loss 0.5",
        "training: 80.0 s",
    ]


def test_bars_take_notes(capsys):
    with Bars() as bars:
        bars.note("before any stage")
        bars.stage("training", 10)
        bars.advance(5)
        bars.note("loss [0.5]")
        bars._bars.refresh()
        assert bars._bars.tasks[0].fields["note"] == "loss [0.5]"


@pytest.mark.parametrize("kind", [Bars, Lines])
def test_ctrl_c_that_was_swallowed_stops_the_next_step(kind):
    shown = kind(stop_if_pressed)
    with remember_ctrl_c():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        for step in (lambda: shown.stage("training", 2), lambda: shown.advance(1)):
            with pytest.raises(KeyboardInterrupt):
                step()
    shown.stage("training", 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_meaning_of_ctrl_c_stays():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with remember_ctrl_c():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
