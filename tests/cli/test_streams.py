"""Standard streams that are closed, full, or that nobody reads; limits on memory."""

import io
import os
import subprocess
import sys

import pytest
from command_line import LONGTAIL, fail, write_texts
from rich.progress import Progress

from longtail.bars import Bars
from longtail.cli import limits, terminal
from longtail.errors import LongtailError

COMMAND = " ".join(LONGTAIL)
CLOSED = "Error: standard output is closed; write to a file instead, or to a pipe\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("--help | true", 141, ""),
        ("--version | true", 141, ""),
        ("models | true", 141, ""),
        ("verify /nothing 2>&1 >&- | true", 2, ""),
        ("--version >/dev/full", 2, "Error: No space left on device\n"),
        ("--version >&- <&-", 0, ""),
        ("models --json - >&-", 2, CLOSED),
        ("models linear >/dev/null 2>&-", 0, ""),
        ("verify /nothing 2>/dev/full", 2, ""),
        ("models linear <&- >&- 2>&-", 0, ""),
    ],
)
def test_how_a_command_ends(line, code, said):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {COMMAND} {line}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_an_error_that_nobody_hears_in_any_locale(locale):
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} verify /nothing 2>/dev/full"],
        env={**os.environ, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 2


@pytest.mark.parametrize("nowhere", ["2>/dev/full", "2> >(true)"])
def test_training_goes_on_when_nobody_hears_of_it(nowhere, tmp_path):
    data = write_texts(tmp_path / "train.jsonl", 20, seed=0)
    line = f"{COMMAND} train {data} --out {tmp_path}/model --model knn {nowhere}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0
    assert "The knn model of 20 documents" in done.stdout


def test_standard_input_that_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(LongtailError, match="standard input is closed; name a file instead of -"):
        terminal.open_stdin()


def test_too_little_address_space_is_said_at_the_start(monkeypatch):
    monkeypatch.setattr(limits, "address_space", lambda: 100.0 * limits.MIB)
    error = fail("models")
    assert error.startswith("Error: there is not enough memory: this process may use 100 MiB of ")


def test_an_unforeseen_error_below_a_limit_is_one_of_memory(monkeypatch):
    def broken():
        raise ImportError("failed to map segment from shared object")

    monkeypatch.setattr("longtail.models.registry.find_models", broken)
    monkeypatch.setattr("longtail.cli.exits.may_lack_memory", lambda: True)
    monkeypatch.setattr("longtail.cli.exits.address_space", lambda: 1000.0 * limits.MIB)
    assert fail("models") == (
        "Error: this process may use 1,000 MiB of address space (see ulimit -v), probably too "
        "little: ImportError: failed to map segment from shared object"
    )


def test_no_limits_where_the_system_has_none(monkeypatch):
    monkeypatch.setattr(limits, "resource", None)
    assert limits.address_space() == float("inf")
    limits.check_address_space()
    assert not limits.may_lack_memory()


def test_bars_show_what_stages_notes_and_lines_hide(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("longtail.bars.KEPT_AFTER", 0.0)
    hostile = "a\x1b]0;title\x07\x9b1m\u202e[red]b[/red]:beer:"
    with Bars() as bars:
        assert isinstance(bars._bars, Progress)
        bars.stage(hostile, 1)
        bars.note(hostile)
        bars.say(hostile)
        bars.advance(1)
    shown = screen.getvalue()
    assert shown.count(r"a\x1b]0;title\x07\x9b1m\u202e[red]b[/red]:beer:") >= 2
    assert not {"\x9b", "\x07", "\u202e"} & set(shown)
    assert "\x1b]0;" not in shown
