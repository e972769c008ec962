"""Texts and labels in CSV, TSV and Parquet."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted import pairs

from longtail.data import load, read_batches
from longtail.errors import DataError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "text,labels\npale ale,beer;ale\n\nwine,\n",
            [("pale ale", ["ale", "beer"]), ("wine", [])],
        ),
        ('id,Text,Tags\n1,"a ""b"", c\nd","x, y"\n', [('a "b", c\nd', ["x", "y"])]),
        (
            "title\tbody\tsubjects\r\nA\tb\tx|y z\r\nC\t\tq\r\n",
            [("A b", ["x", "y z"]), ("C", ["q"])],
        ),
        ("labels;text\nx y;a, b\nx;c\n", [("a, b", ["x", "y"]), ("c", ["x"])]),
        ('text,labels\na,"[""x;1"", ""y""]"\nb,[]\n', [("a", ["x;1", "y"]), ("b", [])]),
        ("\ufefftext,labels\na,x\n", [("a", ["x"])]),
    ],
)
def test_csv_and_tsv(path, content, expected):
    path.write_text(content, newline="")
    assert pairs(load(path).train) == expected
    path.write_bytes(gzip.compress(content.encode()))
    assert pairs(load(path).train) == expected


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("text,labels\na,x\nb,c,x\n", 3, "3 cells, but the header has 2 columns; "
         "put quotes around a cell that holds the delimiter"),
        ('text,labels\na,x\n"b,x\n', 3, "not a readable table row (unexpected end of data); "
         "a quote inside a quoted cell is doubled"),
        ("text,labels\na,\"['x', 'y']\"\n", 2, "not valid JSON: Expecting value at column 2"),
        ('text,labels\na,"[1.5]"\n', 2, "a label must be a string; got a number"),
        ('text,labels\na,' + "[" * 100_000 + "]\n", 2, "the JSON is nested too deeply"),
    ],
)  # fmt: skip
def test_a_broken_row_names_file_and_line(path, content, line, message):
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:{line}: {message}"


def test_a_cell_of_a_megabyte_works(path):
    path.write_text("text,labels\n" + "word " * 200_000 + ",x\n")
    assert len(load(path).train.texts[0]) == 1_000_000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet_with_cells_and_lists(path, kind):
    texts = pa.array(["pale ale", None, "wine"], kind)
    lists = pa.array([["beer", "ale"], [], None], pa.list_(kind))
    pq.write_table(pa.table({"Text": texts, "labels": lists, "n": [1, 2, 3]}), path)
    expected = [("pale ale", ["ale", "beer"]), ("", []), ("wine", [])]
    assert pairs(load(path).train) == expected
    cells = pa.array(["beer, ale", None, ""], kind)
    pq.write_table(pa.table({"text": texts, "tags": cells}), path)
    assert pairs(load(path).train) == expected
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert pairs(load(path).train) == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": ["a"], "labels": ["b"]}, "no column is recognized as text; the columns are 'x', "
         "'labels'; name it with --text COLUMN (in Python text='COLUMN')"),
        ({"text": ["a"]}, "no column is recognized as the labels; the columns are 'text'; name it "
         "with --labels COLUMN (in Python labels='COLUMN')"),
        ({"text": [1], "labels": ["x"]}, "the column 'text' must hold strings; it holds int64"),
        ({"text": ["a"], "labels": [[1.5]]}, "the lists of the column 'labels' must hold strings, "
         "not double"),
    ],
)  # fmt: skip
def test_parquet_without_the_columns(path, columns, message):
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_broken_parquet_file(path):
    pq.write_table(pa.table({"text": ["a"], "labels": ["x"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(path)


def test_a_parquet_bomb_is_stopped(path, monkeypatch):
    monkeypatch.setattr("longtail.data.source.BOMB_BYTES", 1 << 20)
    pq.write_table(pa.table({"text": ["word " * 1000] * 5000}), path, compression="zstd")
    with pytest.raises(DataError, match="this looks like a decompression bomb"):
        list(read_batches(path))


def test_columns_of_one_name_are_all_kept(tmp_path):
    (tmp_path / "x.csv").write_text("text,labels,note,note,,\nred wine,a,1,2,3,4\n")
    kept = load(tmp_path / "x.csv", keep=True).train.columns
    given = {"text": ["red wine"], "labels": ["a"]}
    assert kept == given | {"note": ["1"], "note (2)": ["2"], "": ["3"], " (2)": ["4"]}
