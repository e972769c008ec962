"""Predictions of a cluster, in parts at a URL."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longtail.cluster.parts import DOCUMENTS, PartsFolder
from longtail.errors import ParameterError, StorageError
from longtail.storage import RemotePath

OUT = RemotePath("s3://store/labels")


def a_part(digest):
    table = pa.table({"labels": [["beer"]]}).replace_schema_metadata({DOCUMENTS: digest})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_finished_parts_stay_and_others_go(s3):
    parts = PartsFolder(OUT, {"model": "one"})
    with parts.opened(overwrite=False):
        for number in range(3):
            parts.write(number, a_part(b"abc"))
    with parts.opened(overwrite=False):  # after a stop
        assert parts.read_schema(0, "abc").names == ["labels"]
        assert parts.read_schema(0, "other documents") is None
        assert parts.read_schema(7, "abc") is None
        parts.finish(2, 2)
    assert s3.names() == [
        "labels/_run.json",
        "labels/part-000000.parquet",
        "labels/part-000001.parquet",
    ]


def test_another_run_is_refused_or_replaced(s3):
    with PartsFolder(OUT, {"model": "one"}).opened(overwrite=False):
        pass
    other = PartsFolder(OUT, {"model": "two"})
    with (
        pytest.raises(ParameterError, match=r"s3://store/labels already exists, with predictions"),
        other.opened(overwrite=False),
    ):
        pass
    with other.opened(overwrite=True):
        other.write(0, a_part(b"abc"))
    assert len(s3.names()) == 2


def test_where_nothing_can_be_written(strict):
    with (
        pytest.raises(StorageError, match="the storage refuses access"),
        PartsFolder(OUT, {}).opened(overwrite=False),
    ):
        pass
