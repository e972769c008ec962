"""Parquet that is damaged, or far larger than it looks, is refused in one sentence."""

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted import pairs

from longtail.data import load
from longtail.data import parquet as parquet_module
from longtail.errors import DataError

BIG = "x" * (1 << 20)
BOMB = "unpacks to more than 100 times its size and 256 MiB"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


def message_of(path):
    with pytest.raises(DataError) as caught:
        load(path)
    return str(caught.value)


def write(path, texts, labels, **settings):
    pq.write_table(pa.table({"text": texts, "labels": labels}), path, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"data_page_version": "2.0", "compression": "zstd", "row_group_size": 7},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
        {"dictionary_pagesize_limit": 64, "data_page_size": 64, "row_group_size": 30},
        {"write_page_index": True, "write_page_checksum": True, "compression": "gzip"},
    ],
)
def test_all_ways_of_writing_read_the_same(path, settings):
    texts = [f"text {i % 11}" if i % 5 else None for i in range(80)]
    labels = [[f"label {i % 13}", "x"] if i % 3 else None for i in range(80)]
    write(path, texts, labels, **settings)
    expected = [(text or "", sorted(each or [])) for text, each in zip(texts, labels, strict=True)]
    assert [(text, sorted(each)) for text, each in pairs(load(path).train)] == expected


def test_damage_is_never_more_than_one_sentence(path):
    whole = io.BytesIO()
    write(whole, [f"pale ale {i}" for i in range(60)], [["a", f"b{i}"] for i in range(60)])
    rng = random.Random(0)
    refused = []
    for _ in range(300):
        data = bytearray(whole.getvalue())
        for _ in range(rng.choice((1, 3))):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice((len(data), len(data), rng.randrange(4, len(data))))])
        try:
            load(path)
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(message.startswith(f"{path}: ") for message in refused)


def one_list_of(n):
    """Return a row whose list holds one large string n times, said once."""
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([BIG]))
    return pa.ListArray.from_arrays([0, n], values)


@pytest.mark.parametrize(
    ("texts", "labels", "settings"),
    [
        (["a"], one_list_of(34_000), {}),
        (pa.array([BIG] * 1000).dictionary_encode(), [["a"]] * 1000, {}),
        ([BIG] * 300, [["a"]] * 300, {"use_dictionary": False}),
        (pa.nulls(20_000_000, pa.string()), pa.nulls(20_000_000, pa.list_(pa.string())), {}),
    ],
    ids=["dictionary of lists", "dictionary of texts", "packed pages", "run lengths"],
)
def test_a_bomb_is_stopped(path, texts, labels, settings):
    write(path, texts, labels, compression="zstd", **settings)
    assert path.stat().st_size < 200_000
    assert BOMB in message_of(path)


def test_a_column_with_a_dot_in_its_name_is_measured_before_it_is_unpacked(path, monkeypatch):
    table = pa.table({"text.": [BIG] * 300, "labels": [["a"]] * 300})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    monkeypatch.setattr(parquet_module, "_batches", lambda *_: pytest.fail("unpacked"))
    assert BOMB in message_of(path)


def test_the_pages_are_believed_and_not_the_summary(path):
    texts = [BIG] * 300
    write(path, texts, [["a"]] * 300, use_dictionary=False, compression="zstd")
    table = pq.ParquetFile(path)
    chunk = table.metadata.row_group(0).column(0)
    said = chunk.total_uncompressed_size
    data = path.read_bytes()
    # As the format writes the number: seven bits a byte, the sign in the lowest.
    assert data.count(_varint(2 * said)) == 1
    lie = _varint(2 * said)[:-1].translate(bytes([0x80]) * 256) + b"\0"
    path.write_bytes(data.replace(_varint(2 * said), lie))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 0
    with path.open("rb") as file:
        pages = parquet_module._count_pages(file, {0: "text"})
    assert pages.unpacked > 300 << 20
    assert BOMB in message_of(path)


def _varint(number):
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def test_a_page_header_without_end_is_damage(path):
    thrift = parquet_module._Thrift(b"\x1c" * 1000)
    with pytest.raises(ValueError, match="a header is damaged"):
        thrift.read_struct()
    write(path, ["a"], [["x"]])
    data = bytearray(path.read_bytes())
    data[4:40] = b"\x1c" * 36
    path.write_bytes(data)
    assert message_of(path).startswith(f"{path}: not a readable Parquet file (")


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ([1], [["x"]], "the column 'text' must hold strings; it holds int64"),
        ([b"a"], [["x"]], "the column 'text' must hold strings; it holds binary"),
        (["a"], [[1.5]], "the lists of the column 'labels' must hold strings, not double"),
        (["a"], [{"x": 1}], "the column 'labels' must hold strings; it holds struct<x: int64>"),
        (["a"], [[[1]]], "the lists of the column 'labels' must hold strings, not list<"),
    ],
)
def test_columns_of_the_wrong_type(path, texts, labels, message):
    write(path, texts, labels)
    assert message_of(path).startswith(f"{path}: {message}")


def test_a_column_that_stands_twice(path):
    pq.write_table(pa.table([["a"], ["b"], [["x"]]], names=["text", "text", "labels"]), path)
    assert message_of(path) == f"{path}: the column 'text' stands there twice"


def test_lists_of_labels_are_read_many_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "BATCH", 2)
    columns = {
        "id": ["a", None, "c", "d", "e"],
        "title": ["Ä", "", None, "x", "y"],
        "text": ["one", "two", None, "vier", "five"],
        "labels": [["b", "", None, "a"], None, [], ["a", "日", "a"], ["b"]],
    }
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    read = load(tmp_path / "train.parquet", text=["title", "text"]).train
    assert list(read.texts) == ["Ä one", "two", "", "x vier", "y five"]
    assert read.ids == ["a", "", "c", "d", "e"]
    assert read.label_names == ["a", "b", "日"]
    assert read.Y.toarray().tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert list(load(tmp_path / "train.parquet", text="text").train.texts) == [
        each or "" for each in columns["text"]
    ]


def test_a_blank_label_in_a_list_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "BATCH", 2)
    columns = {"text": ["a", "b", "c", "d"], "labels": [["x"], ["y"], [], ["x", " "]]}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="document 4: a label must be a string; got an empty"):
        load(tmp_path / "train.parquet")
