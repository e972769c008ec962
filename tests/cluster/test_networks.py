"""Networks on a real cluster of one node: two processes learn what one learns, whatever dies."""

import csv
import os
import re
from contextlib import closing, nullcontext

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch trains networks")

from cluster.clusters import find_workers, kill
from command_line import succeed, write_texts
from many_processes import CASES, N_DOCUMENTS
from planted import planted_texts

import longtail
from longtail.cluster import NetworkTrainer, networks
from longtail.cluster.networks import Group, choose_group
from longtail.cluster.process import Noting, list_files, mirror_files
from longtail.cluster.tasks import Node
from longtail.errors import MemoryPlanError, ParameterError
from longtail.models.registry import get_model_class
from longtail.progress import Silent

GIGA = 1e9
EPOCHS = 40
SMALL, LARGE = Node(4, 0, 8 * GIGA), Node(16, 4, 64 * GIGA)


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture
def trainer(workers):
    with closing(NetworkTrainer(workers, 2)) as trainer:
        yield trainer


def make(name, run_dir, **attributes):
    model = get_model_class(name)(**CASES[name], seed=3)
    model.run_dir = run_dir
    for attribute, value in attributes.items():
        setattr(model, attribute, value)
    return model


def read_losses(run_dir):
    (log,) = run_dir.rglob("log.csv")
    return [float(line["loss"]) for line in csv.DictReader(log.read_text().splitlines())]


def assert_same(found, name, folder=None, **attributes):
    """Compare what the cluster has trained with what one process trains; losses if not resumed."""
    alone = make(name, folder and folder / f"alone-{name}", **attributes)
    alone.fit(planted_texts(N_DOCUMENTS))
    if folder is not None:
        there, here = read_losses(folder / name), read_losses(folder / f"alone-{name}")
        np.testing.assert_allclose(there, here, rtol=1e-5, err_msg=name)
    asked, labels = planted_texts(20, seed=9), np.tile(np.arange(12, dtype=np.int32), (20, 1))
    np.testing.assert_allclose(found.score(asked, labels), alone.score(asked, labels), atol=1e-3)


def test_two_processes_have_the_losses_of_one(trainer, tmp_path):
    said = Said()
    compare_with_one(trainer, tmp_path, "glas", said)
    assert said.lines.count("glas is trained by 2 processes with 1 core each") == 1
    with pytest.raises(ParameterError, match="2 processes are too many for 1 documents; start"):
        trainer.fit(make("glas", None), planted_texts(1), said)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_with_every_network(trainer, tmp_path):
    for name in ("mnn", "dxml", "rank-ae", "attention-xml"):
        compare_with_one(trainer, tmp_path, name, Said())


def compare_with_one(trainer, folder, name, said):
    found, problem = trainer.fit(make(name, folder / name), planted_texts(N_DOCUMENTS), said)
    assert problem is None
    assert_same(found, name, folder)


@pytest.mark.slow
@pytest.mark.parametrize("sees", [True, False])
def test_after_a_death_all_begin_from_the_last_checkpoint(trainer, tmp_path, monkeypatch, sees):
    run_dir, killed, said, look = tmp_path / "glas", [], Said(), NetworkTrainer._look

    def look_and_kill(self, *arguments):
        look(self, *arguments)
        if not killed and len(list(run_dir.glob("step-*/manifest.json"))) > 0:
            killed.append(find_workers(raylet)[-1])
            kill(killed[-1])

    raylet = trainer.workers.get(trainer.workers.submit(os.getppid))
    monkeypatch.setattr(NetworkTrainer, "_look", look_and_kill)
    if not sees:
        monkeypatch.setattr(networks, "_marked", lambda run_dir: nullcontext("/not/here"))
    # Long enough that the process dies before the training ends.
    model = make("glas", run_dir, checkpoint_seconds=0.0, epochs=EPOCHS)
    found, _ = trainer.fit(model, planted_texts(N_DOCUMENTS), said)
    assert killed
    assert any(re.match(r"Note: process \d of 2 has died, or", line) for line in said.lines)
    assert any(line.startswith("Going on from step") for line in said.lines)
    assert_same(found, "glas", epochs=EPOCHS)


def test_each_process_has_the_most_that_all_can_have():
    assert choose_group([SMALL, SMALL], None, "auto") == Group(2, 4, 0, 0)
    assert choose_group([SMALL, SMALL], 4, "auto") == Group(4, 2, 0, 0)
    assert choose_group([SMALL, LARGE], None, "auto") == Group(4, 4, 1, 0)
    assert choose_group([SMALL, LARGE], 2, "cuda") == Group(2, 8, 1, 0)
    assert choose_group([SMALL, LARGE], None, "cpu") == Group(2, 8, 0, 0)
    assert choose_group([SMALL, LARGE], 3, "cpu", int(20 * GIGA)) == Group(3, 5, 0, int(20 * GIGA))
    assert Group(4, 1, 1, 0).describe() == "4 processes with 1 core and a GPU each"


def test_processes_that_no_cluster_has_room_for():
    with pytest.raises(ParameterError, match="8 processes cannot have a GPU each, as the cluster "):
        choose_group([SMALL, LARGE], 8, "auto")
    with pytest.raises(ParameterError, match="--device cuda needs a GPU, and the cluster has none"):
        choose_group([SMALL], 1, "cuda")
    with pytest.raises(MemoryPlanError, match="no room for 5 processes: each takes a core and"):
        choose_group([SMALL], 5, "cpu")
    with pytest.raises(MemoryPlanError, match=r"and 9\.0 GB; the nodes have 4 cores in all and"):
        choose_group([SMALL], 1, "cpu", int(9 * GIGA))


def test_processes_need_a_cluster():
    with pytest.raises(ParameterError, match="processes are those of a cluster; name it as well"):
        longtail.train(planted_texts(200), model="glas", processes=2)


def test_processes_are_refused_before_a_cluster_is_started():
    data = planted_texts(200)
    with pytest.raises(ParameterError, match=r"^--processes must be at least 1\. Got 0 instead"):
        longtail.train(data, model="glas", cluster="ray://nowhere.invalid:1", processes=0)
    with pytest.raises(ParameterError, match=r"^linear is trained by one process, on all its core"):
        longtail.train(data, model="linear", cluster="ray://nowhere.invalid:1", processes=2)


def test_what_is_to_be_shown_is_kept_until_somebody_asks():
    kept = Noting()
    kept.stage("training", 10)
    kept.advance(2)
    kept.advance(3)
    kept.say("half")
    kept.advance(1)
    shown = [("stage", ("training", 10)), ("advance", (5.0,)), ("say", ("half",))]
    assert kept.take() == [*shown, ("advance", (1.0,))]
    assert kept.take() == []


def test_a_folder_is_given_the_files_of_another(tmp_path):
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "weights").write_bytes(b"old")
    mirror_files(tmp_path, {"step-2/manifest.json": b"{}"}, ["step-2/manifest.json", "log.csv"])
    assert list(list_files(tmp_path)) == ["step-2/manifest.json"]
    assert not (tmp_path / "step-1").exists()


def test_the_command_line_lets_a_cluster_train_a_network(ray, tmp_path, monkeypatch):
    asked = []

    def fit_here(trainer, model, dataset, progress):
        asked.append((trainer.processes, model.run_dir))
        return model.fit(dataset), None

    monkeypatch.setattr(NetworkTrainer, "fit", fit_here)
    write_texts(tmp_path / "train.jsonl", 60, seed=1)
    shown = succeed(
        "train", tmp_path / "train.jsonl", "--out", tmp_path / "model", "--model", "glas",
        "--set", "epochs=1", "--set", "dim=8", "--cluster", "local", "--processes", 2,
        "--valid", 0,
    )  # fmt: skip
    assert "Cluster: 1 node, 2 cores" in shown.stderr
    assert asked == [(2, tmp_path / "model.run" / "training")]
    assert not (tmp_path / "model.run").exists()
    assert longtail.load_model(tmp_path / "model").name == "glas"
