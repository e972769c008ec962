"""`longtail data` and `predict` on files that are hostile or could be two things."""

import os
import subprocess

import pytest
from command_line import LONGTAIL, fail, succeed

from longtail.data import load


def test_a_line_that_took_minutes_to_recognize(tmp_path):
    path = tmp_path / "re.txt"
    path.write_text("0" + ":1111" * 30 + "x\n")
    assert "the format is not recognized" in fail("data", "info", path)


def test_the_format_can_be_given(tmp_path):
    path = tmp_path / "x"
    path.write_text("text,labels\nb\n__label__x c\n")
    assert "say which it is with --format fasttext or --format csv" in fail("data", "info", path)
    assert (
        "1 labels, documents as texts"
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
