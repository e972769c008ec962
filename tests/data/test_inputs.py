"""Documents to label, from files and streams, with and without labels."""

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longtail.data import documents as formats
from longtail.data import read_batches
from longtail.errors import DataError


def texts_of(file):
    return [text for batch in read_batches(file) for text in batch.texts]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("pale ale\n\nred wine", ["pale ale", "", "red wine"]),
        ('{"text": "a"}\n{"text": "b", "labels": 3}\n', ["a", "b"]),
        ("__label__x a\nb\n", ["a", "b"]),
        ("text,labels\na,x\n", ["a"]),
        ("id\ttext\n1\ta\n", ["a"]),
        ("title, of a plain text\nbody\n", ["title, of a plain text", "body"]),
    ],
)
def test_texts_from_streams_and_files(tmp_path, content, expected, pack):
    packed = pack(content.encode())
    assert texts_of(io.BytesIO(packed)) == expected
    (tmp_path / "x").write_bytes(packed)
    assert texts_of(tmp_path / "x") == expected


def test_a_table_of_texts_alone(tmp_path):
    (tmp_path / "x.csv").write_text('text\n"a, b"\nc\n')
    assert texts_of(tmp_path / "x.csv") == ["a, b", "c"]
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "x")
    assert texts_of(tmp_path / "x") == ["a", "b"]
    assert texts_of(io.BytesIO((tmp_path / "x").read_bytes())) == ["a", "b"]


@pytest.mark.parametrize("content", [b"2 3 5\n1,4 0:1\n2:2\n", b"2 3\n0:1\n2:2\n"])
def test_rows_from_a_stream(content):
    (rows,) = read_batches(io.BytesIO(content))
    assert rows.X.toarray().tolist() == [[1, 0, 0], [0, 0, 2]]


def test_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "BATCH", 2)
    monkeypatch.setattr("longtail.data.source.BLOCK", 16)
    monkeypatch.setattr("longtail.data.source.HEAD", 8)
    batches = list(read_batches(io.BytesIO(b"a\nb\nc\nd\n")))
    assert [text for batch in batches for text in batch.texts] == ["a", "b", "c", "d"]
    assert max(map(len, batches)) == 2
    (tmp_path / "x").write_text("30 3\n" + "1:1\n" * 30)
    batches = list(read_batches(tmp_path / "x"))
    assert len(batches) > 2
    assert sum(batch.X.sum() for batch in batches) == 30


@pytest.mark.parametrize(
    "content", [b'[{"text": "a"}]', b'[\n  {\n    "text": "a"\n  }\n]\n', b"[]"]
)
def test_a_json_array_is_not_read_as_lines(content):
    with pytest.raises(DataError, match="a JSON array; write one object a line instead"):
        texts_of(io.BytesIO(content))
    assert texts_of(io.BytesIO(b"[Mozart] in Vienna\n")) == ["[Mozart] in Vienna"]


def test_nothing_to_read(tmp_path):
    with pytest.raises(DataError, match="<stdin>: the file is empty"):
        texts_of(io.BytesIO(b""))
    with pytest.raises(
        DataError, match="no data found in this folder; name the files train and test"
    ):
        texts_of(tmp_path)
