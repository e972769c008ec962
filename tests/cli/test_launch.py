"""`--processes`: several processes that end together, and what is said then."""

import subprocess
import sys
from tempfile import TemporaryFile

import pytest
import typer
from command_line import fail, write_texts

from longtail.cli import launch
from longtail.errors import LongtailError

WAIT = "import time; time.sleep(60)"
DIE = "import os; os.kill(os.getpid(), 9)"
FAIL = "import sys; sys.exit('Error: there is no room')"
LOSE = f"import sys; sys.exit({launch.LOST})"


@pytest.fixture
def run(monkeypatch):
    """Return what launches these scripts in place of the command."""

    def start(*scripts):
        def children(count, files):
            started = []
            for rank, script in enumerate(scripts):
                said = files.enter_context(TemporaryFile()) if rank else None  # noqa: SIM115
                command = [sys.executable, "-c", script]
                started.append(launch.Child(subprocess.Popen(command, stderr=said), said))
            return started

        monkeypatch.setattr(launch, "_start", children)
        monkeypatch.setattr(launch, "GRACE", 1.0)
        monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
        launch.launch(len(scripts), lambda: "nothing is kept.")

    return start


def test_all_is_well(run):
    run("", "")


def test_one_that_is_killed_ends_the_others(run):
    with pytest.raises(LongtailError) as error:
        run(WAIT, DIE)
    assert str(error.value) == (
        "process 1 of 2 was ended by signal 9, so all have stopped; nothing is kept."
    )


def test_one_that_fails_is_quoted_and_not_those_that_miss_it(run):
    with pytest.raises(LongtailError, match=r"^process 1 of 3: there is no room$"):
        run(LOSE, FAIL, LOSE)


def test_the_first_one_has_said_why_it_fails(run, capfd):
    with pytest.raises(typer.Exit) as error:
        run(FAIL, LOSE)
    assert error.value.exit_code == 1
    assert capfd.readouterr().err == "Error: there is no room\n"


def test_mistakes(tmp_path, monkeypatch):
    data = write_texts(tmp_path / "train.jsonl", 20, seed=0)
    command = ("train", data, "--out", tmp_path / "model", "--processes", "2")
    assert fail(*command, "--model", "linear") == (
        "Error: linear is trained by one process, on all its cores; leave out --processes"
    )
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert fail(*command, "--model", "glas") == (
        "Error: --processes 2 starts processes, but this is one of 4 that were started already, as "
        "by torchrun; leave out --processes"
    )


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr(launch, "count_cores", lambda: 7)
    assert launch.share_threads(None, 2) == 3
    assert launch.share_threads(None, 16) == 1
    assert launch.share_threads(5, 2) == 5
    assert launch.share_threads(None, None) is None
