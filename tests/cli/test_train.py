"""`longtail train` with models that torch trains: device, run folder, resuming, processes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from command_line import fail, succeed, write_texts

pytest.importorskip("torch", reason="these models need torch")

from longtail.models import load_model
from longtail.recipe import RunFolder
from longtail.runtime.store import locked, read_folder

GLAS = ["--model", "glas", "--valid", "0", "--device", "cpu", "--set", "dim=8"]

# Writes a checkpoint after every step, and dies by `kill -9` after the step of argv[1].
IMPATIENT = """
import os, signal, sys
from longtail.training import loop as trainer
from longtail.cli import main
save, last = trainer._Run.save, int(sys.argv.pop(1))
def save_and_die(run):
    save(run)
    if run.step == last:
        os.kill(os.getpid(), signal.SIGKILL)
trainer._Run.save = save_and_die
main()
"""


@pytest.fixture
def data(tmp_path):
    return write_texts(tmp_path / "train.jsonl", 200, seed=0)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run on the same data that was killed after its seventh step."""
    folder = tmp_path_factory.mktemp("killed")
    data = write_texts(folder / "train.jsonl", 200, seed=0)
    command = [sys.executable, "-c", IMPATIENT, 7, "train", data, "--out", folder / "model", *GLAS]
    command += ["--checkpoint-every", "0.000001s"]
    done = subprocess.run([str(part) for part in command], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "model").exists()
    return folder


@pytest.fixture
def stopped(killed, tmp_path):
    """What the killed run left behind, for a test of its own to go on with."""
    return shutil.copytree(killed / "model.run", tmp_path / "model.run")


def weights(folder):
    return read_folder(folder).arrays


def test_a_run_that_was_killed_goes_on_to_the_same_model(data, stopped, tmp_path):
    succeed("train", data, "--out", tmp_path / "whole", *GLAS)
    resumed = succeed("train", data, "--out", tmp_path / "model", "--resume", *GLAS)
    assert "Going on from step 7 of 64" in resumed.stderr
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "model")
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert not stopped.exists()


def test_checkpoints_are_not_thrown_away_by_forgetting_resume(data, stopped, tmp_path):
    line = fail("train", data, "--out", tmp_path / "model", *GLAS)
    assert line == (
        f"Error: {stopped} holds checkpoints of a run that was stopped; add "
        "--resume to go on with it, or --overwrite to begin again"
    )
    succeed("train", data, "--out", tmp_path / "model", "--overwrite", *GLAS)


def test_resuming_with_other_data_or_parameters_says_what_differs(data, stopped, tmp_path):
    line = fail("train", data, "--out", tmp_path / "model", "--resume", *GLAS, "--set", "keep=0.5")
    assert "belongs to another run: keep was 0.9, is 0.5; set these back" in line
    write_texts(data, 200, seed=1)
    line = fail("train", data, "--out", tmp_path / "model", "--resume", *GLAS)
    assert "belongs to another run: data was " in line
    assert list(stopped.glob("*/step-*"))


def test_a_checkpoint_that_was_cut_off_falls_back_to_the_one_before(data, stopped, tmp_path):
    newest = max((stopped / "training").glob("step-*"))
    os.truncate(newest / "weights.safetensors", 1000)
    resumed = succeed("train", data, "--out", tmp_path / "model", "--resume", *GLAS)
    assert "Passing over a damaged checkpoint" in resumed.stderr
    assert "Going on from step 6 of 64" in resumed.stderr


def test_nothing_to_resume_is_noted(data, tmp_path):
    result = succeed("train", data, "--out", tmp_path / "model", "--resume", *GLAS)
    assert "there is no checkpoint in" in result.stderr


def test_memory_is_said_before_training(data, tmp_path):
    result = succeed("train", data, "--out", tmp_path / "model", *GLAS)
    assert "Memory: training takes about" in result.stderr


def test_a_loss_that_is_no_number_saves_the_last_good_weights(data, tmp_path, monkeypatch):
    from longtail.models.glas.network import GLaSTask

    n_calls, loss = iter(range(100)), GLaSTask.loss
    monkeypatch.setattr(
        GLaSTask, "loss", lambda *all: loss(*all) * (float("nan") if next(n_calls) == 5 else 1)
    )
    line = fail("train", data, "--out", tmp_path / "model", *GLAS)
    assert "the loss became nan at step 6 of 64 (epoch 1); the weights from before" in line
    assert line.endswith(f"the model with these weights is in {tmp_path / 'model'}")
    assert len(load_model(tmp_path / "model").predict(["hops and malt"], k=2).labels[0]) == 2


def test_devices(data, tmp_path):
    line = fail("train", data, "--model", "linear", "--out", tmp_path / "model", "--device", "cuda")
    assert line == "Error: linear is trained on the CPU only; leave out the device cuda"
    succeed(
        "train",
        data,
        "--model",
        "linear",
        "--out",
        tmp_path / "model",
        "--device",
        "cpu",
        "--valid",
        "0",
    )
    assert "Invalid value for '--device'" in fail(
        "train", data, "--out", tmp_path / "other", "--device", "tpu"
    )


# The second of two processes dies by `kill -9` after its seventh step.
DYING = """
import os, signal
if os.environ.get("RANK") == "1":
    from longtail.training import loop
    take_step = loop._Run._take_step
    def take_and_die(run, share):
        take_step(run, share)
        if run.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
    loop._Run._take_step = take_and_die
"""


def run_together(data, out, *more, **environment):
    command = [sys.executable, "-m", "longtail", "train", data, "--out", out, *GLAS, *more]
    return subprocess.run(
        [str(part) for part in (*command, "--processes", "2")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_two_processes_train_one_model(data, tmp_path):
    done = run_together(data, tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The glas model of 200 documents") == 1
    test = write_texts(tmp_path / "test.jsonl", 100, seed=1)
    succeed("evaluate", tmp_path / "model", test, "--json", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["P@1"] > 90


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all_and_one_goes_on(data, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DYING)
    out, often = tmp_path / "model", ("--checkpoint-every", "0.000001s")
    done = run_together(data, out, *often, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("Error")] == [
        "Error: process 1 of 2 was ended by signal 9, so all have stopped; no model was saved and "
        f"{out} is as it was before; the same command with --resume goes on from where it stopped."
    ]
    resumed = succeed("train", data, "--out", out, "--resume", *GLAS)  # by one process alone
    assert re.search("Going on from step [67] of 64", resumed.stderr)
    succeed("train", data, "--out", tmp_path / "whole", *GLAS)
    one, other = (
        load_model(path).predict(["hops and malt"], k=5) for path in (out, tmp_path / "whole")
    )
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-3)


def test_checkpoints_are_found_however_deep_a_model_puts_them(tmp_path):
    folder = RunFolder(tmp_path / "model", resume=False)
    steps = [tmp_path / f"model.run/training/{part}step-00000004" for part in ("", "member-1/low/")]
    for step in steps:
        step.mkdir(parents=True)
    assert sorted(folder.find_checkpoints()) == sorted(steps)


class SavedModel:
    """Stands for a model that can be saved."""

    def save(self, path, overwrite):
        path.mkdir()


def test_the_run_folder_goes_when_the_model_is_saved(tmp_path):
    step = tmp_path / "model.run/training/member-1/low/step-00000004"
    step.mkdir(parents=True)
    RunFolder(tmp_path / "model").save(SavedModel(), overwrite=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_what_is_not_ours_stays_in_the_run_folder(tmp_path):
    (tmp_path / "model.run/training/step-00000004").mkdir(parents=True)
    (tmp_path / "model.run/mine.txt").write_text("notes")
    RunFolder(tmp_path / "model").save(SavedModel(), overwrite=False)
    assert [path.name for path in (tmp_path / "model.run").iterdir()] == ["mine.txt"]


def test_the_log_stays_where_training_stopped_early(tmp_path):
    training = tmp_path / "model.run/training"
    (training / "step-00000004").mkdir(parents=True)
    (training / "log.csv").write_text("step\n")
    RunFolder(tmp_path / "model").save(SavedModel(), overwrite=False, keep_log=True)
    assert [path.name for path in training.iterdir()] == ["log.csv"]


def test_a_second_training_into_the_same_folder_is_refused(data, tmp_path):
    out = tmp_path / "model"
    with locked(out):
        before = sorted(tmp_path.iterdir())
        error = fail("train", data, "--out", out, *GLAS)
        assert sorted(tmp_path.iterdir()) == before
    assert error == (
        f"Error: {out}: process {os.getpid()} is at work on it; wait until that has ended, or "
        "choose another path"
    )
    succeed("train", data, "--out", out, "--model", "linear", "--valid", "0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "train.jsonl"]


def test_the_time_between_checkpoints_is_checked(data, tmp_path):
    error = fail("train", data, "--out", tmp_path / "model", "--checkpoint-every", "often")
    assert error == (
        "Error: The time between checkpoints must be a time such as 90s, 10m or 2h. "
        "Got 'often' instead."
    )
