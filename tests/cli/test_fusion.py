"""`longtail train` without a model's name, and `explain` of what comes of it."""

import json

import pytest
from planted import planted_texts
from typer.testing import CliRunner

from longtail.cli.app import app
from longtail.models.knn.model import KNN

PARTS = ("--set", "members=linear,knn")


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a file of planted texts."""
    documents = planted_texts()
    lines = [
        {"text": text, "labels": [documents.label_names[label] for label in documents.Y[i].indices]}
        for i, text in enumerate(documents.texts)
    ]
    path = tmp_path_factory.mktemp("fusion") / "train.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.fixture(scope="module")
def trained(data):
    """Return the folder of a model, and what training showed."""
    out = data.parent / "model"
    result = run("train", data, "--out", out, *PARTS)
    assert result.exit_code == 0, result.stderr
    return out, result


def test_fusion_is_trained_unless_a_model_is_named(trained):
    out, result = trained
    assert "Plan for 300 documents and 12 labels on the CPU" in result.stderr
    assert "Measuring" not in result.stderr
    assert "On 300 held-out documents, in percent" in result.stdout
    assert "Expected calibration error of the first five labels: 0.0" in result.stdout
    assert f"The fusion model of 300 documents and 12 labels is in {out}" in result.stdout
    assert not list(out.with_name("model.run").glob("*/members"))


def test_an_explanation_shows_the_votes(trained, tmp_path):
    out, _ = trained
    page = tmp_path / "page.html"
    result = run("explain", out, "word0 word1 word40", "--label", "label 0", "--html", page)
    assert result.exit_code == 0, result.stderr
    assert "linear" in result.stdout
    assert "1. " in result.stdout
    assert "For each member: rank of the label in its list" in result.stdout
    assert "word0" in result.stdout
    assert "<th>knn</th>" in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "soon"), "The budget must be a time such as 90s, 10m or 2h. Got 'soon'"),
        (
            ("--model", "linear", "--budget", "1m"),
            "linear does not plan its time; leave out the budget",
        ),
        (("--set", "members=linear,kn"), "fusion has no member 'kn'; did you mean 'knn'?"),
        (("--budget", "1m", "--set", "budget=2m"), "--budget and --set both give the budget"),
        (
            ("--max-size", "1MB", "--set", "max_size=2MB"),
            "--max-size and --set both give the max_size",
        ),
        (("--max-size", "small"), "'max_size' parameter of Fusion must be such as 300MB or 2GB"),
        (("--max-latency", "5"), "'max_latency' parameter of Fusion must be such as 5ms or 0.5s"),
        (
            ("--model", "linear", "--max-size", "1MB"),
            "linear has no members to leave out; leave out max_size, or train fusion",
        ),
        (("--model", "linear", "--plan"), "linear has no plan to show; leave out --plan"),
        ((*PARTS, "--max-size", "1kB"), "max_size 1.0 kB cannot be met: "),
    ],
)
def test_settings_that_cannot_be(data, tmp_path, options, message):
    result = run("train", data, "--out", tmp_path / "model", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "model").exists()


def test_the_plan_is_shown_and_nothing_is_written(data, tmp_path):
    result = run("train", data, "--plan", *PARTS)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Plan for 300 documents and 12 labels on the CPU")
    result = run("train", data, "--out", tmp_path / "model", "--plan", *PARTS)
    assert result.exit_code == 0, result.stderr
    assert not (tmp_path / "model").exists()


def test_what_members_gain_weigh_and_take_is_said_and_stored(trained):
    out, result = trained
    assert "  knn: gains " in result.stderr
    report = json.loads((out / "config.json").read_text())["report"]
    assert set(report) == {"linear", "knn"}
    assert report["knn"]["n_bytes"] > 0


def test_ctrl_c_in_compiled_code_is_one_line(data, tmp_path, monkeypatch):
    def interrupt(self, X, Y, progress):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            raise SystemError("CPUDispatcher returned a result with an exception set") from stop

    monkeypatch.setattr(KNN, "fit_rows", interrupt)
    stopped = run("train", data, "--out", tmp_path / "model", *PARTS)
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1].startswith("Stopped: no model was saved and ")
    assert "SystemError" not in stopped.stderr
    alone = run("train", data, "--out", tmp_path / "other", "--model", "knn", "--valid", "0")
    assert alone.exit_code == 130
    assert "SystemError" not in alone.stderr


def test_ctrl_c_keeps_the_parts_that_are_done(data, tmp_path, monkeypatch):
    def interrupt(self, X, Y, progress):
        raise KeyboardInterrupt

    command = ("train", data, "--out", tmp_path / "model", *PARTS)
    with monkeypatch.context() as patch:
        patch.setattr(KNN, "fit_rows", interrupt)
        stopped = run(*command)
    assert stopped.exit_code == 130
    assert "the same command with --resume goes on from where it stopped" in stopped.stderr
    again = run(*command)
    assert again.exit_code == 2
    assert "add --resume to go on with it" in again.stderr
    resumed = run(*command, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert (tmp_path / "model" / "config.json").exists()
    assert not list(tmp_path.glob("model.run/*/members"))


def test_probabilities_as_asked_for(data, tmp_path):
    result = run("train", data, "--out", tmp_path / "model", *PARTS, "--calibration", "none")
    assert result.exit_code == 0, result.stderr
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "calibration" not in config


def test_the_card_says_what_each_member_gains(trained):
    out, _ = trained
    notes = json.loads((out / "card.json").read_text())["notes"]
    assert [note.partition(":")[0] for note in notes] == ["linear", "knn"]
    assert not out.with_name("model.run").exists()
    assert run("info", out).stdout.count("\n- linear: ") == 1
