"""The log of a run."""

import sys
import types

import pytest

pytest.importorskip("torch", reason="the log belongs to the trainer")

from longtail.training.history import Clock, History, Log


def test_the_table_has_all_columns_and_is_whole(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if not installed
    history = History(records=[{"step": 1, "loss": 0.5}])
    log = Log(tmp_path)
    log.write(history)
    history.records.append({"step": 2, "loss": 0.25, "P@1": 60.0})
    log.write(history)
    log.close()
    assert (tmp_path / "log.csv").read_text() == "step,loss,P@1\n1,0.5,\n2,0.25,60.0\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = Log(None)
    log.write(History(records=[{"step": 1}]))
    log.close()
    assert not list(tmp_path.iterdir())


def test_tensorboard_gets_the_latest_record(tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, folder):
            calls.append(folder)

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append("closed")

    fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    log = Log(tmp_path)
    log.write(History(records=[{"step": 1, "loss": 0.5}, {"step": 2, "epoch": 1.0, "loss": 0.25}]))
    log.close()
    assert calls == [str(tmp_path / "tensorboard"), ("loss", 0.25, 2), "closed"]


def test_a_resumed_clock_goes_on():
    history = History(seconds=100.0, waiting=10.0)
    clock = Clock()
    clock.begin(history)
    assert list(clock.wait_for(iter([1, 2]))) == [1, 2]
    clock.count(0.5, 20)
    clock.count(1.5, 20)
    now = clock.measure(history)
    assert now["loss"] == 1.0
    assert now["documents_per_second"] > 0
    assert 100 < history.seconds < 110
    assert 10 < history.waiting < 20
