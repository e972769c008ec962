"""`longtail data` and `predict` on files that are hostile or could be two things."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from command_line import LONGTAIL, fail, succeed

from longtail.data import load
from longtail.data.documents import EXAMPLES, FORMATS, Format
from longtail.reading import option_table

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "data.md"


def test_a_line_that_took_minutes_to_recognize(tmp_path):
    path = tmp_path / "re.txt"
    path.write_text("0" + ":1111" * 30 + "x\n")
    assert "the format is not recognized" in fail("data", "info", path)


def test_the_format_can_be_given(tmp_path):
    path = tmp_path / "x"
    path.write_text("text,labels\nb\n__label__x c\n")
    assert "say which it is with --format fasttext or --format csv" in fail("data", "info", path)
    assert (
        "1 label, documents as texts"
        in succeed("data", "info", path, "--format", "fasttext").stdout
    )
    out = tmp_path / "x.jsonl"
    succeed("data", "convert", path, out, "--format", "fasttext")
    assert load(out).train.texts == ["text,labels", "b", "c"]
    assert "did you mean 'csv'?" in fail("data", "info", path, "--format", "cvs")


def test_a_text_that_a_format_cannot_hold(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\nb", "labels": ["x"]}\n')
    assert "the text of document 1 has a line break" in fail(
        "data", "convert", tmp_path / "a.jsonl", tmp_path / "b.txt"
    )
    assert not (tmp_path / "b.txt").exists()


@pytest.mark.parametrize("command", [["data", "info"], ["train", "--out", "m"]])
def test_no_command_waits_for_a_pipe_or_a_device(tmp_path, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in ((pipe, "nothing writes into this pipe"), ("/dev/zero", "is a device")):
        done = subprocess.run(
            [*LONGTAIL, *command, path], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert reason in done.stderr


def test_the_output_of_a_command_is_read(tmp_path):
    script = f'{" ".join(LONGTAIL)} data info <(printf "text,labels\\na,x\\nb,y\\n")'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "2 labels, documents as texts" in done.stdout


def test_the_guide_shows_what_the_code_reads():
    """The tables of the guide are made of these lists when it is built."""
    lists = json.loads(succeed("data", "formats", "--json", "-").stdout)
    assert set(lists["Files (--format NAME)"]) == set(FORMATS)
    assert set(EXAMPLES) == set(Format) == set(FORMATS.values())
    shown = re.findall(r"^```\{data\} (.+)$", GUIDE.read_text(), re.MULTILINE)
    assert set(lists) == set(shown)
    assert "Files (--format NAME)" in succeed("data", "formats").stdout


@pytest.mark.parametrize(
    "command",
    ["data info", "data convert", "train", "evaluate", "calibrate", "update", "predict", "compare"],
)
def test_every_command_that_reads_has_the_same_options(command):
    shown = succeed(*command.split(), "--help").stdout
    for option in option_table():
        assert re.search(rf"--{option['name']} {re.escape(option['metavar'])}", shown), option
    formats = next(each["help"] for each in option_table() if each["name"] == "format")
    assert all(name in formats for name in FORMATS)


def test_the_bundled_documents_are_written(tmp_path):
    said = succeed("data", "example", tmp_path / "few.csv", "--documents", "50").stdout
    assert said == f"50 Debian package descriptions are in {tmp_path / 'few.csv'}\n"
    succeed("data", "example", tmp_path / "test.jsonl", "--documents", "50", "--split", "test")
    succeed("data", "example", tmp_path / "both", "--documents", "50")
    train, test = load(tmp_path / "both")
    assert train.texts == load(tmp_path / "few.csv").train.texts
    assert test.texts == load(tmp_path / "test.jsonl").train.texts
    assert len(set(train.texts) | set(test.texts)) == 100


def test_what_cannot_be_written_as_example(tmp_path):
    out = tmp_path / "folder"
    said = fail("data", "example", out, "--documents", "0")
    assert said == "Error: --documents must be at least 1. Got 0 instead."
    said = fail("data", "example", out, "--split", "test")
    assert said == f"Error: --split is for a file, and {out} would be a folder, with both"
    assert list(tmp_path.iterdir()) == []
