"""Which files of a folder make a data set, and what is said when none do."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import longtail.data
from longtail.data import ReadOptions, load, read_batches, read_splits
from longtail.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
JSON_LINE = '{"text": "pale ale", "labels": ["beer"]}\n'
KNOWN = (
    "known are sparse rows under an 'N D L' header, JSON lines, CSV, TSV, Parquet, .xlsx, fastText "
    "and Annif's corpora, each plain or packed"
)


def message_of(path, **settings):
    with pytest.raises(DataError) as caught:
        load(path, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    "names", [("train.x", "test.x"), ("eurlex_trn", "eurlex_tst.gz"), ("Training-1", "TEST.jsonl")]
)
def test_train_and_test_are_told_from_names_and_share_labels(tmp_path, names):
    (tmp_path / names[0]).write_text(JSON_LINE)
    test = JSON_LINE.replace("beer", "ale").encode()
    (tmp_path / names[1]).write_bytes(gzip.compress(test) if names[1].endswith("gz") else test)
    (tmp_path / "README.md").write_text("About this data.\n")
    (tmp_path / "valid.jsonl").write_text(JSON_LINE)
    train, test = load(tmp_path)
    assert train.label_names == test.label_names == ["ale", "beer"]
    assert train.Y.toarray().tolist() == [[0, 1]]
    assert test.Y.toarray().tolist() == [[1, 0]]


def test_the_only_readable_file_is_the_training_part(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(JSON_LINE)
    (tmp_path / "notes.txt").write_text("Some notes.\n")
    train, test = load(str(tmp_path))
    assert train.texts == ["pale ale"]
    assert test is None


def test_sparse_parts_take_the_larger_width(tmp_path):
    (tmp_path / "train.txt").write_text("1 2 3\n2 0:1\n")
    (tmp_path / "test.txt").write_text("1 4 2\n0 3:1\n")
    train, test = load(tmp_path)
    assert train.X.shape == test.X.shape == (1, 4)
    assert train.Y.shape == test.Y.shape == (1, 3)


def test_names_of_features(tmp_path):
    (tmp_path / "train.txt").write_text("1 2 3\n2 0:1\n")
    (tmp_path / "test.txt").write_text("1 4 2\n0 3:1\n")
    names = tmp_path / "feature_names.txt"
    names.write_text("beer\nred wine\n\nale\n")
    train, test = load(tmp_path)
    assert train.feature_names == test.feature_names == ["beer", "red wine", "", "ale"]
    assert train.take(np.array([0])).feature_names == train.feature_names
    assert load(tmp_path / "test.txt").train.feature_names == train.feature_names
    names.write_text("beer\nwine\n")
    assert message_of(tmp_path) == (
        f"{names}: 2 names, but the data has 4 features; "
        "the file must have one line for each feature id"
    )


def test_matrices_of_the_repository(tmp_path):
    (tmp_path / "trn_X_Xf.txt").write_text("2 3\n0:1 2:0.5\n1:1\n")
    (tmp_path / "trn_X_Y.txt").write_text("2 2\n1:1.0\n0:1.0 1:0\n")
    (tmp_path / "tst_X_Xf.txt.gz").write_bytes(gzip.compress(b"1 3\n\n"))
    (tmp_path / "tst_X_Y.txt").write_text("1 2\n0:0.3\n")
    (tmp_path / "filter_labels_test.txt").write_text("0 1\n")
    train, test = load(tmp_path)
    assert train.X.toarray().tolist() == [[1, 0, 0.5], [0, 1, 0]]
    assert train.Y.toarray().tolist() == [[0, 1], [1, 0]]
    assert test.Y.toarray().tolist() == [[1, 0]]
    assert test.exclude.toarray().tolist() == [[0, 1]]
    assert train.exclude is None
    assert load(tmp_path / "tst_X_Xf.txt.gz").train.Y.toarray().tolist() == [[1, 0]]


def test_matrices_of_different_length(tmp_path):
    X, Y = tmp_path / "trn_X_Xf.txt", tmp_path / "trn_X_Y.txt"
    X.write_text("2 3\n0:1\n1:1\n")
    assert message_of(tmp_path) == f"{X}: the labels of these rows are missing: no trn_X_Y.txt"
    Y.write_text("1 2\n1:1\n")
    assert message_of(tmp_path) == (
        f"{X}: 2 rows of features, but 1 rows of labels in {Y}; "
        "row n of both must be the same document"
    )
    Y.write_text("2 2\n1:1\n5:1\n")
    assert message_of(tmp_path) == (
        f"{Y}:3: label id 5 is outside 0 to 1, the range that the header gives (2 labels)"
    )


def test_small_sets_of_the_repository(tmp_path):
    (tmp_path / "Bib_data.txt").write_text("3 2 2\n0 0:1\n1 0:2\n0,1 0:3\n")
    (tmp_path / "Bib_trSplit.txt").write_text("3 1\n1 2\n")
    (tmp_path / "Bib_tstSplit.txt").write_text("2 3\n")
    train, test = load(tmp_path)
    assert train.X.toarray()[:, 0].tolist() == [3, 1]
    assert test.X.toarray()[:, 0].tolist() == [2]
    assert load(tmp_path, split=1).test.X.toarray()[:, 0].tolist() == [3]
    assert load(tmp_path / "Bib_data.txt").train.n_documents == 3
    split = tmp_path / "Bib_trSplit.txt"
    assert message_of(tmp_path, split=2) == (
        f"{split}: there is no split 2; the file has 2, counted from 0"
    )
    split.write_text("3 1\n4 2\n")
    assert message_of(tmp_path) == (
        f"{split}:2: row number 4 is outside 1 to 3, the rows of the data"
    )
    split.write_text("3 1\n4\n")
    assert message_of(tmp_path) == (
        f"{split}:2: a line is row numbers, one for each split; got '4'"
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "{}: no data found in this folder; name the files train and test, "
         "for example train.jsonl and test.jsonl"),
        ({"notes.txt": "Notes.\n"}, "{}: no data found in this folder; name the files train and "
         "test, for example train.jsonl and test.jsonl"),
        ({"train.txt": "Notes.\n"}, "{}/train.txt: the format is not recognized; " + KNOWN),
        ({"train.txt": ""}, "{}/train.txt: the file is empty"),
        ({"train.jsonl": JSON_LINE, "test.jsonl": ""}, "{}/test.jsonl: the file is empty"),
        ({"test.jsonl": JSON_LINE}, "{}: has a test split but no training split; "
         "to use test.jsonl alone, give its path"),
        ({"train.a": JSON_LINE, "train.b": JSON_LINE}, "{}: both train.a and train.b could be the "
         "training split; move one of them away, or give the path of a file, or a pattern that "
         "names them all"),
        ({"train.a": JSON_LINE, "test.b": "1 1 1\n0 0:1\n"}, "{}: one split holds feature rows and "
         "the other texts (train.a is JSON lines, test.b is sparse rows)"),
        ({"train.jsonl": JSON_LINE, "filter_labels_train.txt": "0 0\n"},
         "{}/filter_labels_train.txt: names labels by id, but nothing says which id is which "
         "label; put a label_names.txt beside it"),
        # The names of such a file stand for the ids of the data, not for columns.
        ({"train.jsonl": JSON_LINE, "filter_labels_train.txt": "0 0\n",
          "label_names.tsv": "0\tbeer\n"},
         "{}/filter_labels_train.txt: names labels by id, but nothing says which id is which "
         "label; put a label_names.txt beside it"),
        ({"train.txt": "1 1 1\n0 0:1\n", "filter_labels_train.txt": "0 1\n"},
         "{}/filter_labels_train.txt:1: the pair 0 1 is outside the data "
         "(1 documents, 1 labels)"),
        ({"train.txt": "1 1 1\n0 0:1\n", "filter_labels_train.txt": "0 0\n0\n"},
         "{}/filter_labels_train.txt:2: a line is a document number and a label id; got '0'"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_read(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert message_of(tmp_path) == message.format(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Some text.\nMore of it.\n", "the format is not recognized; " + KNOWN),
        (b"\x89PNG\0\0\0", "this is a binary file; " + KNOWN),
        (b'[{"text": "a"}]', "a JSON array; write one object a line instead (JSON lines)"),
        (b"0,3 1:0.5 2:1\n", "sparse rows need a first line 'N D L': "
         "how many documents, features and labels"),
        (b"1 2\n0:1\n", "rows without labels; a data file starts with 'N D L'"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_data_set(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert message_of(path) == f"{path}: {message}"


def test_a_path_that_does_not_exist(tmp_path):
    assert message_of(tmp_path / "no") == f"{tmp_path / 'no'}: no such file or folder"


def test_public_names():
    for name in longtail.data.__all__:
        assert callable(getattr(longtail.data, name))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("bibtex", ((4880, 159), (2515, 159))),
        ("delicious", ((12920, 983), (3185, 983))),
        ("stackexchange", ((33485, 1987), (8318, 1987))),
    ],
)
def test_real_sets(name, shapes):
    if not (SHARED / name).is_dir():
        pytest.skip("needs the data sets in ../shared/data")
    train, test = load(SHARED / name)
    assert (train.Y.shape, test.Y.shape) == shapes
    assert train.label_names == test.label_names
    assert len(set(train.label_names)) == shapes[0][1]
    # Only stackexchange has labels that no training document carries.
    assert (np.diff(train.Y.tocsc().indptr) > 0).sum() == {"stackexchange": 1963}.get(
        name, shapes[0][1]
    )


def test_numbered_files_and_parquet_files_are_parts_of_a_split(tmp_path):
    for i in range(2):
        (tmp_path / f"train-{i}-of-2.jsonl").write_text(JSON_LINE.replace("beer", f"b{i}"))
    (tmp_path / "test.jsonl").write_text(JSON_LINE)
    train, test = load(tmp_path)
    assert (len(train), train.label_names, len(test)) == (2, ["b0", "b1", "beer"], 1)
    parts = tmp_path / "parts"
    parts.mkdir()
    for name in ("one", "two"):
        table = pa.table({"id": [name], "text": ["a"], "labels": [[name]]})
        pq.write_table(table, parts / f"{name}.parquet")
    assert load(parts).train.ids == ["one", "two"]
    assert [batch.ids for batch in read_batches(parts)] == [["one"], ["two"]]


@pytest.mark.parametrize("in_files", [False, True])
def test_the_first_part_says_whether_documents_have_ids(tmp_path, in_files):
    (tmp_path / "train-1.jsonl").write_text('{"text": "a", "labels": ["x"]}\n')
    (tmp_path / "train-2.jsonl").write_text('{"text": "b", "labels": ["x"], "id": "7"}\n')
    train = read_splits(tmp_path, ReadOptions(in_files=in_files)).train
    assert (list(train.texts), train.ids) == (["a", "b"], None)


def test_folders_called_train_and_test(tmp_path):
    for role in ("train", "test"):
        (tmp_path / role).mkdir()
        for i in range(2):
            pq.write_table(
                pa.table({"text": [role], "labels": ["x"]}), tmp_path / role / f"{i}.parquet"
            )
    train, test = load(tmp_path)
    assert (train.texts, test.texts) == (["train"] * 2, ["test"] * 2)


def _said(folder):
    (batch,) = read_batches(folder)
    return batch.texts, batch.read_as.partition(";")[0]


def test_of_a_folder_the_test_split_is_labelled(tmp_path):
    said = "these are the documents of the test split of {}"
    for name in ("files", "pairs", "inside", "parquet", "alone"):
        (tmp_path / name).mkdir()
    for role in ("train", "test"):
        line = json.dumps({"text": role, "labels": ["x"]}) + "\n"
        (tmp_path / "files" / f"{role}.jsonl").write_text(line)
        (tmp_path / "pairs" / f"{role}_texts.txt").write_text(f"{role}\n")
        (tmp_path / "pairs" / f"{role}_labels.txt").write_text("x\n")
        (tmp_path / "inside" / role).mkdir()
        (tmp_path / "inside" / role / "part.jsonl").write_text(line)
        table = pa.table({"text": [role], "labels": ["x"]})
        pq.write_table(table, tmp_path / "parquet" / f"{role}.parquet")
    for name in ("files", "pairs", "inside", "parquet"):
        assert _said(tmp_path / name) == (["test"], said.format(tmp_path / name))
    (tmp_path / "alone" / "new.jsonl").write_text('{"text": "new"}\n')
    assert _said(tmp_path / "alone")[0] == ["new"]
    for name in ("files/test.jsonl", "pairs/test_texts.txt"):
        (tmp_path / name).unlink()
    for name in ("files", "pairs"):
        texts, read_as = _said(tmp_path / name)
        assert (texts, "test split" in read_as) == (["train"], False)


def test_a_pattern_names_the_parts_of_a_split(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz"):
        content = JSON_LINE.replace("beer", name).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if ".gz" in name else content)
    (tmp_path / "c.txt").write_text("no data\n")
    assert load(tmp_path / "?.jsonl*").train.label_names == ["a.jsonl", "b.jsonl.gz"]
    assert sum(len(batch) for batch in read_batches(f"{tmp_path}/?.jsonl*")) == 2
    assert (
        message_of(tmp_path / "*.csv")
        == f"{tmp_path / '*.csv'}: no file has a name of this pattern"
    )
    assert "c.txt: the format is not recognized" in message_of(tmp_path / "*")


def test_parts_of_feature_rows(tmp_path):
    (tmp_path / "train1.txt").write_text("1 2 3\n2 0:1\n")
    (tmp_path / "train2.txt").write_text("1 4 2\n0 3:1\n")
    train, _ = load(tmp_path)
    assert train.X.toarray().tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert train.Y.toarray().tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("ending", [".bz2", ".xz", ".zst", ".gz", ""])
def test_packed_files_beside_the_data(tmp_path, ending):
    pack = {
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".gz": gzip.compress,
        ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
        "": bytes,
    }[ending]
    for name, content in (
        ("train_texts.txt", b"one\ntwo\n"),
        ("train_labels.txt", b"0\n1 0\n"),
        ("label_names.txt", b"beer\nwine\n"),
    ):
        (tmp_path / (name + ending)).write_bytes(pack(content))
    train, _ = load(tmp_path)
    assert train.label_names == ["beer", "wine"]
    assert train.Y.toarray().tolist() == [[1, 0], [1, 1]]


def test_standard_input(tmp_path):
    for content in (
        JSON_LINE.encode(),
        b"text,labels\npale ale,beer\n",
        b"__label__beer pale ale\n",
        b"1 2 3\n2 0:1\n",
    ):
        code = "import longtail; print(len(longtail.load('-').train))"
        done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True)
        assert done.stdout == b"1\n", done.stderr


def test_the_training_file_says_which_column_is_what_in_the_test_file(tmp_path):
    rows = "".join(f"{i},a text of so many words {i},{'xy'[i % 2]},z\n" for i in range(20))
    (tmp_path / "train.csv").write_text("n,k1,k2,k3\n" + rows)
    (tmp_path / "test.csv").write_text("k3,k2,n,k1\nz,x,1,short\n")
    _, test = load(tmp_path)
    assert (test.texts, test.label_names, test.Y.nnz) == (["short"], ["x", "y"], 1)
