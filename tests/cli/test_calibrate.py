"""Probabilities on the command line: train, calibrate, predict and evaluate with a threshold."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from longtail import load_model
from longtail.cli import app

LABELS = ["beer", "bread", "chess", "sailing", "tea"]


def write_texts(path, n=400, seed=0, labels=LABELS):
    """Write texts whose words name their labels, some of them wrongly."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        chosen = [label for label in labels if rng.random() < 0.3]
        words = [label for label in chosen if rng.random() < 0.8]
        words += [str(rng.choice(labels)), "the", "a"]
        lines.append(json.dumps({"text": " ".join(words), "labels": chosen}))
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*args, code=0, stdin=None):
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    write_texts(folder / "train.jsonl")
    write_texts(folder / "more.jsonl", seed=1)
    run("train", folder / "train.jsonl", "--model", "linear", "--out", folder / "model")
    plain = ("--model", "linear", "--valid", 0)
    run("train", folder / "train.jsonl", *plain, "--out", folder / "plain")
    return folder


def test_train_gives_probabilities(files, tmp_path):
    calibration = load_model(files / "model").calibration_
    assert calibration.method == "isotonic"
    assert calibration.n_documents == 40
    assert load_model(files / "plain").calibration_ is None
    more = ("--model", "linear", "--calibration", "none", "--out", tmp_path / "none")
    result = run("train", files / "train.jsonl", *more)
    assert load_model(tmp_path / "none").calibration_ is None
    assert "the scores are not probabilities" in result.stdout


def test_train_says_how_good_the_probabilities_are(files, tmp_path):
    more = ("--model", "linear", "--calibration", "logistic", "--out", tmp_path / "model")
    result = run("train", files / "train.jsonl", *more)
    assert "Expected calibration error of the first five labels: 0." in result.stdout
    assert "Labels with a probability of 0." in result.stdout
    assert load_model(tmp_path / "model").calibration_.method == "logistic"


def test_held_out_documents_without_labels(files, tmp_path):
    """Only the documents that training keeps have labels."""
    rows = [json.loads(line) for line in (files / "train.jsonl").read_text().splitlines()]
    held_out = np.random.default_rng(0).permutation(400)[:40]
    for i in held_out:
        rows[i]["labels"] = []
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)) + "\n")
    result = run("train", data, "--model", "linear", "--out", tmp_path / "model")
    assert "Note: no probabilities: not one label predicted for the 40 held-out" in result.stderr
    assert load_model(tmp_path / "model").calibration_ is None


def test_calibrate_a_model_that_has_none(files, tmp_path):
    out = tmp_path / "model"
    result = run("calibrate", files / "plain", files / "more.jsonl", "--out", out)
    assert f"The linear model in {out} gives probabilities now, learned from 400" in result.stdout
    assert load_model(out).calibration_.n_documents == 400
    assert load_model(files / "plain").calibration_ is None
    run("calibrate", out, files / "more.jsonl", "--method", "logistic")
    assert load_model(out).calibration_.method == "logistic"


def test_predict_above_a_threshold(files):
    texts = "beer beer tea\nnothing known\nchess\n"

    def labels(*options):
        result = run("predict", files / "model", "-", *options, stdin=texts)
        return [json.loads(line)["labels"] for line in result.stdout.splitlines()]

    chosen = labels("--threshold", "auto")
    threshold = load_model(files / "model").calibration_.thresholds["micro"]
    assert all(each["score"] >= threshold for row in chosen for each in row)
    assert labels("--threshold", "1") == [[], [], []]
    assert [len(row) for row in labels("--threshold", "0")] == [5, 5, 5]
    assert [len(row) for row in labels("--threshold", "0", "-k", 2)] == [2, 2, 2]
    assert labels("--threshold", "auto-document")


@pytest.mark.parametrize("threshold", ["1.5", "-0.1", "often", "nan", "auto-macro", ""])
def test_thresholds_that_are_none(files, threshold):
    result = run("predict", files / "model", "-", f"--threshold={threshold}", code=2, stdin="x\n")
    assert (
        "Error: The threshold must be a probability from 0 to 1, auto or auto-doc" in result.stderr
    )


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_threshold_needs_probabilities(files, command):
    result = run(command, files / "plain", files / "more.jsonl", "--threshold", "auto", code=2)
    assert result.stderr == (
        "Error: a threshold needs probabilities, which this model does not give yet; calibrate it "
        "first on documents that it was not trained on: longtail calibrate DIR DATA, or "
        "model.calibrate(data)\n"
    )


def test_evaluate_reports_f1_and_calibration(files, tmp_path):
    def report(*options):
        run("evaluate", files / "model", files / "more.jsonl", *options, "--json", tmp_path / "r")
        return json.loads((tmp_path / "r").read_text())

    auto, half = report(), report("--threshold", "0.5")
    names = {f"{m}-{mean}" for m in ("precision", "recall", "F1") for mean in ("micro", "macro")}
    assert names | {"F1-document", "ECE", "labels-per-document"} <= set(auto)
    assert auto["threshold"] == load_model(files / "model").calibration_.thresholds["micro"]
    assert half["threshold"] == 0.5
    assert 0 < auto["ECE"] < 0.2
    assert 50 < auto["F1-micro"] <= 100
    shown = run("evaluate", files / "model", files / "more.jsonl").stdout
    assert f"{auto['F1-document']:.2f}" in shown
    assert "Expected calibration error of the first five labels:" in shown


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_the_reliability_plot(files, tmp_path, suffix):
    plot = tmp_path / f"plot.{suffix}"
    run("evaluate", files / "model", files / "more.jsonl", "--reliability", plot)
    text = plot.read_text()
    assert "share that is right" in text
    assert text.startswith("<svg" if suffix == "svg" else "<!doctype html>")
    result = run("evaluate", files / "model", files / "more.jsonl", "--reliability", plot, code=2)
    assert f"{plot} already exists; choose another --reliability" in result.stderr


def test_the_reliability_plot_as_png(files, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    run("evaluate", files / "model", files / "more.jsonl", "--reliability", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_plot_with_another_suffix(files, tmp_path):
    plot = tmp_path / "plot.pdf"
    result = run("evaluate", files / "model", files / "more.jsonl", "--reliability", plot, code=2)
    assert "must be a file that ends in .svg or .html or .png" in result.stderr


def test_what_calibrate_refuses(files, tmp_path):
    other = write_texts(tmp_path / "other.jsonl", labels=["golf", "opera"])
    result = run("calibrate", files / "plain", other, code=2)
    assert "of 400 documents, none carries a label that the model knows" in result.stderr
    assert "they have 2 others, such as 'golf'" in result.stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    run("calibrate", files / "plain", empty, code=2)
    result = run("calibrate", files / "plain", other, "--out", files / "model", code=2)
    assert f"{files / 'model'} already exists; choose another --out" in result.stderr
    result = run("calibrate", files / "plain", other, "--method", "magic", code=2)
    assert "magic" in result.stderr
    run("calibrate", tmp_path / "nowhere", other, code=2)


def test_an_embedding_that_may_have_seen_the_documents(files, tmp_path):
    pytest.importorskip("torch")
    fast = ("--set", "dim=8", "--set", "epochs=1", "--device", "cpu")
    run("train", files / "train.jsonl", "--model", "glas", *fast, "--out", tmp_path / "glas")
    space = ("--set", f"space={tmp_path / 'glas'}")
    result = run(
        "train", files / "train.jsonl", "--model", "knn", *space, "--out", tmp_path / "knn"
    )
    assert "Note: nothing is measured and no probabilities are learned, as the model that" in (
        result.stderr
    )
    assert load_model(tmp_path / "knn").calibration_ is None
