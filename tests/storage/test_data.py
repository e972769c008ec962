"""Data at URLs: read as files are, and whatever fails is said in a sentence."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

import pytest
from command_line import fail, run, succeed, write_texts
from planted import pairs, write_planted_texts

import longtail
from longtail.compare.folder import ReportFolder
from longtail.data import convert, pack, read_batches
from longtail.errors import DataError, MissingExtraError, ParameterError, StorageError
from longtail.labels.vocabulary_files import read_vocabulary
from longtail.runtime.store import fetch_folder
from longtail.storage import RemotePath, as_place


@pytest.fixture
def lines(tmp_path):
    return write_planted_texts(tmp_path / "lines.jsonl", 40).read_bytes()


def test_a_url_is_a_place_even_after_it_was_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("s3://store/a/b.csv", Path("s3://store/a/b.csv")):
        place = as_place(given)
        assert isinstance(place, RemotePath)
        assert str(place) == "s3://store/a/b.csv"
        assert str(place.parent / "c") == "s3://store/a/c"
    assert as_place("file:///data/my%20file.csv") == Path("/data/my file.csv")
    assert as_place(Path("file:///data/a")) == Path("/data/a")
    assert as_place(Path("local:///data/a")) == as_place("local:///data/a") == Path("/data/a")
    Path("s3:").mkdir()
    for here in ("data.csv", "C:/data.csv", "./s3:/x", Path("s3:/x")):
        assert not isinstance(as_place(here), RemotePath)


def test_nothing_of_fsspec_is_imported_without_a_url(tmp_path):
    write_planted_texts(tmp_path / "train.jsonl", 20)
    code = (
        f"import sys, longtail, longtail.cli, longtail.models; longtail.load({str(tmp_path)!r}); "
        "assert 'fsspec' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_folders_files_and_patterns_are_read(s3, tmp_path, lines):
    s3.put("data/train.jsonl", lines)
    s3.put("data/test.jsonl.gz", gzip.compress(lines))
    train, test = longtail.load("s3://store/data")
    assert pairs(train) == pairs(test) == pairs(longtail.load(tmp_path / "lines.jsonl").train)
    assert pairs(longtail.load("s3://store/data/train.jsonl").train) == pairs(train)
    s3.put("parts/a-1.jsonl", lines)
    s3.put("parts/a-2.jsonl", lines)
    assert len(longtail.load("s3://store/parts/a-*.jsonl").train) == 80
    assert [len(batch) for batch in read_batches("s3://store/parts/*.jsonl")] == [40, 40]


def test_parquet_and_names_beside_the_data(s3, tmp_path, lines):
    s3.put("in/train.jsonl", lines)
    convert("s3://store/in", "s3://store/out.parquet")
    local = longtail.load(tmp_path / "lines.jsonl").train
    assert pairs(longtail.load("s3://store/out.parquet").train) == pairs(local)
    convert("s3://store/in", "s3://store/folder")
    assert set(s3.names("folder/")) == {"folder/label_names.txt", "folder/train.jsonl"}
    with pytest.raises(DataError, match=r"s3://store/out\.parquet: exists already"):
        convert("s3://store/in", "s3://store/out.parquet")


def test_packed_data_at_a_url_are_fetched_once(s3, tmp_path, lines, monkeypatch):
    s3.put("in/train.jsonl", lines)
    packed = pack("s3://store/in", "s3://store/packed").train
    local = longtail.load(tmp_path / "lines.jsonl").train
    assert pairs(packed) == pairs(local)
    assert pairs(longtail.load("s3://store/packed").train) == pairs(local)
    assert len(list((tmp_path / "cache" / "data").glob("*/longtail-data.json"))) == 1
    rmtree(tmp_path / "cache")
    assert pairs(longtail.load("s3://store/packed/train").train) == pairs(local)
    monkeypatch.setattr("longtail.runtime.store.copies.download_folder", None)
    assert pairs(longtail.load("s3://store/packed").train) == pairs(local)
    with pytest.raises(DataError, match=r"s3://store/packed: exists already"):
        pack("s3://store/in", "s3://store/packed")


def test_a_folder_at_a_url_that_leads_elsewhere_is_refused(monkeypatch):
    files = {"longtail-data.json": (2, ""), "../../.profile": (1, "")}
    monkeypatch.setattr(RemotePath, "list_files", lambda self: files)
    with pytest.raises(StorageError, match="holds a file whose name no folder can hold"):
        fetch_folder(RemotePath("s3://store/packed"))


def test_the_folder_of_a_report_at_a_url(s3, tmp_path):
    place, data = RemotePath("s3://store/report"), {"sha256": "1"}

    def open_report(identity=data, **options):
        folder = ReportFolder(place)
        folder.open(identity, **{"resume": False, "overwrite": False, **options})
        return folder

    report = open_report()
    (report.path / "runs").mkdir()
    (report.path / "runs" / "run.json").write_text("{}")
    with pytest.raises(ParameterError, match=r"s3://store/report already holds a comparison; add"):
        open_report()  # one that was interrupted, here
    report.publish()
    assert s3.names() == ["report/comparison.json", "report/runs/run.json"]
    assert not report.path.exists()
    with pytest.raises(ParameterError, match=r"s3://store/report already holds a comparison; add"):
        open_report()
    assert (open_report(resume=True).path / "runs" / "run.json").read_text() == "{}"
    with pytest.raises(ParameterError, match=r"s3://store/report holds a comparison on other doc"):
        open_report({"sha256": "2"}, resume=True)
    open_report(overwrite=True).publish()
    assert s3.names() == ["report/comparison.json"]
    s3.client.delete_object(Bucket="store", Key="report/comparison.json")
    s3.put("report/notes.txt", b"kept")
    with pytest.raises(ParameterError, match="already exists and holds no comparison; choose ano"):
        open_report(overwrite=True)


@pytest.mark.slow
def test_a_comparison_at_a_url(s3, tmp_path):
    for name, n in (("train", 120), ("test", 40)):
        write_texts(tmp_path / f"{name}.jsonl", n, seed=n)
    asked = ("compare", tmp_path, "--out", "s3://store/report", "--threads", 1, "--models")
    assert "s3://store/report/report.html" in succeed(*asked, "linear:trees=1").stdout
    assert {"report/results.json", "report/report.html"} <= set(s3.names("report/"))
    assert not list((tmp_path / "cache" / "reports").iterdir())
    assert "already holds a comparison; add --resume" in fail(*asked, "linear:trees=1")
    run_there, n_files = s3.get("report/runs/linear-trees=1/seed-0/run.json"), len(s3.names())
    succeed(*asked, "linear:trees=1", "--resume")
    assert s3.get("report/runs/linear-trees=1/seed-0/run.json") == run_there
    assert len(s3.names()) == n_files


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("s3://store/none.csv", DataError, "s3://store/none.csv: no such file or folder"),
        ("s3://nobody-has-this/x", DataError, "s3://nobody-has-this/x: no such file or folder"),
        ("s3://store/*.csv", DataError, "s3://store/*.csv: no file has a name of this pattern"),
        ("s4://a/b", ParameterError, "s4://a/b: there is no storage 's4://'; did you mean 's3'?"),
        ("sftp://me:word@host/x", ParameterError, "a URL of sftp:// holds a password"),
        ("https://h/x?X-Amz-Signature=1", ParameterError, "a URL of https:// holds a question"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(s3, url, kind, message):
    with pytest.raises(kind) as raised:
        longtail.load(url)
    assert str(raised.value).startswith(message)
    assert "word@" not in str(raised.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"s3:// needs fsspec, .*pip install '\.\[cloud\]'"):
        longtail.load("s3://store/x")


def test_a_missing_driver_is_named(monkeypatch):
    import fsspec

    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(
        MissingExtraError, match=r"^gs:// needs a package that is .*gcsfs.*with pip"
    ):
        longtail.load("gs://store/x")

    def fail(url):
        raise OSError("Unable to load libjvm: cannot open shared object file")

    monkeypatch.setattr(fsspec, "url_to_fs", fail)
    with pytest.raises(MissingExtraError, match=r"^hdfs:// needs Hadoop's client, .* JAVA_HOME"):
        longtail.load("hdfs://host:8020/x")


def test_a_storage_that_renames_holds_packed_data(tmp_path, lines, monkeypatch):
    """As hdfs:// does: a file is written under another name and appears when it is whole."""
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    local = longtail.load(tmp_path / "lines.jsonl").train
    pack(tmp_path / "lines.jsonl", "memory://packs/questions")
    rmtree(tmp_path / "cache")
    assert pairs(longtail.load("memory://packs/questions").train) == pairs(local)
    assert not [name for name in RemotePath("memory://packs").list_files() if ".tmp-" in name]


def test_wrong_credentials_are_refused_and_never_shown(strict, lines, monkeypatch):
    with pytest.raises(StorageError) as raised:
        longtail.load("s3://store/data")
    assert str(raised.value) == (
        "s3://store/data: the storage refuses access; check the credentials, and what they may do "
        "there"
    )
    result = run("predict", "s3://store/m", "s3://store/x.csv", "--out", "s3://store/p.csv")
    assert result.exit_code == 2
    assert "the storage refuses access" in result.stderr
    assert "very-secret" not in result.stderr


def test_a_storage_that_does_not_answer(s3, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match=r"^s3://store/x: the storage does not answer; check"):
        longtail.load("s3://store/x")


def test_what_fails_for_a_moment_is_tried_again(s3, lines, monkeypatch):
    import s3fs

    s3.put("a.jsonl", lines)
    fetch, failed = s3fs.S3File._fetch_range, []

    def fail_once(self, *args):
        if not failed:
            failed.append(args)
            raise ConnectionResetError("the network is gone")
        return fetch(self, *args)

    monkeypatch.setattr(s3fs.S3File, "_fetch_range", fail_once)
    assert len(longtail.load("s3://store/a.jsonl").train) == 40
    assert failed


def test_a_network_that_stays_away_ends_in_one_sentence(s3, lines, monkeypatch):
    import s3fs

    def fail(self, *args):
        raise ConnectionResetError("very-secret things")

    s3.put("a.jsonl", lines)
    monkeypatch.setattr(s3fs.S3File, "_fetch_range", fail)
    with pytest.raises(DataError) as raised:
        longtail.load("s3://store/a.jsonl")
    assert str(raised.value) == (
        "s3://store/a.jsonl: cannot be read: the storage does not answer; check its address "
        "(endpoint) and the network"
    )


def test_a_vocabulary_is_read_there(s3):
    s3.put("v.tsv", b"uri\tlabel\nhttp://example.org/1\tbeer\n")
    (concept,) = read_vocabulary("s3://store/v.tsv").concepts()
    assert concept.uri == "http://example.org/1"
    with pytest.raises(DataError, match=r"s3://store/none\.tsv: no such file or folder"):
        read_vocabulary("s3://store/none.tsv")


def test_a_file_that_changes_while_it_is_read(s3, lines, monkeypatch):
    monkeypatch.setattr("longtail.storage.remote.BLOCK", 100)
    s3.put("a.jsonl", lines)
    with RemotePath("s3://store/a.jsonl").open("rb") as file:
        file.read(10)
        s3.put("a.jsonl", lines + lines)
        with pytest.raises(StorageError, match="changed while it was read; read it again"):
            file.read()


def test_commands_read_and_write_there(s3, tmp_path, lines):
    s3.put("data/train.jsonl", lines)
    assert "40" in succeed("data", "info", "s3://store/data").stdout
    succeed("data", "convert", "s3://store/data", "s3://store/t.csv")
    assert s3.get("t.csv").startswith(b"text,labels")
    succeed("data", "info", "s3://store/data", "--json", "s3://store/info.json")
    assert json.loads(s3.get("info.json"))
