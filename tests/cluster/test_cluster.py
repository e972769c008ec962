"""A real cluster of one node: the results of one machine, whatever dies."""

import json
import math
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from cluster.clusters import find_workers, kill
from command_line import fail, succeed, write_texts
from planted import planted_texts

import longtail
from longtail.cluster import Request, check_address, connected, predict
from longtail.cluster.connection import _reach, _say_why, _telling_loss
from longtail.cluster.model_folder import offer_model, open_model
from longtail.cluster.parts import PartsFolder
from longtail.cluster.predict import AHEAD
from longtail.cluster.tasks import Span, WorkerError, _count_by_node, group_tasks
from longtail.cluster.versions import ClusterError, find_versions
from longtail.compare.spread import LEAST_BYTES, count_bytes
from longtail.data import Dataset, documents
from longtail.errors import DataError, MemoryPlanError, ParameterError
from longtail.labels.tree import build_label_vectors
from longtail.models.fusion.spread import ClusterTrainer
from longtail.models.linear.spread import build_trees
from longtail.progress import Silent
from longtail.runtime.mapped import write_matrix
from longtail.runtime.memory import full_size_of, size_of
from longtail.runtime.workers import Needs, cluster_in_use
from longtail.text.tfidf import Tfidf


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A saved model, a file of documents, and the labels that one machine gives them."""
    import pyarrow as pa

    folder = tmp_path_factory.mktemp("made")
    data = planted_texts(900)
    model = longtail.Linear().fit(data)
    model.save(folder / "model")
    ids = [f"d{i}" for i in range(len(data))]
    pq.write_table(pa.table({"id": ids, "text": data.texts}), folder / "in.parquet")
    return folder


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(documents, "BATCH", 50)


def one_machine(folder, k=3):
    table = pq.read_table(folder / "in.parquet")
    top = longtail.load_model(folder / "model").predict(table["text"].to_pylist(), k)
    labels = [[each["label"] for each in found] for found in top.to_list()]
    scores = [[each["score"] for each in found] for found in top.to_list()]
    return {"id": table["id"].to_pylist(), "labels": labels, "scores": scores}


def label(made, out, workers, **options):
    return predict(
        made / "model", made / "in.parquet", out, workers, Request(k=3), part_batches=2, **options
    )


def test_predict_gives_what_one_machine_gives(made, tmp_path, workers, small_batches):
    assert label(made, tmp_path / "out", workers) == 900
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) == 10  # 50 documents, then 100 each
    assert ds.dataset(tmp_path / "out").to_table().to_pydict() == one_machine(made)


def test_predict_goes_on_from_finished_parts(made, tmp_path, workers, small_batches):
    label(made, tmp_path / "out", workers)
    parts = sorted((tmp_path / "out").glob("part-*.parquet"))
    before = {part: part.stat().st_mtime_ns for part in parts}
    parts[3].unlink()
    parts[5].write_bytes(b"PAR1 cut off")
    (tmp_path / "out" / "part-000099.parquet").write_bytes(parts[0].read_bytes())
    label(made, tmp_path / "out", workers)
    after = {part: part.stat().st_mtime_ns for part in parts}
    assert [part for part in parts if after[part] != before[part]] == [parts[3], parts[5]]
    assert ds.dataset(tmp_path / "out").to_table().to_pydict() == one_machine(made)


def test_predict_refuses_the_folder_of_another_run(made, tmp_path, workers, small_batches):
    label(made, tmp_path / "out", workers)
    with pytest.raises(ParameterError, match=r"predictions of another run \(with another k\)"):
        predict(made / "model", made / "in.parquet", tmp_path / "out", workers, part_batches=2)
    before = (tmp_path / "out" / "part-000000.parquet").stat().st_mtime_ns
    label(made, tmp_path / "out", workers, overwrite=True)
    assert (tmp_path / "out" / "part-000000.parquet").stat().st_mtime_ns != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(ParameterError, match=r"with other files; choose another --out$"):
        label(made, tmp_path / "mine", workers, overwrite=True)


def test_predict_survives_killed_workers(made, tmp_path, workers, small_batches, monkeypatch):
    raylet, killed, write = workers.get(workers.submit(os.getppid)), [], PartsFolder.write

    def write_and_kill(folder, number, contents):
        write(folder, number, contents)
        if number == 1:
            killed.extend(each for each in find_workers(raylet) if kill(each))

    monkeypatch.setattr(PartsFolder, "write", write_and_kill)
    label(made, tmp_path / "out", workers)
    assert killed
    assert ds.dataset(tmp_path / "out").to_table().to_pydict() == one_machine(made)


def test_documents_are_read_no_faster_than_they_are_labelled(made, tmp_path, workers, monkeypatch):
    """Parts are written while others are yet to be read, and few are under way at a time."""
    written, ahead, write = [], [], PartsFolder.write

    def note_written(folder, number, contents):
        write(folder, number, contents)
        written.append(number)

    def read(source, reading):
        texts = planted_texts(20).texts
        for number in range(41):
            ahead.append(number - len(written))
            yield Dataset(sp.csr_matrix((20, 0), dtype=np.float32), [], texts=texts)

    monkeypatch.setattr(PartsFolder, "write", note_written)
    monkeypatch.setitem(predict.__globals__, "read_batches", read)
    n = predict(made / "model", "-", tmp_path / "out", workers, Request(k=3), part_batches=1)
    assert n == 41 * 20
    assert sorted(written) == list(range(41))
    assert 2 < max(ahead) <= AHEAD * workers.n_cores + 1  # and one that is being put together


def test_workers_of_a_node_share_the_pages_of_a_model(made, workers):
    def find_files(folder, number):
        from longtail.cluster import model_folder
        from longtail.runtime.store import manifest

        manifest.MAPPED_BYTES = 1  # this model is small
        model_folder._load.cache_clear()
        open_model(folder)
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if line.endswith("weights.safetensors")}

    folder = offer_model(made / "model", workers)
    found = workers.run(find_files, folder, [0, 1], [1.0, 1.0], needs=[Needs()] * 2)
    assert found == [{str(made / "model" / "weights.safetensors")}] * 2


def test_a_task_whose_worker_dies_is_done_again(tmp_path, workers):
    def square(folder, i):
        if i == 5 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return i * i

    found = workers.run(square, tmp_path, range(20), [1.0] * 20, needs=[Needs()] * 20)
    assert found == [i * i for i in range(20)]
    assert (tmp_path / "died").exists()


def test_errors_of_tasks_arrive_as_they_were(workers):
    def refuse(shared, i):
        raise DataError("no such document", path="a.csv", line=i)

    def break_down(shared, i):
        return 1 // i

    with pytest.raises(DataError, match=r"^a.csv:0: no such document$"):
        workers.run(refuse, None, [0], [1.0], needs=[Needs()])
    with pytest.raises(WorkerError, match=r"^a task failed: ZeroDivisionError: integer"):
        workers.run(break_down, None, [0], [1.0], needs=[Needs()])


def test_what_fits_on_no_node_is_refused(workers):
    with pytest.raises(MemoryPlanError, match="no node has them: the cluster has 1 node, 2 cores"):
        workers.run(abs, None, [1], [1.0], needs=[Needs(1 << 50)])


def test_nodes_with_other_versions_are_refused(ray, monkeypatch):
    other = find_versions()._replace(longtail="9.9")
    monkeypatch.setattr("longtail.cluster.versions._find_versions", lambda: other)
    with (
        pytest.raises(ClusterError, match=r"^the node \S+ has longtail \S+ where this machine has"),
        connected("local"),
    ):
        pass


def test_a_node_that_joins_later_with_other_versions_is_refused(workers, monkeypatch):
    other = find_versions()._replace(packages=("numpy 1", "scipy 1", "numba 1"))
    monkeypatch.setattr("longtail.cluster.versions._find_versions", lambda: other)
    with pytest.raises(ClusterError, match=r"has numpy \S+ where this machine has numpy 1;"):
        workers.run(abs, None, [1], [1.0], needs=[Needs()])


def test_linear_has_the_bits_of_one_machine(ray):
    data = planted_texts(400, n_labels=30)
    options = {
        "model": "linear",
        "settings": {"flat": 0, "branching": 4, "max_leaf": 5, "trees": 2},
        "valid": 0,
    }
    here = longtail.train(data, **options).model.to_files().arrays
    there = longtail.train(data, cluster="local", **options).model.to_files().arrays
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[name], there[name]) for name in here)
    assert cluster_in_use() is None


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "pack"
    longtail.data.pack(planted_texts(400, n_labels=30), folder)
    return folder


def test_packed_data_train_on_a_cluster_as_on_one_machine(ray, packed):
    options = {
        "model": "linear",
        "settings": {"flat": 0, "branching": 4, "max_leaf": 5, "trees": 2},
        "valid": 0,
    }
    here = longtail.train(packed, **options).model.to_files().arrays
    there = longtail.train(packed, cluster="local", **options).model.to_files().arrays
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[name], there[name]) for name in here)


def test_texts_in_a_file_reach_a_node(workers, packed):
    def read_first(shared, number):
        texts, some = shared
        return texts[0], some[0]

    texts = longtail.load(packed).train.texts
    some = texts.take(np.array([5, 3]))
    found = workers.run(read_first, (texts, some), [0], [1.0], needs=[Needs()])
    assert found == [(texts[0], texts[5])]


def test_tasks_of_packed_data_ask_for_the_memory_of_what_is_sent(packed):
    class Asked(Exception):
        pass

    class Cluster:
        def run(self, function, shared, tasks, costs, *, needs, progress):
            raise Asked(needs)

    data = longtail.load(packed).train
    X = write_matrix(Tfidf().fit_transform(list(data.texts)))
    vectors = build_label_vectors(X, data.Y)
    assert size_of(vectors) < full_size_of(vectors)
    with pytest.raises(Asked) as asked:
        build_trees(Cluster(), vectors, {}, [0], Silent())
    assert asked.value.args[0][0].n_bytes >= 3 * full_size_of(vectors)


def test_who_did_the_tasks_is_said():
    spans = [Span("f", "a", 1, 0, 1, 5), Span("f", "a", 2, 0, 1, 3), Span("f", "a", 1, 0, 1, 1)]
    assert _count_by_node(spans[:1]) == "5 tasks by 1 worker"
    assert _count_by_node(spans) == "9 tasks by 2 workers (6, 3)"
    spans.append(Span("f", "b", 1, 0, 1, 2_000))
    assert _count_by_node(spans) == "2,009 tasks by 3 workers of 2 nodes (a: 9, b: 2,000)"


def test_small_tasks_are_put_together():
    groups = group_tasks([1, 1, 8, 1, 1], 3)
    assert groups == [[2], [0, 1, 3, 4]]
    assert group_tasks([], 3) == []


def test_a_model_that_stays_on_one_machine_says_so():
    with pytest.raises(ParameterError, match=r"^knn is not trained on a cluster; leave out"):
        longtail.train(planted_texts(200), model="knn", cluster="local")


def test_an_address_that_is_none():
    with (
        pytest.raises(ParameterError, match=r"^--cluster must be auto, local or ray://HOST:10001"),
        connected("lokal"),
    ):
        pass


@pytest.mark.parametrize(
    "address", ["", "ray://", "ray://host", "ray://host:many", "ray://host:99999", "ray://:1", 3]
)
def test_an_address_without_host_or_port(address):
    with pytest.raises(ParameterError) as caught:
        check_address(address)
    assert str(caught.value) == (
        f"--cluster must be auto, local or ray://HOST:10001. Got '{address}' instead."
    )


def test_where_nothing_answers_is_said_at_once(ray, monkeypatch):
    with socket.socket() as taken:  # bound, so nobody else's; but it accepts nothing
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"^ray://{place}: no Ray cluster answers there"):
            _reach(ray, f"ray://{place}")
        monkeypatch.setenv("RAY_ADDRESS", place)
        with pytest.raises(ClusterError, match=r"no Ray cluster answers there .*; RAY_ADDRESS na"):
            _reach(ray, "auto")


def test_a_name_that_is_no_address_of_a_cluster(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    with pytest.raises((ValueError, ConnectionError)) as caught:
        _reach(ray, "auto")
    assert _say_why("auto", caught.value).startswith(
        "RAY_ADDRESS is 'somewhere', and no Ray cluster lets us in there; it must be HOST:6379 or"
    )


def test_a_client_that_has_lost_its_cluster_says_so():
    with (
        pytest.raises(ClusterError, match=r"^ray://host:1: the cluster is gone; start the same"),
        _telling_loss("ray://host:1"),
    ):
        raise ConnectionError("the data channel\nis closed")
    with pytest.raises(ConnectionError), _telling_loss("local"):
        raise ConnectionError


def test_documents_that_cannot_be_read_leave_no_folder(made, tmp_path, workers):
    with pytest.raises(DataError, match="no such file or folder"):
        predict(made / "model", tmp_path / "nowhere.jsonl", tmp_path / "out", workers)
    assert not (tmp_path / "out").exists()


def test_a_fusion_has_the_bits_of_one_machine(ray, tmp_path):
    data = planted_texts(400)
    options = {"model": "fusion", "settings": {"members": "linear,knn"}}
    here = longtail.train(data, **options).model.to_files().arrays
    there = longtail.train(data, cluster="local", out=tmp_path / "model", **options)
    assert not (tmp_path / "model.run").exists()
    arrays = there.model.to_files().arrays
    assert here.keys() == arrays.keys()
    assert all(np.array_equal(here[name], arrays[name]) for name in here)


def test_a_member_that_fails_on_the_cluster_is_left_out(ray, monkeypatch):
    said = []

    class Progress(Silent):
        def say(self, text):
            said.append(text)

    data = planted_texts(400)
    settings = {"members": "linear,knn"}
    monkeypatch.setattr(ClusterTrainer, "_make_task", fail_knn(ClusterTrainer._make_task))
    found = longtail.train(
        data, model="fusion", settings=settings, cluster="local", progress=Progress()
    )
    assert list(found.model.members_) == ["linear"]
    assert any(line.startswith("knn is left out: ") for line in said)
    assert any("on a cluster of 1 node, 2 cores" in line for line in said)


def test_members_have_a_limit_and_stay_if_they_keep_it(ray, monkeypatch):
    limits, time_for = {}, ClusterTrainer.time_for

    def give_no_time(self, *arguments):  # once the cluster has been told what to train
        return 0.0 if ("knn", "3") in limits else time_for(self, *arguments)

    def note_limit(self, member, fold):
        task = make_task(self, member, fold)
        limits[member.name, fold] = task.limit_at - time.time()
        return task

    make_task = ClusterTrainer._make_task
    monkeypatch.setattr(ClusterTrainer, "_make_task", note_limit)
    settings = {"members": "linear,knn", "budget": "300s"}
    monkeypatch.setattr(ClusterTrainer, "time_for", give_no_time)
    found = longtail.train(planted_texts(400), model="fusion", settings=settings, cluster="local")
    assert list(found.model.members_) == ["linear", "knn"]
    assert limits["linear", "1"] == math.inf  # there has to be a model
    assert 0 < limits["knn", "1"] < 150  # half of the time is for training on all documents


def fail_knn(make_task):
    def make(self, member, fold):
        task = make_task(self, member, fold)
        return task._replace(limit_at=0.0) if member.name == "knn" else task

    return make


def test_a_plan_for_a_cluster_says_what_it_has(ray, tmp_path):
    data = write_texts(tmp_path / "train.jsonl", 120, seed=1)
    asked = ("train", data, "--plan", "--set", "members=linear,knn", "--cluster", "local")
    assert "on a cluster of 1 node, 2 cores" in succeed(*asked).stdout


def test_methods_are_compared_on_a_cluster(ray, tmp_path):
    for name, n in (("train", 120), ("test", 40)):
        write_texts(tmp_path / f"{name}.jsonl", n, seed=n)
    out = tmp_path / "report"
    shown = succeed(
        "compare", tmp_path, "--models", "linear,linear:trees=1", "--out", out, "--threads", 1,
        "--cluster", "local",
    )  # fmt: skip
    assert "Cluster: 1 node, 2 cores; 2 methods at once" in shown.stderr
    results = json.loads((out / "results.json").read_text())
    assert [each["name"] for each in results["methods"]] == ["linear", "linear:trees=1"]
    assert results["methods"][0]["metrics"]["P@1"]["value"] > 90


def test_a_method_asks_for_the_memory_of_its_documents(tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "train.bin").write_bytes(b"0" * 1000)
    assert count_bytes(tmp_path) == LEAST_BYTES + 1000


def test_what_the_command_line_refuses(made, tmp_path):
    model, source = made / "model", made / "in.parquet"
    on = ("--cluster", "local")
    assert "name it with --out" in fail("predict", model, source, *on)
    out = tmp_path / "out.csv"
    assert "--out must be a folder" in fail("predict", model, source, "--out", out, *on)
    far = ("--cluster", "far")
    assert "Got 'far' instead" in fail("predict", model, source, "--out", tmp_path / "o", *far)


def test_a_node_without_the_folder_gets_a_copy(made, tmp_path, workers, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("longtail.cluster.model_folder._are_all_here", lambda workers: False)
    folder = offer_model(made / "model", workers)._replace(path=str(tmp_path / "not here"))
    texts = planted_texts(5).texts
    copied = open_model(folder)
    assert list(tmp_path.glob("longtail-models-*/*/manifest.json"))
    assert open_model(folder) is copied
    expected = longtail.load_model(made / "model").predict(texts)
    assert copied.predict(texts).to_list() == expected.to_list()
