"""Model folders at URLs: whole or not at all, fetched once, the same bits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import run, succeed, write_texts
from planted import planted_texts

import longtail
from longtail.errors import LongtailError, ModelFileError
from longtail.runtime.store import check_writable, verify_folder
from longtail.runtime.store.published import find_version
from longtail.storage import RemotePath

URL = "s3://store/models/m"
PLACE = RemotePath(URL)


@pytest.fixture(scope="module")
def data():
    return planted_texts(60)


@pytest.fixture(scope="module")
def model(data):
    return longtail.KNN(n_neighbours=5).fit(data)


@pytest.fixture(scope="module")
def other(data):
    return longtail.KNN(n_neighbours=2).fit(data)


def cached():
    models = Path(os.environ["LONGTAIL_CACHE"]) / "models"
    return sorted(each.name for each in models.iterdir()) if models.exists() else []


def number_of_neighbours():
    return longtail.load_model(URL).get_parameters()["n_neighbours"]


def test_what_is_saved_is_loaded(s3, model, data):
    model.save(URL)
    loaded = longtail.load_model(URL)
    np.testing.assert_array_equal(loaded.predict(data, k=3).scores, model.predict(data, 3).scores)
    assert loaded.card_ == longtail.load_model(Path(URL)).card_
    assert len(cached()) == 1
    names = {name.rpartition("/")[2] for name in s3.names("models/m/version-")}
    assert {"manifest.json", "config.json", "weights.safetensors", "card.json"} <= names
    assert verify_folder(URL).model_name == "knn"


def test_a_model_is_only_replaced_if_asked(s3, model, other):
    model.save(URL)
    with pytest.raises(LongtailError, match=rf"^{URL}: already exists; choose another URL"):
        other.save(URL)
    before = find_version(PLACE)
    other.save(URL, overwrite=True)
    assert number_of_neighbours() == 2
    assert not s3.names(str(before.folder).removeprefix("s3://store/"))
    s3.put("notes/readme.txt", b"mine")
    with pytest.raises(LongtailError, match="is not a longtail model, so it is not replaced"):
        model.save("s3://store/notes", overwrite=True)


def test_a_folder_that_was_copied_there_is_read_and_replaced(s3, model, other, tmp_path):
    model.save(tmp_path / "m")
    for file in (tmp_path / "m").iterdir():
        s3.put(f"models/m/{file.name}", file.read_bytes())
    assert number_of_neighbours() == 5
    other.save(URL, overwrite=True)
    assert number_of_neighbours() == 2
    assert {name.split("/")[2].partition("-")[0] for name in s3.names("models/m/")} == {
        "current.json",
        "version",
    }


def test_an_incomplete_folder_is_said_to_be_so(s3, model):
    with pytest.raises(ModelFileError, match=rf"^{URL}: no such model folder"):
        longtail.load_model(URL)
    s3.put("models/m/config.json", b"{}")
    with pytest.raises(ModelFileError, match=rf"^{URL}: is not complete, as it has no manifest"):
        longtail.load_model(URL)


def test_what_was_altered_is_refused(s3, model):
    model.save(URL)
    weights = next(name for name in s3.names() if name.endswith("weights.safetensors"))
    content = bytearray(s3.get(weights))
    content[-1] ^= 1
    s3.put(weights, bytes(content))
    with pytest.raises(ModelFileError, match=r"weights\.safetensors: is not the file that was"):
        longtail.load_model(URL)
    s3.client.delete_object(Bucket="store", Key=weights)
    with pytest.raises(ModelFileError, match=r"is not complete: .*weights\.safetensors is missing"):
        longtail.load_model(URL)


def test_a_manifest_cannot_name_files_elsewhere(s3, model):
    model.save(URL)
    name = next(name for name in s3.names() if name.endswith("manifest.json"))
    held = json.loads(s3.get(name))
    held["files"]["../../evil.txt"] = {"size": 1, "sha256": "0"}
    s3.put(name, json.dumps(held))
    with pytest.raises(ModelFileError, match=r"lists '\.\./\.\./evil\.txt', which is no"):
        longtail.load_model(URL)


# -- saves and loads that are killed ------------------------------------------------------------

KILLED_SAVE = """
import os, signal, sys
from longtail.runtime.store import read_folder, write_folder
from longtail.storage import remote
put, left = remote.upload, [int(sys.argv[3])]
def upload(file, url):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    put(file, url)
remote.upload = upload
write_folder(sys.argv[2], read_folder(sys.argv[1]), overwrite=True)
"""


def test_a_save_that_is_killed_leaves_the_old_model(s3, model, other, tmp_path):
    model.save(URL)
    other.save(tmp_path / "other")
    n_files = len(verify_folder(tmp_path / "other").files)
    before = find_version(PLACE)
    for n_uploaded in (n_files - 1, n_files):  # before the manifest, before what makes it count
        command = [sys.executable, "-c", KILLED_SAVE, tmp_path / "other", URL, str(n_uploaded)]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        assert find_version(PLACE) == before
    assert number_of_neighbours() == 5
    other.save(URL, overwrite=True)
    assert number_of_neighbours() == 2


def test_what_killed_saves_left_is_removed_a_day_later(s3, model, other):
    s3.put("models/m/version-20200101T000000-0000/weights.safetensors", b"half")
    model.save(URL)
    assert not s3.names("models/m/version-2020")


def test_of_two_saves_at_once_one_counts_whole(s3, model, other, monkeypatch):
    model.save(URL)
    from longtail.storage import remote

    put, done = remote.upload, []

    def upload(file, url):
        if not done and file.name == "current.json":
            done.append(url)
            model.save(URL, overwrite=True)  # in the midst of the other save
        put(file, url)

    monkeypatch.setattr(remote, "upload", upload)
    other.save(URL, overwrite=True)
    assert done
    assert number_of_neighbours() == 2
    verify_folder(URL)


def test_a_model_that_is_replaced_while_it_is_fetched(s3, model, other, monkeypatch):
    from longtail.runtime.store import published

    model.save(URL)
    copy, done = published._copy_file, []

    def replace_first(*args):
        if not done:
            done.append(args)
            other.save(URL, overwrite=True)
        copy(*args)

    monkeypatch.setattr(published, "_copy_file", replace_first)
    assert number_of_neighbours() == 2


def test_a_fetch_that_stopped_goes_on(s3, model, monkeypatch):
    from longtail.runtime.store import published

    model.save(URL)
    version = find_version(PLACE)
    part = Path(os.environ["LONGTAIL_CACHE"]) / "models" / f"{version.digest[:32]}.part"
    part.mkdir(parents=True)
    weights = (version.folder / "weights.safetensors").read_bytes()
    (part / "weights.safetensors").write_bytes(weights[:1000])
    starts = []
    append = published._append

    def note(source, file, size):
        starts.append((source.name, file.seek(0, os.SEEK_END)))
        append(source, file, size)

    monkeypatch.setattr(published, "_append", note)
    assert number_of_neighbours() == 5
    assert ("weights.safetensors", 1000) in starts
    assert cached() == [version.digest[:32]]


def test_what_a_stopped_fetch_left_may_be_wrong(s3, model):
    model.save(URL)
    version = find_version(PLACE)
    part = Path(os.environ["LONGTAIL_CACHE"]) / "models" / f"{version.digest[:32]}.part"
    part.mkdir(parents=True)
    (part / "weights.safetensors").write_bytes(b"nonsense")
    assert number_of_neighbours() == 5


def test_several_processes_fetch_once(s3, model):
    model.save(URL)
    code = (
        "from longtail.runtime.store import published as p, read_folder; copy = p._copy\n"
        "def note(*a): print('copied'); copy(*a)\n"
        f"p._copy = note; read_folder({URL!r})"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    said = [each.communicate()[0] for each in running]
    assert [each.returncode for each in running] == [0, 0]
    assert b"".join(said).count(b"copied") == 1


def test_a_bucket_is_a_place_for_a_model(s3, model):
    check_writable("s3://store")
    model.save("s3://store")
    assert longtail.load_model("s3://store").name == "knn"
    assert not [name for name in s3.names() if "probe" in name]


def test_a_storage_where_files_are_renamed(s3, model, other):
    url = "memory://store/m"
    model.save(url)
    other.save(url, overwrite=True)
    assert longtail.load_model(url).get_parameters()["n_neighbours"] == 2
    (version,) = [each for each in RemotePath(url).iterdir() if each.name != "current.json"]
    assert not [each for each in version.iterdir() if each.name.startswith(".")]


# -- the cache ----------------------------------------------------------------------------------


def test_the_cache_is_bounded(s3, model, other, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE_GB", "0.000001")
    monkeypatch.setattr("longtail.runtime.store.cache.IN_USE", 0.0)
    model.save(URL)
    number_of_neighbours()
    first = cached()
    other.save("s3://store/models/other")
    longtail.load_model("s3://store/models/other")
    assert len(cached()) == 1
    assert cached() != first
    monkeypatch.setenv("LONGTAIL_CACHE_GB", "much")
    with pytest.raises(LongtailError, match="LONGTAIL_CACHE_GB must be a number of gigabytes"):
        longtail.load_model(URL)


def test_a_full_disk_is_said_with_what_to_do(s3, model, monkeypatch):
    import errno

    from longtail.runtime.store import published

    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model.save(URL)
    monkeypatch.setattr(published, "_append", fill)
    with pytest.raises(LongtailError, match=r"No space left on device; free some, or name another"):
        longtail.load_model(URL)


# -- commands -----------------------------------------------------------------------------------


def test_train_evaluate_predict_update_and_calibrate_there(s3, tmp_path):
    s3.put("data/train.jsonl", write_texts(tmp_path / "a", 120, seed=1).read_bytes())
    s3.put("data/test.jsonl", write_texts(tmp_path / "b", 60, seed=2).read_bytes())
    out = succeed("train", "s3://store/data", "--out", URL, "--model", "knn").stdout
    assert f"is in {URL} (" in out
    assert f"longtail evaluate {URL} s3://store/data" in out
    succeed("evaluate", URL, "s3://store/data", "--json", "s3://store/e.json")
    assert json.loads(s3.get("e.json"))["n_documents"] == 60
    succeed("predict", URL, "s3://store/data/test.jsonl", "--out", "s3://store/p.jsonl")
    assert len(s3.get("p.jsonl").splitlines()) == 60
    again = run("predict", URL, "s3://store/data/test.jsonl", "--out", "s3://store/p.jsonl")
    assert "s3://store/p.jsonl already exists" in again.stderr
    before = find_version(PLACE)
    succeed("update", URL, "s3://store/data/test.jsonl")
    succeed("calibrate", URL, "s3://store/data")
    assert find_version(PLACE) != before
    assert "is complete" in succeed("verify", URL).stdout
    again = run("train", "s3://store/data", "--out", URL, "--model", "knn")
    assert again.exit_code == 2
    assert f"{URL} already exists; choose another --out" in again.stderr


def test_a_place_that_cannot_be_written_is_said_before_training(s3, tmp_path):
    data = write_texts(tmp_path / "train.jsonl", 30, seed=1)
    result = run("train", data, "--out", "s3://nobody-has-this/m", "--model", "knn")
    assert result.exit_code == 2
    assert "no such file, folder or bucket" in result.stderr


def test_a_served_model_follows_its_url(s3, model, other, monkeypatch):
    from longtail.serve import hosting

    model.save(URL)
    hosted = hosting.Hosted(PLACE)
    assert hosted.name == "m"
    other.save(URL, overwrite=True)
    assert not hosted.refresh()  # it looks twice a minute
    monkeypatch.setattr(hosting, "REMOTE_SECONDS", 0.0)
    with monkeypatch.context() as gone:
        gone.setattr("longtail.storage.remote.connect", lambda url: 1 / 0)
        assert not hosted.refresh()
        assert hosted.problem == f"{URL}/current.json: the storage failed (ZeroDivisionError)"
    assert hosted.refresh()
    assert hosted.problem is None
    assert hosted.current.model.get_parameters()["n_neighbours"] == 2
