"""Sparse rows: what is read, and what each fault says."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data import load, sparse
from longtail.data.source import Source
from longtail.errors import DataError


def read(path, content):
    path.write_bytes(content)
    with Source(path) as source:
        return sparse.read_sparse(source)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.txt"


def test_reads_rows_with_and_without_labels_and_features(path):
    X, Y = read(path, b"6 4 3\n0,2 0:1 3:0.5\n 1:2e-1\n1:-3 2:+4\n1\n\n 2:.25 3:7.\n")
    assert X.toarray().tolist() == [
        [1, 0, 0, 0.5],
        [0, np.float32(0.2), 0, 0],
        [0, -3, 4, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0.25, 7],
    ]
    assert Y.toarray().tolist() == [[1, 0, 1], [0] * 3, [0] * 3, [0, 1, 0], [0] * 3, [0] * 3]
    assert {X.indices.dtype, X.indptr.dtype, Y.indices.dtype} == {np.dtype(np.int32)}
    assert X.dtype == Y.dtype == np.float32


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf2 3 2\n0 1:1\n1 2:1\n",
        b"2 3 2\r\n0 1:1\r\n1 2:1\r\n",
        b"2 3 2\n0 1:1\n1 2:1",
        b"2\t3 2\n0\t1:1  \n1   2:1\n\n\n",
        gzip.compress(b"2 3 2\n0 1:1\n1 2:1\n", mtime=0),
    ],
    ids=["bom", "crlf", "no last line end", "blanks", "gzip"],
)
def test_tolerates_how_files_are_written(path, content):
    X, Y = read(path, content)
    assert X.toarray().tolist() == [[0, 1, 0], [0, 0, 1]]
    assert Y.toarray().tolist() == [[1, 0], [0, 1]]


def test_sums_repeated_features_and_drops_zeros_and_repeated_labels(path):
    X, Y = read(path, b"1 4 3\n2,0,2 3:1 1:2 3:4 0:0\n")
    assert X.indices.tolist() == [1, 3]
    assert X.data.tolist() == [2, 5]
    assert Y.indices.tolist() == [0, 2]
    assert Y.data.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3 0:1", "label id 3 is outside 0 to 2, the range that the header gives (3 labels)"),
        ("0,-1 0:1", "label id -1 is outside 0 to 2, the range that the header gives (3 labels)"),
        (
            "0,99999999999999999999999 0:1",
            "label id 99999999999999999999999 is outside 0 to 2, "
            "the range that the header gives (3 labels)",
        ),
        ("beer 0:1", "'beer' is not a label id; a row is 'l1,l2 f:v f:v'"),
        ("0, 0:1", "'' is not a label id; a row is 'l1,l2 f:v f:v'"),
        ("1.5 0:1", "'1.5' is not a label id; a row is 'l1,l2 f:v f:v'"),
        ("0 4:1", "feature id 4 is outside 0 to 3, the range that the header gives (4 features)"),
        ("0 -2:1", "feature id -2 is outside 0 to 3, the range that the header gives (4 features)"),
        ("0 beer", "'beer' is not a feature 'id:value'"),
        ("0 3", "'3' is not a feature 'id:value'"),
        ("0 1:", "'1:' has no number after the colon"),
        ("0 1:x", "'1:x' has no number after the colon"),
        ("0 1:2e+", "'1:2e+' has no number after the colon"),
        ("0 1:1.2.3", "'1:1.2.3' has no number after the colon"),
        (
            "0 1:nan",
            "'1:nan' is not a finite number; leave the feature out or give it a value",
        ),
        (
            "0 1:-Inf",
            "'1:-Inf' is not a finite number; leave the feature out or give it a value",
        ),
        (
            "0 1:1e39",
            "'1:1e39' is not a finite number; leave the feature out or give it a value",
        ),
        ("0 1:1\x00", "'1:1\x00' has no number after the colon"),
    ],
)
def test_a_broken_row_names_file_and_line(path, row, message):
    if row.endswith("\x00"):
        message = "'\x00' is not a feature 'id:value'"
    with pytest.raises(DataError) as caught:
        read(path, f"3 4 3\n0 0:1\n{row}\n1 1:1\n".encode())
    assert str(caught.value) == f"{path}:3: {message}"


def test_the_line_is_right_in_a_later_block(path, monkeypatch):
    monkeypatch.setattr("longtail.data.source.BLOCK", 64)
    rows = [f"{i % 3} {i % 4}:1" for i in range(500)]
    rows[400] = "0 9:1"
    with pytest.raises(DataError) as caught:
        read(path, ("500 4 3\n" + "\n".join(rows)).encode())
    assert caught.value.line == 402


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("3 4 3\n0 0:1\n", 1, "the header says 3 rows, but 1 follow"),
        ("1 4 3\n0 0:1\n0 1:1\n", 3, "the header says 1 rows, but here is one more"),
        ("3 4 3 3\n", 1, "the header must be 'N D L' (documents, features, labels) or 'N D'; "
         "got '3 4 3 3'"),
        ("3 4 -3\n", 1, "the header must be 'N D L' (documents, features, labels) or 'N D'; "
         "got '3 4 -3'"),
        ("1 1 99999999999\n0\n", 1, "the header says 99999999999 labels; "
         "at most 20000000 are possible"),
        ("1 99999999999 1\n0\n", 1, "the header says 99999999999 features; "
         "at most 2147483647 are possible"),
    ],
)  # fmt: skip
def test_a_header_that_disagrees_is_refused(path, content, line, message):
    with pytest.raises(DataError) as caught:
        read(path, content.encode())
    assert str(caught.value) == f"{path}:{line}: {message}"


def test_a_50_mb_line_works(path):
    row = b" 7:1" * 12_500_000
    X, _ = read(path, b"2 9 1\n0" + row + b"\n0 8:1\n")
    assert X.toarray().tolist() == [[0] * 7 + [12_500_000, 0], [0] * 8 + [1]]


def test_a_matrix_file_has_no_labels(path):
    X, Y = read(path, b"2 3\n1:2\n\n")
    assert X.toarray().tolist() == [[0, 2, 0], [0, 0, 0]]
    assert Y is None


def test_an_empty_set_of_rows(path):
    X, Y = read(path, b"0 3 2\n")
    assert X.shape == (0, 3)
    assert Y.shape == (0, 2)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@settings(max_examples=60, deadline=None)
def test_numbers_are_read_as_python_reads_them(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("numbers") / "rows.txt"
    for form in ("{!r}", "{:.9e}", "{:.3f}", "{:E}"):
        texts = [form.format(value) for value in values]
        rows = "".join(f" 0:{text}\n" for text in texts)
        X, _ = read(path, f"{len(values)} 1 1\n{rows}".encode())
        expected = np.array([float(text) for text in texts], dtype=np.float32)
        # One unit in the last place: the decimal may lie just beside the middle of two floats.
        np.testing.assert_array_max_ulp(X.toarray()[:, 0], expected + np.float32(0), maxulp=1)


def test_small_blocks_give_the_same_matrix(path, monkeypatch):
    X = sp.random(300, 50, 0.1, format="csr", dtype=np.float32, random_state=0)
    lines = [
        f"{i % 7} " + " ".join(f"{j}:{v}" for j, v in zip(row.indices, row.data, strict=True))
        for i, row in enumerate(X)
    ]
    path.write_text("300 50 7\n" + "\n".join(lines))
    whole = load(path).train
    monkeypatch.setattr("longtail.data.source.BLOCK", 100)
    monkeypatch.setattr("longtail.data.source.HEAD", 10)
    small = load(path).train
    assert (whole.X != X).nnz == (small.X != X).nnz == 0
    assert small.Y.indices.tolist() == [i % 7 for i in range(300)]
