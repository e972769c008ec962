"""Batches: order, shares of processes, and the thread that runs ahead."""

import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="batches hold torch's tensors")

from longtail.batches import Batches, prefetch  # noqa: E402
from longtail.processes import Processes  # noqa: E402

CPU = torch.device("cpu")


class Rows:
    """A task whose batch is the row numbers and a random number."""

    def __init__(self, n_documents):
        self.n_documents = n_documents

    def batch(self, rows, rng):
        return {"rows": torch.from_numpy(rows), "chance": torch.tensor(rng.random())}


def test_the_same_step_is_the_same_whenever_it_is_made():
    batches = Batches(Rows(10), 4, Processes(CPU), seed=3)
    assert batches.per_epoch == 3
    in_order = [batches.make(step) for step in range(6)]
    for step in (5, 0, 3):
        again = Batches(Rows(10), 4, Processes(CPU), seed=3).make(step)
        assert torch.equal(again.batch["rows"], in_order[step].batch["rows"])
        assert again.batch["chance"] == in_order[step].batch["chance"]
    assert len({float(made.batch["chance"]) for made in in_order}) == 6


def test_processes_share_a_step_by_documents():
    alone = Batches(Rows(9), 5, Processes(CPU), seed=0).make(0)
    shares = [Batches(Rows(9), 5, Processes(CPU, rank, 2), seed=0).make(0) for rank in (0, 1)]
    rows = np.concatenate([share.batch["rows"] for share in shares])
    assert sorted(rows) == sorted(alone.batch["rows"])
    assert [share.weight for share in shares] == [3 * 2 / 5, 2 * 2 / 5]
    assert [share.n_documents for share in shares] == [5, 5]
    assert alone.weight == 1
    assert shares[0].batch["chance"] != shares[1].batch["chance"]


def test_no_process_is_without_a_document():
    shares = [Batches(Rows(5), 4, Processes(CPU, rank, 2), seed=0).make(1) for rank in (0, 1)]
    assert [len(share.batch["rows"]) for share in shares] == [1, 1]


def test_prefetch_keeps_the_order_and_runs_ahead():
    made = []

    def make(item):
        made.append((item, threading.current_thread() is threading.main_thread()))
        return item * 10

    items = prefetch(make, range(6), ahead=2)
    assert next(items) == 0
    for _ in range(100):
        if len(made) >= 3:
            break
        time.sleep(0.01)
    assert [item for item, _ in made] == [0, 1, 2]
    assert list(items) == [10, 20, 30, 40, 50]
    assert not any(in_main for _, in_main in made)


def test_prefetch_ends_its_thread_when_closed():
    before = threading.active_count()
    items = prefetch(lambda item: item, range(100), ahead=2)
    next(items)
    items.close()
    assert threading.active_count() == before
