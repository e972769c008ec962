import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

from bench.tail_study import GROUPS, HEADINGS, draw, group_documents, main
from bench.trials import read_runs
from longtail import Dataset
from longtail.data import Splits, write_dataset
from longtail.errors import ParameterError
from longtail.runtime.parallel import set_threads


@pytest.fixture(autouse=True)
def threads_as_before():
    yield
    set_threads(None)


def dataset(label_lists, n_labels):
    Y = np.zeros((len(label_lists), n_labels), np.float32)
    for i, labels in enumerate(label_lists):
        Y[i, labels] = 1
    X = sp.csr_matrix(np.ones((len(label_lists), 2), np.float32))
    return Dataset(Y=sp.csr_matrix(Y), label_names=[str(i) for i in range(n_labels)], X=X)


@pytest.fixture
def parts():
    """Label 0 is the head (60 % of the pairs), 1 the torso, 2 and 3 the tail, 4 is never seen."""
    train = dataset([[0]] * 60 + [[1]] * 25 + [[2]] * 10 + [[3]] * 5, 5)
    test = dataset([[0, 2], [1, 2], [2, 3], [3, 4], [4], [], [1]], 5)
    return train, test


def test_documents_are_grouped_by_their_most_frequent_label(parts) -> None:
    groups = {name: rows.tolist() for name, rows in group_documents(*parts).items()}
    assert groups == {"all": list(range(7)), "no head": [1, 2, 3, 6], "only tail": [2, 3]}


def test_the_tail_can_be_given_by_a_number_of_documents(parts) -> None:
    groups = group_documents(*parts, at_most=5)
    assert groups["only tail"].tolist() == [3]
    assert group_documents(*parts, at_most=25)["only tail"].tolist() == [1, 2, 3, 6]


@pytest.fixture
def data(tmp_path):
    write_dataset(Splits(planted_dataset(), planted_dataset(n=80, seed=1)), tmp_path / "data")
    return tmp_path / "data"


def test_every_model_gets_a_row_for_each_group(data, tmp_path, capsys) -> None:
    command = [str(data), "--at-most", "50", "--threads", "1", "--seeds", "2"]
    models = ["linear", "linear:trees=1,max_leaf=50"]
    main([*command, "--models", *models, "--out", str(tmp_path / "runs.jsonl")])
    runs = read_runs(tmp_path / "runs.jsonl")
    assert [run["group"] for run in runs] == [*GROUPS] * 4
    assert [run["seed"] for run in runs] == [0] * 6 + [1] * 6
    assert runs[0]["n"] == 80
    assert runs[0]["P@1"] > 95
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| data")]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert rows[0] == HEADINGS
    assert [row[3] for row in rows[1:]] == models * 3
    assert all(row[4] == "2" and "±" in row[5] for row in rows[1:])


def test_what_is_there_is_not_trained_again(data, tmp_path, monkeypatch, capsys) -> None:
    command = [str(data), "--models", "linear", "--out", str(tmp_path / "runs.jsonl")]
    main(command)
    first = capsys.readouterr().out
    monkeypatch.setattr("bench.tail_study.load", None)
    main(command)
    assert first.endswith(capsys.readouterr().out)


def test_a_model_that_does_not_exist_is_named_before_any_trains(data, tmp_path) -> None:
    command = [str(data), "--models", "linear", "linaer", "--out", str(tmp_path / "runs.jsonl")]
    with pytest.raises(ParameterError, match="linaer"):
        main(command)
    assert not (tmp_path / "runs.jsonl").exists()


def test_data_without_a_test_part(tmp_path) -> None:
    write_dataset(planted_dataset(), tmp_path / "data.txt")
    with pytest.raises(SystemExit, match="has no test split"):
        main([str(tmp_path / "data.txt"), "--out", str(tmp_path / "runs.jsonl")])


def test_the_figure_has_a_panel_for_each_group(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    shared = {"data": "yso", "model": "mnn", "P@1": 50, "P@3": 40, "P@5": 30, "recall@5": 20}
    runs = [
        {**shared, "seed": seed, "group": group, "n": n}
        for seed in (0, 1)
        for group, n in (("all", 9), ("only tail", 2))
    ]
    draw(runs, tmp_path / "tail.svg")
    text = (tmp_path / "tail.svg").read_text()
    assert "yso: all (9 documents)" in text
    assert "yso: only tail (2 documents)" in text
