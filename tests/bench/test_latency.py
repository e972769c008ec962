"""The table of times: a row for each model and number of labels, with figures that make sense."""

import json

import pytest
from command_line import write_texts

pytest.importorskip("torch", reason="the models need torch")

from bench import latency
from longtail.runtime.parallel import set_threads


def test_one_row_in_this_process(capsys, monkeypatch):
    monkeypatch.setattr(latency, "N_TIMED", 5)
    latency.main(["--one", "linear:30", "--documents", "200", "--set", "trees=1"])
    row = json.loads(capsys.readouterr().out)
    assert len(row) == len(latency.HEADINGS)
    assert row[:2] == ["linear", "30"]
    assert_makes_sense(row)


def test_a_row_of_a_real_data_set(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(latency, "N_TIMED", 5)
    for name, seed in (("train", 0), ("test", 1)):
        write_texts(tmp_path / f"{name}.jsonl", 60, seed=seed)
    latency.main(["--one", "linear:0", "--data", str(tmp_path), "--threads", "1"])
    set_threads(None)
    row = json.loads(capsys.readouterr().out)
    assert row[0] == "linear"
    assert_makes_sense(row)


def assert_makes_sense(row):
    seconds, gibibytes, rate, p50, p99, accuracy = (float(c.replace(",", "")) for c in row[2:])
    assert seconds >= 0
    assert 0.05 < gibibytes < 50
    assert rate > 0
    assert 0 < p50 <= p99
    assert 0 <= accuracy <= 100


@pytest.mark.slow
def test_a_row_for_each_model_and_number_of_labels(capsys):
    sizes = ["--labels", "30,60", "--documents", "200"]
    latency.main(["--models", "linear,glas", *sizes, "--set", "seed=1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    found = [row[:2] for row in rows]
    assert found == [["linear", "30"], ["linear", "60"], ["glas", "30"], ["glas", "60"]]
    for row in rows:
        assert_makes_sense(row)
