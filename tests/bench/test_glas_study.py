"""The GLaS studies run on small data and vary what they say."""

import json

import pytest
from command_line import write_texts

pytest.importorskip("torch", reason="GLaS needs torch")

from bench import glas_study

SMALL = ["--device", "cpu", "--set", "dim=8", "--set", "epochs=1", "--set", "batch_size=32"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("data") / "train.jsonl", 100, seed=0)


def rows_of(table):
    return [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]


def test_one_parameter_at_a_time_is_varied():
    base = {"dim": "8", "loss": "softmax", "strength": "10"}
    changes = list(glas_study.vary(base, 1000))
    for name, value, settings in changes:
        differing = {key for key in settings if settings[key] != base.get(key)}
        assert differing - {name} <= {"strength"}, "gravity has a strength of its own"
        assert settings[name] == value or float(settings[name]) == float(value)
    assert {"4", "2"} <= {value for name, value, _ in changes if name == "dim"}
    assert {value for name, value, _ in changes if name == "loss"} == {"bce", "margin", "mining"}


def test_the_table_of_parameters(data, capsys):
    glas_study.main(["parameters", str(data), *SMALL])
    table = rows_of(capsys.readouterr().out)
    names = [row[0].strip() for row in table]
    assert names[0] == "base setting"
    assert set(names[1:]) == {*glas_study.FACTORS, *glas_study.VALUES}
    assert all(0 <= float(row[2]) <= 100 for row in table)


def test_the_table_of_the_gap(data, capsys):
    glas_study.main(["gap", str(data), *SMALL])
    for row in rows_of(capsys.readouterr().out):
        seen, unseen, gap = map(float, row[1:])
        assert gap == pytest.approx(seen - unseen, abs=0.011)


def test_the_curves_show_every_epoch_and_are_kept(data, tmp_path, capsys, monkeypatch):
    results, figure = tmp_path / "curves.json", tmp_path / "figure.png"
    small = [*SMALL, "--set", "epochs=3", "--results", str(results)]
    glas_study.main(["curves", str(data), *small])
    table = rows_of(capsys.readouterr().out)
    assert len(table) == 4
    curves = json.loads(results.read_text())[data.name]
    for epochs, values in curves.values():
        assert epochs == [1, 2, 3]
        assert all(0 <= value <= 100 for value in values)
    monkeypatch.delattr(glas_study, "measure_curves")  # what is kept is not measured again
    pytest.importorskip("matplotlib")
    glas_study.main(["curves", str(data), *small, "--plot", str(figure)])
    assert rows_of(capsys.readouterr().out) == table
    assert figure.stat().st_size > 1000
