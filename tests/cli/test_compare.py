"""`longtail compare`, end to end on small planted data."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from command_line import LONGTAIL, fail, run, succeed, write_sparse, write_texts

from longtail.cli.compare import ComparisonBars

WITH_SEEDS = ("--models", "linear:preset=fast,linear", "--seed", "7", "--seeds", "2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "train.jsonl", 120, seed=0)
    write_texts(folder / "test.jsonl", 40, seed=1)
    return folder


@pytest.fixture(scope="module")
def with_seeds(data, tmp_path_factory):
    """What is shown of two models with two seeds each, trained in turn, and where that lies."""
    out = tmp_path_factory.mktemp("seeds") / "report"
    return succeed("compare", data, *WITH_SEEDS, "--threads", "1", "--out", out), out


def read_results(out):
    return json.loads((out / "results.json").read_text())


def test_two_models_side_by_side(data, tmp_path, monkeypatch):
    out = tmp_path / "report"
    models = "linear,linear:preset=fast"
    arguments = ["compare", str(data), "--models", models, "--seed", "5", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/longtail", *arguments])
    shown = succeed(*arguments)
    assert "1/2 linear: trained in" in shown.stderr
    assert f"The report is {out}/report.html" in shown.stdout
    assert "P@1: linear and linear:preset=fast are highest" in shown.stdout
    results = read_results(out)
    assert [method["name"] for method in results["methods"]] == ["linear", "linear:preset=fast"]
    assert results["methods"][0]["metrics"]["P@1"]["value"] > 90
    assert results["data"]["n_test"] == 40
    assert results["data"]["origin"] == "the test split of the data"
    assert set(results["files"]) == {"train.jsonl", "test.jsonl"}
    assert results["command"] == " ".join(["longtail", *arguments])
    assert results["seeds"] == [5]
    assert results["methods"][0]["metrics"]["P@1"]["sd"] is None  # there is one seed
    with np.load(out / "runs" / "linear" / "seed-5" / "top.npz") as top:
        assert top["labels"].shape == (40, 4)
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert "| linear " in (out / "table.md").read_text()
    assert "± half of the 95 % confidence interval" in (out / "table.md").read_text()
    assert not (out / "scratch").exists()


def test_more_models_are_added_to_what_is_there(data, tmp_path):
    out = tmp_path / "report"
    succeed("compare", data, "--models", "linear", "--out", out, "--keep-models")
    assert (out / "models" / "linear" / "seed-0" / "config.json").exists()
    assert "already holds a comparison" in fail("compare", data, "--models", "linear", "--out", out)
    models = "linear,linear:trees=1"
    again = succeed("compare", data, "--models", models, "--out", out, "--resume")
    assert "1/2 linear: already finished" in again.stderr
    assert "2/2 linear:trees=1: trained in" in again.stderr
    other = write_texts(tmp_path / "other.jsonl", 50, seed=2)
    error = fail("compare", other, "--models", "linear", "--out", out, "--resume")
    assert "holds a comparison on other documents" in error


def test_rows_with_seeds_and_settings(tmp_path):
    data = write_sparse(tmp_path / "rows.txt", 100, seed=0)
    out = tmp_path / "report"
    options = ["--set", "linear.trees=1", "--seeds", "3,4", "--valid", "0.5", "--threads", "1"]
    succeed("compare", data, "--models", "linear", "--out", out, *options)
    (method,) = read_results(out)["methods"]
    assert method["seeds"] == [3, 4]
    assert method["setting"] == {"model": "linear", "trees": "1"}
    assert read_results(out)["data"]["n_test"] == 50


def test_a_number_of_seeds_counts_up_and_gives_mean_and_deviation(with_seeds):
    shown, out = with_seeds
    assert "1/4 linear:preset=fast (seed 7): trained in" in shown.stderr
    results = read_results(out)
    assert results["seeds"] == [7, 8]
    for method in results["methods"]:
        values = [one["P@3"] for one in method["by_seed"]]
        assert method["metrics"]["P@3"]["sd"] == pytest.approx(np.std(values, ddof=1))
        assert method["metrics"]["P@3"]["value"] == pytest.approx(np.mean(values))
    cell = f"{np.mean(values):.2f} ±{np.std(values, ddof=1):.2f}"
    assert "mean ± standard deviation over the seeds" in shown.stdout
    for text in (shown.stdout, (out / "table.md").read_text()):
        assert cell in text
        assert "seeds" in text
    page = (out / "report.html").read_text()
    assert "± is their standard deviation (n − 1)" in page
    assert "± is half of the 95 % confidence interval" not in page


def test_runs_at_once_find_what_runs_in_turn_find(data, with_seeds, tmp_path):
    at_once = ("--threads", "2", "--jobs", "2", "--out", tmp_path / "at once")
    succeed("compare", data, *WITH_SEEDS, *at_once)
    one, other = (read_results(out) for out in (with_seeds[1], tmp_path / "at once"))
    assert (one["jobs"], other["jobs"]) == (1, 2)
    assert (one["machine"]["threads"], other["machine"]["threads"]) == (1, 1)
    for a, b in zip(one["methods"], other["methods"], strict=True):
        assert (a["name"], a["by_seed"]) == (b["name"], b["by_seed"])
    assert one["differences"] == other["differences"]
    assert "2 methods at once" in (tmp_path / "at once" / "report.html").read_text()


def test_wrong_labels_in_training(data, tmp_path):
    out = tmp_path / "report"
    command = ["compare", data, "--models", "linear", "--noise", "missing=0.6", "--out", out]
    shown = succeed(*command, "--noise-invalid", "0,0.6")
    assert "2/3 linear (missing=0.6): trained in" in shown.stderr
    assert "3/3 linear (invalid=0.6): trained in" in shown.stderr
    assert "Training with missing and invalid labels, in percent" in shown.stdout
    results = read_results(out)
    assert (results["data"]["n_train"], results["noise"]["n_clean"]) == (96, 24)
    assert len(results["methods"]) == 1
    points = results["noise"]["points"]
    assert [(point["kind"], point["rate"]) for point in points] == [
        ("missing", 0),
        ("invalid", 0),
        ("missing", 0.6),
        ("invalid", 0.6),
    ]
    accuracy = {(p["kind"], p["rate"]): p["test"]["P@3"]["value"] for p in points}
    assert accuracy["missing", 0] == results["methods"][0]["metrics"]["P@3"]["value"]
    assert accuracy["missing", 0] > accuracy["invalid", 0.6]
    assert all(point["clean"]["P@1"]["sd"] is None for point in points)
    assert "Wrong labels in training" in (out / "report.html").read_text()
    assert "Missing and invalid labels:" in (out / "table.md").read_text()
    with np.load(out / "runs" / "linear" / "missing=0.6-seed-0" / "top.npz") as top:
        assert len(top["labels"]) == 40 + 24
    again = succeed(*command[:-2], "--noise", "missing=0.3", "--out", out, "--resume")
    assert "linear: already finished" in again.stderr
    assert "linear (missing=0.3): trained in" in again.stderr
    assert "linear (missing=0.6): already finished" in again.stderr
    plain = fail("compare", data, "--models", "linear", "--out", out, "--resume")
    assert "holds a comparison on other documents" in plain


def test_data_that_cannot_be_spoiled(tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text('{"text": "a b", "labels": ["x"]}\n' * 4)
    command = ["compare", few, "--models", "linear", "--valid", "0.5", "--out", tmp_path / "report"]
    error = fail(*command, "--noise", "missing=0.99")
    assert "--noise missing=0.99 leaves no label on any of the 1 documents (seed 0)" in error
    assert "needs at least two labels" in fail(*command, "--noise-invalid", "0.5")
    command[command.index("0.5")] = "0.75"
    assert "1 training document cannot be divided" in fail(*command, "--noise", "missing=0.5")
    assert not (tmp_path / "report").exists()


def test_a_method_that_cannot_do_it_is_a_line(tmp_path):
    pytest.importorskip("torch")
    data = write_sparse(tmp_path / "rows.txt", 60, seed=0)
    out = tmp_path / "report"
    shown = succeed("compare", data, "--models", "attention-xml,linear", "--out", out)
    assert "attention-xml: failed: attention-xml cannot be trained on feature rows" in shown.stderr
    assert "attention-xml failed" in (out / "report.html").read_text()


def test_no_method_at_all(tmp_path):
    data = write_sparse(tmp_path / "rows.txt", 60, seed=0)
    options = ["--models", "linear", "--timeout", "0.1", "--out", tmp_path / "report"]
    result = run("compare", data, *options)
    assert result.exit_code == 2
    assert "Error: no method has finished; " in result.stderr
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "linaer"], "there is no model 'linaer'; did you mean 'linear'?"),
        (["--models", "linear", "--seeds", "1,x"], "or a list of different ones, such as 3,5,8"),
        (["--models", "linear", "--seeds", "1,1"], "--seeds must be how many there are, from 1"),
        (["--models", "linear", "--seeds", "0"], "--seeds must be how many there are, from 1 to"),
        (["--models", "linear", "--seeds", "2,3", "--seed", "1"], "leave it out beside a list"),
        (["--models", "linear", "--seed", "-1"], "A seed must be from 0 to 4294967295. Got -1"),
        (["--models", "linear", "--valid", "1"], "--valid must be above 0 and below 1. Got 1"),
        (["--models", "linear", "--jobs", "0"], "--jobs must be at least 1. Got 0 instead."),
        (["--models", "linear", "--noise", "0.2"], "--noise must be missing or invalid with rates"),
        (["--models", "linear", "--noise", "mising=0.2"], "did you mean 'missing'?"),
        (["--models", "linear", "--noise", "missing=20"], "must be from 0 to below 1, such as 0.2"),
        (["--models", "linear", "--noise", "missing=x"], "below 1, such as 0.2. Got 'x' instead."),
        (["--models", "linear", "--noise", "missing=0.2,0.2"], "--noise names missing=0.2 twice"),
        (["--models", "linear", "--noise", "missing=0"], "--noise needs a rate above 0"),
        (["--models", "linear", "--noise-invalid", "1"], "from 0 to below 1"),
        (["--models", "linear", "--timeout", "0"], "--timeout must be above 0. Got 0 instead."),
        (["--models", "linear", "--propensity", "amazn"], "did you mean 'amazon'?"),
        (["--models", "linear", "--set", "glas.dim=3"], "--set needs MODEL.key=value"),
        (["--models", "linear", "--set", "linear.tree=3"], "did you mean 'trees'?"),
        ([], "Missing option '--models'"),
    ],
)
def test_wrong_options_are_told_before_any_work(data, tmp_path, options, message):
    assert message in fail("compare", data, "--out", tmp_path / "report", *options)
    assert not (tmp_path / "report").exists()


def test_train_with_several_seeds_points_to_compare(data, tmp_path):
    error = fail("train", data, "--out", tmp_path / "model", "--model", "linear", "--seeds", "5")
    assert "train makes one model, with --seed N" in error
    assert "longtail compare DATA --models linear --seeds 5 --out REPORT" in error
    assert not (tmp_path / "model").exists()


def test_unreadable_data(tmp_path):
    out = tmp_path / "report"
    assert "nowhere" in fail("compare", tmp_path / "nowhere", "--models", "linear", "--out", out)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a", "labels": ["b"]}\n{oops\n')
    assert "broken.jsonl:2" in fail("compare", broken, "--models", "linear", "--out", out)
    assert not out.exists()


def test_ctrl_c_keeps_what_is_finished(data, tmp_path):
    out = tmp_path / "report"
    settings = "linear,linear:trees=60"
    command = [*LONGTAIL, "compare", str(data), "--models", settings, "--out", str(out)]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, stdin=subprocess.DEVNULL
    )
    finished = out / "runs" / "linear" / "seed-0" / "run.json"
    deadline = time.monotonic() + 60
    while not finished.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 130, stderr
    assert "1 run is finished in" in stderr
    assert "the same command with --resume continues there." in stderr
    assert not (out / "scratch").exists()
    again = succeed("compare", data, "--models", settings, "--out", out, "--resume")
    assert "1/2 linear: already finished" in again.stderr


def test_help_needs_no_heavy_package():
    code = "import sys; from longtail.cli import app; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_the_stage_at_hand_has_a_bar_below_that_of_the_whole():
    with ComparisonBars(3) as bars:
        bars.stage("1/3 a: training", 10)
        bars.advance(5)
        bars.finish_run()
        bars.stage("2/3 b: training", 0)
        shown = [(task.description, task.completed) for task in bars._bars.tasks]
    assert shown == [("the whole comparison", 1), ("2/3 b: training", 0)]
