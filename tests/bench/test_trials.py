"""bench.trials: forms get as many settings each, no run is made twice, tables show the best."""

import json
from pathlib import Path

import pytest

from bench import trials
from tests.planted import write_planted_texts

SPACE = """
[ours]
max_leaf = 50
[ours.try]
C = [1.0, 2.0, 4.0]
trees = [1, 2]
[neighbours]
model = "knn"
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "space.toml").write_text(SPACE)
    write_planted_texts(tmp_path / "texts.jsonl", n=80)
    out = tmp_path / "runs.jsonl"
    arguments = [str(tmp_path / "space.toml"), str(tmp_path / "texts.jsonl")]
    return [*arguments, "--model", "linear", "--out", str(out)], out


def test_first_setting_comes_first_and_none_comes_twice():
    drawn = trials.draw_settings({"a": 1}, {"b": [1, 2, 3], "c": ["x", "y"]}, 100)
    assert drawn[0] == {"a": 1, "b": 1, "c": "x"}
    assert len({json.dumps(each) for each in drawn}) == len(drawn) == 6


def test_a_form_with_nothing_to_try_has_one_setting():
    assert trials.draw_settings({"a": 1}, {}, 5) == [{"a": 1}]


def test_runs_are_measured_once_and_summed_up(study, capsys):
    arguments, out = study
    trials.main([*arguments, "--trials", "2"])
    assert len(out.read_text().splitlines()) == 3
    capsys.readouterr()
    trials.main([*arguments, "--trials", "2", "--seeds", "2"])
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(runs) == 6
    assert {run["model"] for run in runs} == {"linear", "knn"}
    assert all(0 <= run["P@5"] <= run["P@1"] <= 100 for run in runs)
    table = capsys.readouterr().out
    assert table.count(": ") == 3, "runs of the first call were made again"
    assert "|       ours |     2 |     2 |" in table
    assert "±" in table


def test_a_setting_that_fails_is_said_and_stops_nothing(study, capsys):
    arguments, _ = study
    Path(arguments[0]).write_text(SPACE + "C = -1\n")
    trials.main([*arguments, "--forms", "neighbours,ours"])
    printed = capsys.readouterr().out
    assert "KNN has no parameter 'C'" in printed
    assert "failed" in printed
