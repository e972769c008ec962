"""The command line, end to end: the commands on small planted data, their errors, their exits."""

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from command_line import LONGTAIL, fail, run, succeed, write_sparse, write_texts
from typer.testing import CliRunner

from longtail.bars import Bars, Lines
from longtail.cli import app
from longtail.cli.exits import Interrupted, if_interrupted, remember_ctrl_c
from longtail.cli.models import list_parameters
from longtail.cli.output import open_output
from longtail.cli.settings import gather_settings
from longtail.cli.show import shorten
from longtail.errors import ParameterError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with planted data and a model trained on each kind of it."""
    folder = tmp_path_factory.mktemp("cli")
    write_texts(folder / "train.jsonl", 200, seed=1)
    write_texts(folder / "test.jsonl", 50, seed=2)
    write_sparse(folder / "train.txt", 200, seed=1)
    write_sparse(folder / "test.txt", 50, seed=2)
    succeed(
        "train",
        folder / "train.jsonl",
        "--model",
        "linear",
        "--out",
        folder / "model",
        "--valid",
        "0",
    )
    succeed(
        "train",
        folder / "train.txt",
        "--model",
        "linear",
        "--out",
        folder / "rows-model",
        "--valid",
        "0",
    )
    return folder


# ------------------------------------------------------------------------------- help and mistakes


def test_help_answers_in_a_blink():
    def cpu_seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*LONGTAIL, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_seconds() for _ in range(3)) < 0.4


def test_help_imports_nothing_heavy():
    heavy = "{'numpy', 'scipy', 'numba', 'sklearn', 'pyarrow', 'rich'}"
    code = f"import sys, longtail.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_version():
    from longtail import __version__

    done = subprocess.run([*LONGTAIL, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"longtail {__version__}\n"


def test_a_group_alone_shows_its_help():
    assert "Commands:" in succeed("data").stdout


def test_longtail_alone_shows_what_a_newcomer_needs():
    lines = succeed().stdout.splitlines()
    commands = [line.split()[1] for line in lines if line.startswith("  longtail ")]
    assert commands == ["demo", "train", "predict"]
    assert len(lines) < 10


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "No such command 'trian'; did you mean 'train'?"),
        (["data", "inof"], "No such command 'inof'; did you mean 'info'?"),
        (
            ["xyz"],
            "No such command 'xyz'; there are demo, models, train, evaluate, calibrate, predict, "
            "compare, plan, explain, update, serve, info, verify, labels, data, feedback, vocab",
        ),
        (
            ["train", "x", "--modle", "linear"],
            "No such option '--modle'; did you mean '--model'? (see longtail train --help)",
        ),
        (["demo", "--xyzzy"], "No such option '--xyzzy' (see longtail demo --help)"),
        (
            ["--verison"],
            "No such option '--verison'; did you mean '--version'? (see longtail --help)",
        ),
        (["evaluate", "m"], "Missing argument 'DATA' (see longtail evaluate --help)"),
        (["train", "x"], "Missing option '--out' (see longtail train --help)"),
    ],
)
def test_misspelt_commands_and_options(args, message):
    result = CliRunner().invoke(app, args, prog_name="longtail")
    assert result.exit_code == 2
    assert result.stderr == f"Error: {message}\n"


def break_verify(monkeypatch):
    def crash(path):
        raise ZeroDivisionError("all is lost")

    monkeypatch.setattr("longtail.runtime.store.verify_folder", crash)


def test_a_bug_is_one_line_and_says_how_to_see_more(monkeypatch):
    break_verify(monkeypatch)
    result = run("verify", "somewhere")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: a bug in longtail, ZeroDivisionError: all is lost "
        "(set LONGTAIL_DEBUG=1 to see where it happened)\n"
    )


@pytest.mark.parametrize("env", [True, False])
def test_debug_shows_the_traceback(monkeypatch, env):
    break_verify(monkeypatch)
    monkeypatch.setenv("LONGTAIL_DEBUG", "1" if env else "0")
    result = run(*([] if env else ["--debug"]), "verify", "somewhere")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "in crash" in result.stderr


def test_a_system_error_is_one_line(monkeypatch):
    def fill_disk(path):
        raise OSError(28, "No space left on device", "/full")

    monkeypatch.setattr("longtail.runtime.store.verify_folder", fill_disk)
    assert fail("verify", "somewhere") == "Error: /full: No space left on device"


def test_interruption_without_a_word_from_the_command(monkeypatch):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("longtail.runtime.store.verify_folder", interrupt)
    result = run("verify", "somewhere")
    assert result.exit_code == 130
    assert result.stderr == "Stopped: nothing was written.\n"


def test_if_interrupted_says_what_is_kept():
    with pytest.raises(Interrupted, match=r"^the first half\.$"), if_interrupted("the first half."):
        raise KeyboardInterrupt


def test_what_ctrl_c_breaks_off_may_say_something_else():
    with remember_ctrl_c():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted, match=r"^half\.$"), if_interrupted("half."):
            raise ImportError("initialization failed")
    with pytest.raises(ImportError), if_interrupted("half."):
        raise ImportError("initialization failed")


def test_ctrl_c_while_options_are_read_is_one_line(monkeypatch):
    def press(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.make_context", press)
    result = CliRunner().invoke(app, ["models"])
    assert (result.exit_code, result.stderr) == (130, "Stopped: nothing was written.\n")


# ------------------------------------------------------------------------------------------- train


def test_train_measures_saves_and_says_what_is_next(files, tmp_path):
    out = tmp_path / "model"
    result = succeed("train", files / "train.jsonl", "--model", "linear", "--out", out, "--seed", 3)
    begun, chosen, measured, *_ = result.stderr.splitlines()
    assert chosen.startswith("Chosen: C is ")
    assert begun == (
        "Measuring: training on 180 of 200 documents, testing on 20 (--valid 0 skips this)"
    )
    assert measured.startswith("Measured: P@1 100.0, P@3 ")
    assert "On 20 held-out documents, in percent" in result.stdout
    assert f"The linear model of 200 documents and 4 labels is in {out}" in result.stdout
    assert f"  longtail evaluate {out} TEST_DATA" in result.stdout
    assert f"  longtail predict {out} NEW_DOCUMENTS" in result.stdout
    assert "\x1b" not in result.output
    succeed("verify", out)


def test_a_folder_is_trained_on_one_part_and_evaluated_on_the_other(tmp_path):
    data, out = tmp_path / "my data", tmp_path / "model"
    data.mkdir()
    write_texts(data / "train.jsonl", 200, seed=1)
    write_texts(data / "test.jsonl", 50, seed=2)
    shown = succeed("train", data, "--model", "linear", "--out", out, "--valid", 0).stdout
    assert "The linear model of 200 documents and 4 labels" in shown
    assert f"  longtail evaluate {out} '{data}'" in shown
    report = json.loads(succeed("evaluate", out, data, "--json", "-").stdout)
    assert report["n_documents"] == 50


def test_train_checks_values_before_it_reads_anything(tmp_path):
    error = fail(
        "train",
        "no-such-data",
        "--model",
        "linear",
        "--out",
        tmp_path / "model",
        "--set",
        "trees=0",
    )
    assert error == "Error: The 'trees' parameter of Linear must be from 1 to 1000. Got 0 instead."


def test_train_without_validation(files, tmp_path):
    out = tmp_path / "model"
    result = succeed(
        "train", files / "train.jsonl", "--model", "linear", "--out", out, "--valid", 0
    )
    (chosen,) = result.stderr.splitlines()
    assert chosen.startswith("Chosen: C is ")
    assert "held-out" not in result.stdout


def test_train_on_few_documents_skips_validation_with_a_note(tmp_path):
    data = write_texts(tmp_path / "few.jsonl", 30, seed=4)
    result = succeed("train", data, "--model", "linear", "--out", tmp_path / "model")
    assert result.stderr.splitlines()[0] == (
        "Note: 30 documents are too few to hold some out for measuring (at least 100 are needed)."
    )


def test_train_refuses_an_existing_path_before_it_reads_anything(files):
    error = fail("train", "no-such-data", "--out", files / "model")
    assert error == (
        f"Error: {files / 'model'} already exists; choose another --out, or add --overwrite"
    )


def test_train_overwrites_when_asked(files, tmp_path):
    out = tmp_path / "model"
    for extra in ([], ["--overwrite"]):
        succeed(
            "train", files / "train.jsonl", "--model", "linear", "--out", out, "--valid", 0, *extra
        )
    succeed("verify", out)


@pytest.mark.parametrize("valid", ["1", "-0.1", "nan"])
def test_train_checks_valid(valid):
    error = fail("train", "x", "--out", "y", "--valid", valid)
    assert (
        error == "Error: The 'valid' parameter of train must be at least 0 and below 1. "
        f"Got {valid} instead."
    )


def test_train_names_the_nearest_parameter(tmp_path):
    error = fail("train", "x", "--model", "linear", "--out", tmp_path / "y", "--set", "sead=3")
    assert "sead" in error
    assert "did you mean 'seed'?" in error


def test_train_names_the_nearest_model(tmp_path):
    error = fail("train", "x", "--out", tmp_path / "y", "--model", "liner")
    assert "did you mean 'linear'?" in error


def test_train_checks_the_parts_of_set():
    error = fail("train", "x", "--out", "y", "--set", "seed")
    assert error == "Error: --set needs key=value, such as trees=3. Got 'seed' instead."


def test_settings_precedence(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('model = "glas"\ntrees = 3\nseed = 1\nfast = true\nrate = 0.5\n')
    assert gather_settings(None, None, [], {"seed": None})[:2] == ("fusion", {})
    assert gather_settings(None, config, ["trees=7"], {})[:2] == (
        "glas",
        {"trees": "7", "seed": "1", "fast": "true", "rate": "0.5"},
    )
    name, settings, _ = gather_settings("linear", config, [], {"seed": 9})
    assert (name, settings["seed"]) == ("linear", "9")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"trees = ", "is not a TOML file"),
        (b"\xff\xfe", "is not a TOML file"),
        (
            b"[trees]\nn = 1\n",
            "'trees' must be a text, a number, true or false. Got a dict instead.",
        ),
    ],
)
def test_config_mistakes(tmp_path, content, message):
    config = tmp_path / "config.toml"
    config.write_bytes(content)
    with pytest.raises(ParameterError) as caught:
        gather_settings(None, config, [], {})
    assert str(config) in str(caught.value)
    assert message in str(caught.value)


def test_a_setting_given_twice_is_an_error():
    with pytest.raises(ParameterError, match=r"^--set gives 'trees' twice: 1 and 2$"):
        gather_settings(None, None, ["trees=1", "trees=2"], {})
    with pytest.raises(ParameterError, match=r"^--seed and --set both give the seed: 1 and 2$"):
        gather_settings(None, None, ["seed=2"], {"seed": 1})


def test_ctrl_c_in_training_leaves_nothing_behind(tmp_path):
    rng = np.random.default_rng(0)
    with (tmp_path / "big.jsonl").open("w") as file:
        for _ in range(20_000):
            words = " ".join(f"w{i}" for i in rng.integers(0, 30_000, size=40))
            labels = [f"l{i}" for i in rng.integers(0, 3_000, size=3)]
            file.write(json.dumps({"text": words, "labels": labels}) + "\n")
    command = [*LONGTAIL, "train", "big.jsonl", "--model", "linear", "--out", "model"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stderr.readline().startswith("Measuring: training on 18,000")
        time.sleep(0.5)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        message = child.stderr.read()
        assert child.wait(timeout=20) == 130  # 0 if it went on to the end
    assert message == "Stopped: no model was saved and model is as it was before.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["big.jsonl"]


LOADING = """
import sys
from longtail.__main__ import main

class Press:
    def find_spec(name, path=None, target=None):
        if name == "longtail.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Press)
main()
"""

ENDING = """
import atexit, os, signal, sys
from longtail.__main__ import main

atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["longtail", "models"]
main()
"""


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [(LOADING, 130, "Stopped: nothing was written.\n"), (ENDING, 0, "")],
)
def test_ctrl_c_before_and_behind_a_command_is_no_traceback(program, code, message):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, message)


# ---------------------------------------------------------------------------------------- evaluate


@pytest.mark.parametrize(("model", "data"), [("model", "test.jsonl"), ("rows-model", "test.txt")])
def test_evaluate_shows_metrics_and_bands(files, model, data, tmp_path):
    report_file = tmp_path / "report.json"
    result = succeed("evaluate", files / model, files / data, "--json", report_file)
    report = json.loads(report_file.read_text())
    names = ("P", "nDCG", "PSP", "PSnDCG", "recall", "coverage")
    means = ("micro", "macro", "document")
    metrics = [f"{name}@{k}" for name in names for k in (1, 3, 5)]
    metrics += [f"F1-{mean}@{k}" for mean in means for k in (1, 3, 5)]
    assert sorted(report) == sorted([*metrics, "ECE", "n_documents", "seconds"])
    assert report["P@1"] > 95
    assert report["n_documents"] == 50
    assert "linear on 50 documents, in percent" in result.stdout
    for word in (*names, "F1-macro", "head", f"{report['PSP@3']:.2f}"):
        assert word in result.stdout


def test_evaluate_json_on_stdout_is_all_there_is(files):
    result = succeed("evaluate", files / "model", files / "test.jsonl", "--json", "-")
    assert json.loads(result.stdout)["n_documents"] == 50


def test_evaluate_counts_labels_that_the_model_never_saw(files, tmp_path):
    data = tmp_path / "new.jsonl"
    data.write_text(
        '{"text": "hops malt", "labels": ["aaa-new", "beer"]}\n'
        '{"text": "rook pawn", "labels": ["zzz-new"]}\n'
    )
    result = succeed("evaluate", files / "model", data, "--json", "-")
    assert json.loads(result.stdout)["P@1"] == 50
    assert json.loads(result.stdout)["recall@5"] == 25


def test_evaluate_propensity_changes_only_ps_metrics(files):
    reports = [
        json.loads(
            succeed("evaluate", files / "model", files / "test.jsonl", "--json", "-", *more).stdout
        )
        for more in ([], ["--propensity", "amazon"])
    ]
    changed = {key for key in reports[0] if reports[0][key] != reports[1][key]} - {"seconds"}
    assert changed
    assert all(key.startswith("PS") for key in changed)


def test_evaluate_names_the_nearest_propensity(files):
    error = fail("evaluate", "m", "d", "--propensity", "amazn")
    assert error == (
        "Error: --propensity must be one of default, wikipedia, amazon. "
        "Got 'amazn' instead; did you mean 'amazon'?"
    )


def test_texts_for_a_model_of_rows_and_the_reverse(files):
    for model, data in (("model", "test.txt"), ("rows-model", "test.jsonl")):
        error = fail("evaluate", files / model, files / data)
        assert "trained on" in error


def test_evaluate_without_a_model(files, tmp_path):
    assert str(tmp_path / "none") in fail("evaluate", tmp_path / "none", files / "test.jsonl")


# ----------------------------------------------------------------------------------------- predict


def answers(result):
    return [json.loads(line)["labels"] for line in result.stdout.splitlines()]


def test_predict_reads_lines_of_text_from_stdin(files):
    result = succeed("predict", files / "model", "-", "-k", 2, stdin="hops malt brew\nrook pawn\n")
    first, second = answers(result)
    assert [len(first), len(second)] == [2, 2]
    assert (first[0]["label"], second[0]["label"]) == ("beer", "chess")
    assert 1 >= first[0]["score"] > first[1]["score"] >= 0
    assert result.stderr == ""


def test_predict_reads_json_lines_from_stdin(files):
    stdin = '{"text": "hops malt brew"}\n{"text": "wind mast"}\n'
    labels = [
        row[0]["label"] for row in answers(succeed("predict", files / "model", "-", stdin=stdin))
    ]
    assert labels == ["beer", "sailing"]


def test_predict_reads_files_of_texts_and_rows(files):
    from_texts = answers(succeed("predict", files / "model", files / "test.jsonl"))
    from_rows = answers(succeed("predict", files / "rows-model", files / "test.txt"))
    assert len(from_texts) == len(from_rows) == 50


def test_predict_reads_sparse_rows_from_stdin(files):
    rows = (files / "test.txt").read_text()
    assert len(answers(succeed("predict", files / "rows-model", "-", stdin=rows))) == 50


def test_predict_reads_a_table_from_stdin(files):
    table = 'text,labels\n"hops, malt",beer\nrook,chess\n'
    rows = answers(succeed("predict", files / "model", "-", stdin=table))
    assert [row[0]["label"] for row in rows] == ["beer", "chess"]


def test_predict_names_the_broken_line_of_stdin(files):
    lines = '{"text": "hops"}\n' * 9000 + "{\n"
    result = run("predict", files / "model", "-", stdin=lines)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: <stdin>:9001: ")


def test_predict_k_above_the_number_of_labels(files):
    (row,) = answers(succeed("predict", files / "model", "-", "-k", 100, stdin="hops\n"))
    assert len(row) == 4


def test_predict_checks_k(files):
    error = fail("predict", files / "model", "-", "-k", 0, stdin="")
    assert error == "Error: -k must be at least 1. Got 0 instead."


def test_predict_into_a_file(files, tmp_path):
    out = tmp_path / "labels.jsonl"
    result = succeed("predict", files / "model", files / "test.jsonl", "--out", out)
    assert result.stdout == ""
    assert len(out.read_text().splitlines()) == 50
    error = fail("predict", files / "model", files / "test.jsonl", "--out", out)
    assert error == f"Error: {out} already exists; choose another --out, or add --overwrite"
    succeed("predict", files / "model", "-", "--out", out, "--overwrite", stdin="hops\n")
    assert len(out.read_text().splitlines()) == 1


def test_predict_writes_the_file_whole_or_not_at_all(files, tmp_path):
    data = write_texts(tmp_path / "broken.jsonl", 20, seed=5)
    with data.open("a") as file:
        file.write('{"text": "cut\n')
    error = fail("predict", files / "model", data, "--out", tmp_path / "labels.jsonl")
    assert error.startswith(f"Error: {data}:21: ")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.jsonl"]


def test_output_survives_a_failure_of_its_replacement(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text("old")
    with pytest.raises(TypeError), open_output(path) as file:
        file.writelines(["new", None])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_predict_answers_before_its_input_ends(files):
    command = [*LONGTAIL, "predict", str(files / "model"), "-", "-k", "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        for text, label in (("hops malt\n", "beer"), ("rook pawn\n", "chess")):
            child.stdin.write(text)
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["labels"][0]["label"] == label
        child.stdin.close()
        assert child.wait(timeout=20) == 0


def test_a_reader_that_stops_reading_gets_no_complaint(files, tmp_path):
    data = write_texts(tmp_path / "many.jsonl", 5_000, seed=6)
    command = [*LONGTAIL, "predict", str(files / "model"), str(data)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline().startswith('{"labels": [{"label": "')
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(timeout=20) == 141


# ----------------------------------------------------------------------------- models, data, verify


def test_models_lists_every_model():
    from longtail.models import get_model_class, model_names

    listed = succeed("models").stdout
    for name in model_names():
        assert name in listed
        assert get_model_class(name).summary.split()[0] in listed


def test_models_shows_parameters_from_the_constructor():
    from longtail.models import Linear

    parameters = {each.name: each for each in list_parameters(Linear)}
    assert parameters["seed"].default == Linear().seed
    assert all(each.help for each in parameters.values())
    shown = succeed("models", "linear").stdout
    assert all(name in shown for name in parameters)


def test_models_as_json():
    (linear,) = json.loads(succeed("models", "linear", "--json", "-").stdout)
    assert linear["name"] == "linear"
    assert {"name", "type", "default", "range", "description"} == set(linear["parameters"][0])


def test_models_suggests_the_nearest():
    assert "did you mean 'linear'?" in fail("models", "linaer")


def test_data_info(files, tmp_path):
    shown = succeed("data", "info", files / "train.jsonl").stdout
    assert "4 labels, documents as texts" in shown
    assert "Problems:" in shown  # planted texts repeat
    found = json.loads(succeed("data", "info", files / "train.jsonl", "--json", "-").stdout)
    assert found["train"]["n_documents"] == 200
    assert (
        "4 labels, documents as features, 15 features"
        in succeed("data", "info", files / "train.txt").stdout
    )


def test_data_convert_there_and_back(files, tmp_path):
    table, back = tmp_path / "data.csv", tmp_path / "back.jsonl"
    shown = succeed("data", "convert", files / "train.jsonl", table).stdout
    assert shown == f"200 documents with 4 labels are in {table}\n"
    succeed("data", "convert", table, back)
    rows = [json.loads(line) for line in back.read_text().splitlines()]
    original = [json.loads(line) for line in (files / "train.jsonl").read_text().splitlines()]
    assert rows == original
    assert str(back) in fail("data", "convert", table, back)


def test_data_info_of_nothing(tmp_path):
    assert str(tmp_path / "none") in fail("data", "info", tmp_path / "none")


def test_verify_whole_and_damaged(files, tmp_path):
    out = tmp_path / "model"
    succeed("train", files / "train.jsonl", "--model", "linear", "--out", out, "--valid", 0)
    assert succeed("verify", out).stdout.startswith(f"{out} is complete: a linear model in ")
    weights = out / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "weights.safetensors" in fail("verify", out)


# -------------------------------------------------------------------------------------------- demo


def test_demo_trains_measures_and_shows_documents(monkeypatch, tmp_path):
    from longtail.data import Splits, debian

    whole = debian.load_debian()
    few = Splits(whole.train.take(np.arange(500)), whole.test.take(np.arange(60)))
    monkeypatch.setattr(debian, "load_debian", lambda: few)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time it replaces its own model
        shown = succeed("demo").stdout
    assert "500 documents to train on, 60 to test on" in shown
    assert "On the 60 test documents, in percent" in shown
    assert shown.count("✓") > 3
    assert "longtail predict demo-model -" in shown
    succeed("verify", "demo-model")


# ------------------------------------------------------------------------------------- small parts


def test_bars_name_the_stage(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("longtail.bars.KEPT_AFTER", 0.05)
    with Bars() as progress:
        progress.advance(1)  # before any stage: nothing to move
        progress.stage("Growing [the] tree", 10)
        progress.advance(4)
        time.sleep(0.06)
        progress.stage("labels", 0)
    shown = capsys.readouterr()
    assert "Growing [the] tree" in shown.err
    assert "100 %" in shown.err
    last_drawn = shown.err.rpartition("Growing")[2]
    assert "labels" not in last_drawn  # too short a stage to keep its bar
    assert shown.out == ""


def test_lines_report_only_stages_that_took_a_while(monkeypatch, capsys):
    monkeypatch.setattr("longtail.bars.SHOWN_AFTER", 0.05)
    with Lines() as progress:
        progress.stage("quick", 1)
        progress.advance(1)
        progress.stage("slow", 1)
        time.sleep(0.06)
    shown = capsys.readouterr()
    assert shown.err.startswith("slow: 0.")
    assert shown.err.count("\n") == 1


def test_shorten_marks_the_cut():
    assert shorten("short") == "short"
    assert shorten("x" * 1000) == "x" * 299 + "…"
