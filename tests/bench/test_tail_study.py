import json

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

from bench.tail_study import HEADINGS, draw, group_documents, main
from longtail import Dataset
from longtail.data import Splits, write_dataset
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


def test_every_model_gets_a_row_for_each_group(tmp_path, capsys) -> None:
    parts = Splits(planted_dataset(), planted_dataset(n=80, seed=1))
    write_dataset(parts, tmp_path / "data")
    command = [str(tmp_path / "data"), "--models", "linear", "--at-most", "50", "--threads", "1"]
    main([*command, "--set", "linear.trees=1", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["documents"] for row in rows] == ["all", "no head", "only tail"]
    assert rows[0]["how many"] == "80"
    assert float(rows[0]["P@1"]) > 95
    assert all(list(row) == HEADINGS for row in rows)
    assert "| only tail " in capsys.readouterr().out


def test_data_without_a_test_part(tmp_path) -> None:
    write_dataset(planted_dataset(), tmp_path / "data.txt")
    with pytest.raises(SystemExit, match="has no test split"):
        main([str(tmp_path / "data.txt")])


def test_the_figure_has_a_panel_for_each_group(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    row = ["50.0", "40.0", "30.0", "20.0", "1"]
    draw([["all", "9", "mnn", *row], ["only tail", "2", "mnn", *row]], tmp_path / "tail.svg")
    text = (tmp_path / "tail.svg").read_text()
    assert "all (9 documents)" in text
    assert "only tail (2 documents)" in text
