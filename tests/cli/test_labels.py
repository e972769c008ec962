"""`longtail labels`, as a user types it."""

import json

import pytest

from longtail import load_model
from longtail.cli import labels as command
from tests.command_line import fail, succeed, write_texts


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    data = write_texts(folder / "train.jsonl", 200, seed=0)
    succeed("train", data, "--model", "linear", "--valid", "0", "--out", folder / "model")
    return folder / "model"


def names_in(folder):
    rows = json.loads(succeed("labels", folder, "--json", "-").stdout)
    return {row["label"] for row in rows}


def test_lists_and_finds(trained):
    lines = succeed("labels", trained).stdout.splitlines()
    assert lines[0] == "4 labels"
    assert lines[1].split() == ["label", "documents"]
    assert len(succeed("labels", trained, "-n", "2").stdout.splitlines()) == len(lines) - 2
    assert "sailing" in succeed("labels", trained, "search", "sialing").stdout
    error = fail("labels", trained, "search", "football")
    assert error == "Error: no label of the model has a name like 'football'"


def test_changes_a_copy_or_the_folder_itself(trained, tmp_path):
    out = tmp_path / "changed"
    said = succeed("labels", trained, "rename", "beer", "ale", "--out", out).stdout
    assert said == f"In {out}, the label 'beer' is now called 'ale'.\n"
    assert names_in(trained) == {"beer", "bread", "chess", "sailing"}
    succeed("labels", out, "merge", "bread", "chess", "ale")
    assert names_in(out) == {"ale", "sailing"}
    succeed("labels", out, "drop", "sailing")
    assert names_in(out) == {"ale"}
    assert load_model(out).predict(["hops malt"], 3).names == [["ale"]]
    assert "leave at least one" in fail("labels", out, "drop", "ale")
    assert "lexical can, by its name" in fail("labels", out, "add", "football")


def test_a_change_that_fails_leaves_the_folder_as_it_was(trained, tmp_path, monkeypatch):
    before = {file.name: file.read_bytes() for file in trained.iterdir()}
    assert "already; to make one label of both" in fail(
        "labels", trained, "rename", "beer", "chess"
    )

    def fail_late(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("longtail.runtime.store.folder.sync_folder", fail_late)
    assert "what was there before is untouched" in fail("labels", trained, "drop", "beer")
    assert {file.name: file.read_bytes() for file in trained.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serch", "x"], "did you mean 'search'?"),
        (["rename", "beer"], "the form is: longtail labels DIR rename OLD NEW. Got 1 names"),
        (["drop"], "the form is: longtail labels DIR drop LABEL [LABEL…]. Got 0 names"),
        (["drop", "beer", "--name", "x"], "--name is for labels that are added"),
        (["list", "--out", "x"], "list changes nothing"),
        (["merge", "beer", "beer"], "cannot be merged with itself"),
        (["list", "-n", "0"], "-n must be at least 1"),
        (["list", "--language", "fi"], "the model has no vocabulary"),
    ],
)
def test_wrong_use(trained, arguments, message):
    assert message in fail("labels", trained, *arguments)


def test_every_action_says_its_form():
    assert command.ACTIONS.keys() == command.LEAST.keys()
