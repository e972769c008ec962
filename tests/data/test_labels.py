"""Files that name labels, and how their names meet the labels of the data."""

import json
from pathlib import Path

import numpy as np
import pytest
from planted import pairs

from longtail.data import load
from longtail.data.labels import NumberedNames, make_unique
from longtail.errors import DataError

ROWS = "2 2 3\n0,2 0:1\n1 1:1\n"


def write(folder, **files):
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def test_names_of_columns_from_a_list(tmp_path):
    write(tmp_path, train__txt=ROWS, label_names__txt="beer\r\nale\r\nwine\r\n\r\n")
    assert load(tmp_path).train.label_names == ["beer", "ale", "wine"]
    assert load(tmp_path / "train.txt").train.label_names == ["beer", "ale", "wine"]


def test_names_of_columns_from_pairs(tmp_path):
    write(tmp_path, train__txt=ROWS, label_names__tsv="2\twine\n0\tbeer\n")
    assert load(tmp_path).train.label_names == ["beer", "1", "wine"]


def test_without_names_the_ids_are_names(tmp_path):
    write(tmp_path, train__txt=ROWS)
    assert load(tmp_path).train.label_names == ["0", "1", "2"]


def test_shared_and_empty_names_become_unique(tmp_path):
    write(tmp_path, train__txt=ROWS, label_names__txt="beer\n\nbeer\n")
    assert load(tmp_path).train.label_names == ["beer [0]", "1", "beer [2]"]
    assert make_unique(["x", "x", "x [0]"], ["0", "1", "2"], Path("names")) == [
        "x [0] [0]",
        "x [1]",
        "x [0] [2]",
    ]


def test_the_wrong_number_of_names(tmp_path):
    write(tmp_path, train__txt=ROWS, label_names__txt="beer\nale\n")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'label_names.txt'}: 2 names, but the data has 3 labels; "
        "the file must have one line for each label id"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("p1\tbeer\np2 ale\n", "2: a line is 'id<TAB>name'; got 'p2 ale'"),
        ("p1\tbeer\np1\tale\n", "2: the id 'p1' stands here a second time"),
    ],
)
def test_broken_pairs(tmp_path, content, message):
    write(tmp_path, train__txt=ROWS, label_names__tsv=content)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'label_names.tsv'}:{message}"


def test_ids_in_texts_get_their_names_and_only_used_ones_stay(tmp_path):
    write(
        tmp_path,
        train__jsonl='{"text": "a", "labels": ["p9", "p1", "unknown"]}',
        test__jsonl='{"text": "b", "labels": ["p3"]}',
        label_names__tsv="p1\tbeer\np2\tale\np3\twine\np9\tbeer\n",
    )
    train, test = load(tmp_path)
    assert train.label_names == ["beer [p1]", "wine", "beer [p9]", "unknown"]
    assert pairs(train) == [("a", ["beer [p1]", "beer [p9]", "unknown"])]
    assert pairs(test) == [("b", ["wine"])]


def test_a_list_fixes_the_order_of_names_in_texts(tmp_path):
    write(
        tmp_path,
        train__jsonl='{"text": "a", "labels": ["beer", "new"]}',
        label_names__txt="wine\nbeer\n",
    )
    train = load(tmp_path).train
    assert train.label_names == ["wine", "beer", "new"]
    assert pairs(train) == [("a", ["beer", "new"])]


def test_whole_numbers_are_positions_in_a_list(tmp_path):
    write(
        tmp_path,
        train__jsonl='{"text": "a", "labels": [1, "0"]}',
        label_names__txt="wine\nbeer\nale\n",
    )
    train = load(tmp_path).train
    assert train.label_names == ["wine", "beer", "ale"]
    assert pairs(train) == [("a", ["wine", "beer"])]


def test_whole_numbers_are_sorted_by_value(tmp_path):
    write(tmp_path, train__jsonl='{"text": "a", "labels": [10, 9, 2]}')
    assert load(tmp_path).train.label_names == ["2", "9", "10"]


def test_raw_texts_of_the_repository(tmp_path):
    labels = [{"uid": "B1", "title": "Beer"}, {"uid": "B2", "title": ""}, {"uid": "B3"}]
    write(
        tmp_path,
        trn__json='{"uid": "1", "title": "Ale", "content": "pale", "target_ind": [2, 0], '
        '"target_rel": [1.0, 1.0]}\n{"uid": "2", "title": "X", "content": "", "target_ind": []}',
        tst__json='{"uid": "3", "title": "Y", "content": "z", "target_ind": [1]}',
        lbl__json="\n".join(map(json.dumps, labels)),
        filter_labels_test__txt="0 2\n0 0\n",
        filter_labels_train__txt="1 1\n",
    )
    train, test = load(tmp_path)
    assert train.label_names == ["Beer", "B2", "B3"]
    assert pairs(train) == [("Ale pale", ["Beer", "B3"]), ("X", [])]
    assert pairs(test) == [("Y z", ["B2"])]
    assert test.exclude.toarray().tolist() == [[1, 0, 1]]
    assert train.exclude.toarray().tolist() == [[0, 0, 0], [0, 1, 0]]
    assert test.exclude.dtype == np.float32


def test_a_raw_label_without_a_name(tmp_path):
    write(
        tmp_path,
        trn__json='{"title": "A", "content": "", "target_ind": [5]}',
        lbl__json='{"title": "Beer"}',
    )
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'lbl.json'}: names 1 labels, 0 to 0, but the data has the label id 5"
    )


def test_names_that_collide_again_and_again(tmp_path):
    names = ["x", "x", *("x" + " [0]" * i for i in range(1, 1500))]
    (tmp_path / "label_names.txt").write_text("\n".join(names))
    (tmp_path / "train.txt").write_text(f"1 2 {len(names)}\n0 0:1\n")
    with pytest.raises(DataError, match="names collide again and again, even with their ids"):
        load(tmp_path)
    pairs_file = "".join(f"{i}\t{name}\n" for i, name in enumerate(names))
    (tmp_path / "label_names.txt").rename(tmp_path / "label_names.tsv")
    (tmp_path / "label_names.tsv").write_text(pairs_file)
    with pytest.raises(DataError, match="names collide again and again, even with their ids"):
        load(tmp_path)


def test_a_name_that_is_the_number_of_another_label(tmp_path):
    (tmp_path / "label_names.tsv").write_text("0\t2\n1\t" + "9" * 5000 + "\n07\tno id\n")
    (tmp_path / "train.txt").write_text("1 1 20000000\n0,2 0:1\n")
    names = load(tmp_path).train.label_names
    assert names[:4] == ["2 [0]", "9" * 5000, "2 [2]", "3"]


def test_numbered_names_behave_like_a_list():
    names = NumberedNames(3, {1: "beer"})
    assert names == ["0", "beer", "2"]
    assert names != ["0", "beer"]
    assert names != NumberedNames(3)
    assert (list(names), names[-1], names[1:], "beer" in names) == (
        ["0", "beer", "2"],
        "2",
        ["beer", "2"],
        True,
    )
    with pytest.raises(IndexError):
        names[3]
