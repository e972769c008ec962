"""A real cluster and a real S3 server: data, models and predictions at URLs."""

import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from command_line import succeed
from planted import planted_texts, write_planted_texts

import longtail

pytestmark = pytest.mark.slow
clusters = pytest.importorskip("cluster.clusters", reason="--cluster needs Ray")


def read_parts(s3, name):
    for each in s3.names(f"{name}/part-"):
        assert each.endswith(".parquet")
    files = pyarrow.fs.S3FileSystem(endpoint_override=s3.url)
    return ds.dataset(f"store/{name}", filesystem=files).to_table().to_pydict()


def test_a_cluster_reads_and_writes_there(s3, tmp_path):
    s3.put("data/train.jsonl", write_planted_texts(tmp_path / "train.jsonl", 400).read_bytes())
    on = ("--cluster", "local")
    with clusters.one_node():
        trained = ("--model", "linear", "--set", "flat=0", "--set", "max_leaf=5", "--valid", 0)
        succeed("train", "s3://store/data", "--out", "s3://store/model", *trained, *on)
        asked = ("predict", "s3://store/model", "s3://store/data/train.jsonl", "--out")
        succeed(*asked, "s3://store/labels", *on)
        first = read_parts(s3, "labels")
        s3.client.delete_object(Bucket="store", Key="labels/part-000000.parquet")
        succeed(*asked, "s3://store/labels", *on)  # goes on
    assert read_parts(s3, "labels") == first
    here = longtail.train(
        tmp_path / "train.jsonl", model="linear", settings={"flat": 0, "max_leaf": 5}, valid=0
    ).model
    top = here.predict(planted_texts(400).texts).to_list()
    assert first["labels"] == [[each["label"] for each in found] for found in top]
    assert first["scores"] == [[each["score"] for each in found] for found in top]
