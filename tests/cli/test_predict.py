"""`longtail predict` and `evaluate` as people use them: files in, files out, labels by name."""

import csv
import json
import os
import re
import sys

import pytest
from command_line import fail, planted_rows, succeed, write_texts

import longtail
from longtail.cli import predict as command
from longtail.runtime.device import chosen_device


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of a model."""
    folder = tmp_path_factory.mktemp("predict")
    data = write_texts(folder / "train.jsonl", 200, seed=0)
    succeed("train", data, "--out", folder / "model", "--model", "linear")
    return folder / "model"


def write_table(path, n=30, header=("key", "title", "tags", "votes"), seed=1):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(header)
        for i, (text, labels) in enumerate(planted_rows(n, seed)):
            table.writerow([f"q{i}", f"{text}\nand more", ";".join(labels), i])
    return path


def read_table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_file_is_written_as_csv_with_ids_and_columns(model, tmp_path):
    """Once, ids and columns were lost, and `--out preds.csv` held JSON lines."""
    data = write_table(tmp_path / "new.csv")
    succeed("predict", model, data, "--id", "key", "--out", tmp_path / "preds.csv")
    rows = read_table(tmp_path / "preds.csv")
    assert list(rows[0]) == ["id", "labels", "scores"]
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(30)]
    assert set(rows[0]["labels"].split(";")) == {"beer", "bread", "chess", "sailing"}
    succeed("predict", model, data, "--keep", "-k", "1", "--out", tmp_path / "kept.csv")
    kept = read_table(tmp_path / "kept.csv")
    assert [row["votes"] for row in kept] == [str(i) for i in range(30)]
    assert kept[0]["title"].endswith("\nand more")
    assert kept[0]["labels"] in kept[0]["tags"].split(";")


def test_long_rows(model, tmp_path):
    data = write_table(tmp_path / "new.csv", header=("id", "title", "tags", "votes"))
    succeed("predict", model, data, "--long", "-k", "2", "--out", tmp_path / "long.csv")
    rows = read_table(tmp_path / "long.csv")
    assert [(row["id"], row["rank"]) for row in rows[:4]] == [
        ("q0", "1"), ("q0", "2"), ("q1", "1"), ("q1", "2")
    ]  # fmt: skip
    shown = succeed("predict", model, data, "--long", "-k", "1").stdout
    assert json.loads(shown.splitlines()[0])["label"] == rows[0]["label"]


def test_what_is_written_can_be_read_again(model, tmp_path):
    data = write_table(tmp_path / "new.csv")
    for ending in ("jsonl", "csv", "tsv", "parquet", "xlsx"):
        out = tmp_path / f"preds.{ending}"
        succeed("predict", model, data, "--keep", "--threshold", "0.5", "--out", out)
        if ending != "jsonl":  # whose labels are objects with scores
            again = longtail.load(out, text="title", labels="labels").train
            assert len(again) == 30
            assert set(again.label_names) == {"beer", "bread", "chess", "sailing"}


def test_a_name_that_says_nothing_is_an_error_before_any_work(model, tmp_path):
    error = fail("predict", model, tmp_path / "gone.csv", "--out", tmp_path / "preds")
    assert error == (
        f"Error: {tmp_path / 'preds'}: the name must say what to write: .jsonl, .csv, .tsv, "
        ".parquet, .xlsx. Got 'preds' instead"
    )
    succeed("predict", model, "-", "--out", os.devnull, "--overwrite", stdin="hops\n")


def test_no_command_replaces_what_it_reads(model, tmp_path):
    data = write_texts(tmp_path / "new.jsonl", 5, seed=1)
    (tmp_path / "link.jsonl").symlink_to(data)
    names = tmp_path / "names.txt"
    names.write_text("beer\nbread\n")
    before = data.read_bytes(), names.read_bytes()
    for words, option in (
        (("predict", model, data, "--overwrite", "--out", data), "--out"),
        (("predict", model, data, "--overwrite", "--out", tmp_path / "link.jsonl"), "--out"),
        (("evaluate", model, data, "--json", data), "--json"),
        (("data", "info", data, "--json", data), "--json"),
        (("vocab", "load", names, "--overwrite", "--out", names), "--out"),
    ):
        assert fail(*words) == f"Error: {words[-1]} is what is read; choose another {option}"
    assert (data.read_bytes(), names.read_bytes()) == before


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "xlsx"])
def test_a_file_is_written_whole_or_not_at_all(model, tmp_path, ending):
    data = tmp_path / "broken.jsonl"
    data.write_text('{"text": "hops"}\n' * 9000 + "{broken\n")
    before = sorted(tmp_path.iterdir())
    fail("predict", model, data, "--out", tmp_path / f"preds.{ending}")
    assert sorted(tmp_path.iterdir()) == before


def test_a_terminal_shows_a_table(model, tmp_path, monkeypatch):
    data = write_table(tmp_path / "new.csv", n=3, header=("id", "title", "tags", "votes"))
    monkeypatch.setattr(command, "is_terminal", lambda stream: stream is sys.stdout)
    lines = succeed("predict", model, data, "-k", "1").stdout.splitlines()
    assert "document" in lines[0]
    assert "labels" in lines[0]
    assert "q0: " in lines[2]
    assert re.search(r"(beer|bread|chess|sailing) [01]\.\d\d", lines[2])


def test_results_are_written_as_they_come(model, tmp_path, monkeypatch):
    """Each batch is in the file before the next is read."""
    seen = []
    batches = [longtail.data.as_dataset([text]) for text in ("hops", "rook", "mast")]

    def read(source, options):
        for batch in batches:
            yield batch
            seen.append((next(tmp_path.glob(".preds*"))).read_text().count("\n"))

    monkeypatch.setattr("longtail.data.read_batches", read)
    succeed("predict", model, "x", "--out", tmp_path / "preds.jsonl")
    assert seen == [1, 2, 3]


def test_progress_counts_documents(model, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.bars.NOTED_EVERY", 0.0)
    data = write_table(tmp_path / "new.csv")
    shown = succeed("predict", model, data, "--out", tmp_path / "preds.csv").stderr
    assert "labelling: 30 documents" in shown


def test_the_device_is_chosen_or_refused(model, tmp_path):
    data = write_table(tmp_path / "new.csv")
    succeed("predict", model, data, "--device", "cpu", "--out", tmp_path / "preds.csv")
    assert chosen_device() == "cpu"
    succeed("evaluate", model, data)
    assert chosen_device() == "auto"
    for name in ("predict", "evaluate"):
        assert fail(name, model, data, "--device", "cuda") == (
            "Error: linear predicts on the CPU only; leave out --device cuda"
        )


# -- evaluate -------------------------------------------------------------------------------------


def test_labels_that_the_model_does_not_know_are_an_error(model, tmp_path):
    """Once, this printed 0.00 without a word."""
    data = tmp_path / "test.jsonl"
    data.write_text('{"text": "hops malt", "labels": ["Beer", "Bread"]}\n' * 3)
    assert fail("evaluate", model, data) == (
        "Error: the model knows none of the labels that these documents carry, such as 'Beer', "
        "'Bread'; it knows 'beer', 'bread', 'chess', …; use the names that it was trained with"
    )
    data.write_text('{"text": "hops malt", "labels": []}\n')
    assert fail("evaluate", model, data) == (
        f"Error: {data}: none of the documents carries a label to compare with"
    )


def test_a_share_of_unknown_labels_is_said(model, tmp_path):
    data = tmp_path / "test.jsonl"
    data.write_text('{"text": "hops malt yeast", "labels": ["beer", "Ale"]}\n' * 3)
    assert succeed("evaluate", model, data).stderr.splitlines()[-1] == (
        "Note: the model does not know 1 of the 2 labels that these documents carry, such as "
        "'Ale'; they are 50.0 % of the pairs and count as missed."
    )


def test_a_test_set_that_was_loaded_by_itself_is_compared_by_names(model, tmp_path):
    """Once, ids were compared: 17.5 in place of 95.0."""
    lines = [
        json.dumps({"text": text, "labels": labels})
        for text, labels in planted_rows(100, 1)
        if "beer" not in labels  # so all ids are others than in training
    ]
    data = tmp_path / "test.jsonl"
    data.write_text("\n".join(lines) + "\n")
    test = longtail.load(data).train
    fitted = longtail.load_model(model)
    assert list(test.label_names) != list(fitted.label_names_)
    assert longtail.evaluate(fitted.predict(test), test)["P@1"] > 95
    report = succeed("evaluate", model, data, "--json", "-").stdout
    assert json.loads(report)["P@1"] > 95


def test_metrics_at_any_k(model, tmp_path):
    data = write_table(tmp_path / "new.csv")
    result = succeed("evaluate", model, data, "-k", "1,3,5,10", "--json", tmp_path / "x.json")
    report = json.loads((tmp_path / "x.json").read_text())
    assert {f"{name}@10" for name in ("P", "PSP", "F1-macro", "coverage")} <= set(report)
    assert "@10" in result.stdout
    assert fail("evaluate", model, data, "-k", "1,x") == (
        "Error: -k must be whole numbers of at least 1, such as 1,3,5,10. Got '1,x' instead."
    )
