"""Writing data sets: every format gives back what went in, and nothing is half-written."""

import errno
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from planted import pairs

from longtail.data import Dataset, Splits, as_dataset, convert, load, write_dataset
from longtail.errors import DataError

TEXTS = ['pale "ale", k\u00f6lsch', "", "tab\there; and | more", "[not json]"]
LABELS = [["beer", "a,b;c"], [], ["ale"], ["[x]", "beer"]]


@pytest.fixture
def texts():
    return as_dataset(TEXTS, LABELS)


@pytest.fixture
def rows():
    X = sp.random(50, 20, 0.2, format="csr", dtype=np.float32, random_state=0)
    Y = sp.random(50, 8, 0.1, format="csr", dtype=np.float32, random_state=1)
    return as_dataset(X, Y)


def message_of(*arguments, **settings):
    with pytest.raises(DataError) as caught:
        write_dataset(*arguments, **settings)
    return str(caught.value)


ENDINGS = ["jsonl", "csv", "tsv", "txt", "jsonl.gz", "csv.gz", "tsv.gz", "txt.gz", "parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_texts_come_back(tmp_path, texts, ending):
    out = tmp_path / f"x.{ending}"
    write_dataset(texts, out)
    assert pairs(load(out).train) == pairs(texts)
    assert [file.name for file in tmp_path.iterdir()] == [out.name]
    assert (out.read_bytes()[:2] == b"\x1f\x8b") == ending.endswith("gz")


def test_no_document_is_lost_between_batches(tmp_path, monkeypatch, rows):
    monkeypatch.setattr("longtail.data.writer._DOCUMENTS_AT_ONCE", 3)
    monkeypatch.setattr("longtail.data.writer._ROWS_AT_ONCE", 3)
    texts = as_dataset([f"document {i}" for i in range(10)], [[f"{i % 4}"] for i in range(10)])
    write_dataset(texts, tmp_path / "x.parquet")
    assert pairs(load(tmp_path / "x.parquet").train) == pairs(texts)
    write_dataset(rows, tmp_path / "x.txt")
    assert (load(tmp_path / "x.txt").train.X != rows.X).nnz == 0


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_rows_come_back(tmp_path, rows, ending):
    out = tmp_path / f"x.{ending}"
    write_dataset(rows, out)
    back = load(out).train
    assert (back.X != rows.X).nnz == (back.Y != rows.Y).nnz == 0
    assert back.X.shape == rows.X.shape


@pytest.mark.parametrize("format", [None, "csv.gz", "parquet"])
def test_a_folder_of_texts_keeps_all_labels_in_order(tmp_path, texts, format):
    names = ["zebra", *texts.label_names]
    data = texts.align(names)
    exclude = sp.csr_matrix(([1.0], ([2], [0])), shape=data.Y.shape)
    test = Dataset(data.Y, names, texts=data.texts, exclude=exclude)
    write_dataset(Splits(data, test), tmp_path / "out", format)
    back = load(tmp_path / "out")
    assert back.train.label_names == names
    assert pairs(back.train) == pairs(back.test) == pairs(data)
    assert back.test.exclude.toarray().tolist() == exclude.toarray().tolist()
    assert back.train.exclude is None


def test_a_folder_of_rows(tmp_path, rows):
    named = Dataset(rows.Y, [f"label {i}" for i in range(8)], X=rows.X)
    write_dataset(Splits(named, named), tmp_path / "data-1.2")
    assert sorted(file.name for file in (tmp_path / "data-1.2").iterdir()) == [
        "label_names.txt",
        "test.txt",
        "train.txt",
    ]
    back = load(tmp_path / "data-1.2")
    assert back.test.label_names == named.label_names
    assert (back.test.X != rows.X).nnz == 0


def test_convert(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "pale  ale ", "labels": ["beer"]}\n')
    parts = convert(tmp_path / "a.jsonl", tmp_path / "b.txt")
    assert parts.train.n_documents == 1
    assert (tmp_path / "b.txt").read_text() == "__label__beer pale  ale \n"


def test_what_cannot_be_written(tmp_path, texts, rows):
    exists = tmp_path / "there.txt"
    exists.write_text("mine")
    with pytest.raises(DataError) as caught:
        convert(tmp_path / "no such input", exists)
    assert str(caught.value) == f"{exists}: exists already; choose another name or remove it"
    assert message_of(texts, tmp_path / "x.jsonk") == (
        f"{tmp_path / 'x.jsonk'}: no format has the ending '.jsonk'; did you mean 'jsonl'? "
        "Known are .jsonl, .csv, .tsv, .parquet, .txt; a folder has no ending"
    )
    assert message_of(texts, tmp_path / "x", format="xml") == (
        f"{tmp_path / 'x'}: no format is called 'xml'"
    )
    assert message_of(rows, tmp_path / "x.csv") == (
        f"{tmp_path / 'x.csv'}: the data holds feature rows, and a .csv file holds texts; "
        "write a .txt file or a folder instead"
    )
    assert message_of(Splits(texts, texts), tmp_path / "x.csv") == (
        f"{tmp_path / 'x.csv'}: the data has a training and a test split, and a file holds only "
        "one; give a folder, or convert one file at a time"
    )
    assert message_of(texts, tmp_path / "no" / "x.csv") == (
        f"{tmp_path / 'no' / 'x.csv'}: cannot be written: No such file or directory"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["there.txt"]


def test_what_fasttext_cannot_hold(tmp_path):
    out = tmp_path / "x.txt"
    hint = "write .jsonl, .csv or .parquet instead"
    assert message_of(as_dataset(["a"], [["pale ale"]]), out) == (
        f"{out}: a fastText label cannot hold blanks, and 'pale ale' does; {hint}"
    )
    for text, fault in (
        (" __label__a b", "begins with __label__"),
        ("a\nb", "has a line break"),
        ("a\r", "has a line break"),
    ):
        assert message_of(as_dataset(["fine", text], [["x"], ["x"]]), out) == (
            f"{out}: the text of document 2 {fault}, which fastText cannot hold; {hint}"
        )
    assert message_of(as_dataset(["\ufeffa", "b"], [[], ["x"]]), out) == (
        f"{out}: the text of document 1 begins with a byte order mark, which fastText cannot hold; "
        f"{hint}"
    )
    for texts in (["text,labels", "b,c"], ["3 4", "b"], ["{", "b"], ["a", "a", "a"]):
        labels = [[], *[["x"]] * (len(texts) - 1)] if len(texts) == 2 else [[], [], ["x"]]
        assert message_of(as_dataset(texts, labels), out) == (
            f"{out}: document 1 has no labels, and too few of those after it have any for the file "
            f"to be recognized as fastText; {hint}"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_label_of_two_lines_has_no_place_in_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"label 0, 'a\\nb', does not fit on a line"):
        write_dataset(as_dataset(["x"], [["a\nb"]]), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt.gz", "folder"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, texts, name, monkeypatch):
    def fail(data):
        yield "first", ["x"]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("longtail.data.writer._labelled", fail)
    out = tmp_path / name
    assert message_of(texts, out) == f"{out}: cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_splits_that_number_labels_differently(tmp_path):
    train = as_dataset(["a", "b"], [["x"], ["y"]])
    other = as_dataset(["c"], [["w", "y"]])
    exclude = sp.csr_matrix(([1.0], ([0], [1])), shape=other.Y.shape)
    test = Dataset(other.Y, other.label_names, texts=other.texts, exclude=exclude)
    write_dataset(Splits(train, test), tmp_path / "out")
    back = load(tmp_path / "out")
    assert (pairs(back.train), pairs(back.test)) == (pairs(train), [("c", ["y", "w"])])
    assert list(back.test.label_names) == ["x", "y", "w"]
    assert back.test.exclude.toarray().tolist() == [[0, 1, 0]]


def test_what_a_single_file_cannot_hold(tmp_path, rows, texts):
    named = Dataset(rows.Y, [f"label {i}" for i in range(8)], X=rows.X)
    assert message_of(named, tmp_path / "x.txt") == (
        f"{tmp_path / 'x.txt'}: a sparse file holds the numbers of labels, and these have names; "
        "give a folder"
    )
    pairs_not_wanted = Dataset(texts.Y, texts.label_names, texts=texts.texts, exclude=texts.Y)
    assert "only a folder holds them" in message_of(pairs_not_wanted, tmp_path / "x.csv")
    twice = Dataset(texts.Y, ["x"] * texts.n_labels, texts=texts.texts)
    assert message_of(twice, tmp_path / "x.csv") == "4 labels have the same name, 'x'"
    assert "there are no documents" in message_of(as_dataset([]), tmp_path / "x.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["jsonl.gz", "parquet"])
def test_what_would_look_like_a_bomb_is_not_written(tmp_path, monkeypatch, ending):
    monkeypatch.setattr("longtail.data.source.BOMB_BYTES", 1 << 20)
    same = as_dataset(["x" * 4000] * 1000, [["a"]] * 1000)
    assert "the documents are so alike" in message_of(same, tmp_path / f"x.{ending}")
    write_dataset(same, tmp_path / "x.jsonl")
    assert load(tmp_path / "x.jsonl").train.n_documents == 1000


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet", "csv.gz"])
def test_ids_are_written_where_there_are_any(tmp_path, ending):
    data = replace(as_dataset(["a", "b\rc"], [["x"], []]), ids=["7", "d \r e"])
    write_dataset(data, tmp_path / f"x.{ending}")
    again = load(tmp_path / f"x.{ending}").train
    assert (again.ids, again.texts) == (["7", "d \r e"], ["a", "b\rc"])
