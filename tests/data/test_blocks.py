"""Test splits in blocks, against the same split read as a whole."""

import csv
import json
from itertools import pairwise

import numpy as np
import pytest

from longtail.data import blocks, read_splits
from longtail.data.blocks import read_blocks
from longtail.errors import DataError

ROWS = [(f"n{i}", f"a text\nof number {i}", [f"l{i % 7}", f"l{i % 11}"]) for i in range(50)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(blocks, "BATCH", 8)


def write_csv(path, rows=ROWS, separator=";"):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("id", "text", "labels"))
        table.writerows((i, t, separator.join(ls)) for i, t, ls in rows)
    return path


def write_json(path, rows=ROWS):
    path.write_text("\n".join(json.dumps({"text": t, "labels": ls}) for _, t, ls in rows))
    return path


def write_sparse(path):
    lines = [f"{i % 3},{i % 5} 0:1 {1 + i % 4}:2" for i in range(50)]
    path.write_text("\n".join(["50 5 5", *lines]))
    return path


def write_fasttext(path):
    path.write_text("".join(f"__label__{ls[0]} words {i}\n" for i, _, ls in ROWS))
    return path


def named(dataset):
    """Return each document with the names of its labels."""
    texts = dataset.texts or [row.toarray().tolist() for row in dataset.X]
    return [
        (text, {dataset.label_names[label] for label in row.indices})
        for text, row in zip(texts, dataset.Y, strict=True)
    ]


def check(data, n_blocks, said=None):
    found = list(read_blocks(data))
    train, test = read_splits(data)
    assert [pair for block in found for pair in named(block)] == named(test or train)
    assert len(found) == n_blocks
    assert found[0].read_as == (said or (test or train).read_as)
    for before, after in pairwise(found):
        assert after.label_names[: before.n_labels] == before.label_names
    return found


@pytest.mark.parametrize(
    "write", [write_csv, write_json, write_sparse, write_fasttext], ids=lambda each: each.__name__
)
def test_a_file(tmp_path, write):
    check(write(tmp_path / "x.csv" if write is write_csv else tmp_path / "x.txt"), 7)


def test_folders_patterns_and_parts(tmp_path):
    write_csv(tmp_path / "train.csv", ROWS[:3])
    write_csv(tmp_path / "test-1.csv", ROWS[:20])
    write_csv(tmp_path / "test-2.csv", ROWS[20:])
    check(tmp_path, 7)
    (tmp_path / "train.csv").unlink()
    check(tmp_path / "test-*.csv", 7)


def test_all_cells_count_for_the_separator(tmp_path):
    """The first block alone would take the comma, a part of names, for it."""
    names = ["Smith, A.", "Jones, B."]
    rows = [(i, text, names[: 2 if int(i[1:]) > 30 else 1]) for i, text, _ in ROWS]
    said = "text: text; labels: labels, separated by ';', e.g. 'Smith, A.'; id: id"
    found = check(write_csv(tmp_path / "x.csv", rows), 7, said)
    assert found[-1].label_names == names


def test_names_beside_the_data(tmp_path):
    data = write_csv(tmp_path / "x.csv")
    (tmp_path / "label_names.tsv").write_text("l1\tbeer\nl2\twine\n")
    assert "beer" in check(data, 7)[0].label_names
    (tmp_path / "label_names.tsv").unlink()
    (tmp_path / "label_names.txt").write_text("\n".join(f"l{i}" for i in range(11)))
    check(data, 7)


def test_an_id_and_its_name_are_one_label(tmp_path):
    rows = [("n", f"a text {i}", ls) for i, ls in enumerate([["7"], ["beer"], ["7", "beer"]] * 4)]
    path = write_json(tmp_path / "x.jsonl", rows)
    (tmp_path / "label_names.tsv").write_text("7\tbeer\n")
    check(path, 2)
    assert all(list(block.label_names) == ["beer"] for block in read_blocks(path))
    assert all(block.Y.data.tolist() == [1] * len(block) for block in read_blocks(path))


def test_what_is_wrong_is_said_where_it_is(tmp_path):
    write_csv(tmp_path / "a1.csv")
    (tmp_path / "a2.csv").write_text("id,text,tags\n1,x,y\n")
    with pytest.raises(DataError, match=r"no column 'labels'.*the first file of the split is"):
        list(read_blocks(tmp_path / "a*.csv"))
    with pytest.raises(DataError, match="no such file or folder"):
        list(read_blocks(tmp_path / "none.csv"))


def test_excluded_pairs_stay_with_their_documents(tmp_path):
    (tmp_path / "lbl.json").write_text("\n".join(json.dumps({"title": f"t{i}"}) for i in range(3)))
    for name in ("trn", "tst"):
        rows = [{"title": "x", "content": str(i), "target_ind": [i % 3]} for i in range(20)]
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "filter_labels_test.txt").write_text("0 1\n19 2\n")
    found = list(read_blocks(tmp_path))
    assert [np.argwhere(each.exclude.toarray()).tolist() for each in found] == [
        [[0, 1]],
        [],
        [[3, 2]],
    ]
