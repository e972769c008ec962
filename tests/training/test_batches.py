"""Batches: order, shares of processes, and the thread that runs ahead."""

import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="batches hold torch's tensors")

from longtail.training import batches as module  # noqa: E402
from longtail.training.batches import Batches, prefetch  # noqa: E402
from longtail.training.processes import Processes  # noqa: E402

CPU = torch.device("cpu")


class Rows:
    """A task whose batch is the row numbers and a random number."""

    def __init__(self, n_documents, lengths=None):
        self.n_documents = n_documents
        if lengths is not None:
            self.lengths = lengths

    def batch(self, rows, rng, mine):
        return {"rows": torch.from_numpy(rows[mine]), "chance": torch.tensor(rng.random())}


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
    assert [share.weight for share in shares] == [3 / 5, 2 / 5]
    assert [share.n_documents for share in shares] == [5, 5]
    assert alone.weight == 1
    assert shares[0].batch["chance"] == shares[1].batch["chance"] == alone.batch["chance"]


def test_no_process_is_without_a_document():
    shares = [Batches(Rows(5), 4, Processes(CPU, rank, 2), seed=0).make(1) for rank in (0, 1)]
    assert [len(share.batch["rows"]) for share in shares] == [1, 1]
    assert [share.weight for share in shares] == [1, 0]  # the other's document counts once


# ------------------------------------------------------------------------ documents of a length

LENGTHS = np.random.default_rng(0).integers(0, 500, 1003)


def bucketed(step, rank=0, count=1):
    batches = Batches(Rows(1003, LENGTHS), 10, Processes(CPU, rank, count), seed=1)
    return batches.make(step).batch["rows"].numpy()


def spread(rows):
    return int(np.ptp(LENGTHS[rows]))


def test_batches_hold_documents_of_similar_length():
    epochs = [[bucketed(step + 101 * epoch) for step in range(101)] for epoch in (0, 1)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(1003))
        assert [len(rows) for rows in batches] == [10] * 100 + [3]
        assert np.mean([spread(rows) for rows in batches[:-1]]) < 15
        longest = [int(LENGTHS[rows].max()) for rows in batches]
        assert longest != sorted(longest)
        assert abs(np.corrcoef(longest, np.arange(101))[0, 1]) < 0.3  # no trend in an epoch
    assert {tuple(sorted(rows)) for rows in epochs[0]}.isdisjoint(
        tuple(sorted(rows)) for rows in epochs[1]
    )


def test_processes_get_documents_of_similar_length_in_a_step():
    for step in range(0, 100, 7):
        shares = [bucketed(step, rank, 2) for rank in (0, 1)]
        assert sorted(np.concatenate(shares)) == sorted(bucketed(step))
        assert abs(LENGTHS[shares[0]].mean() - LENGTHS[shares[1]].mean()) < 10
        assert spread(np.concatenate(shares)) < 40


def test_fewer_documents_than_a_batch_are_one_batch():
    batches = Batches(Rows(7, np.arange(7)), 10, Processes(CPU), seed=0)
    assert batches.per_epoch == 1
    assert sorted(batches.make(0).batch["rows"].tolist()) == list(range(7))


def test_without_lengths_the_order_is_any():
    plain = Batches(Rows(1003), 10, Processes(CPU), seed=1)
    expected = np.random.default_rng([1, 1, 0]).permutation(1003)[:10]
    np.testing.assert_array_equal(plain.make(0).batch["rows"], expected)


# ------------------------------------------------------------------------------------ running ahead


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


def test_documents_in_files_come_in_shuffled_blocks(monkeypatch):
    monkeypatch.setattr(module, "NEIGHBOURS", 4)
    monkeypatch.setattr(module, "TOGETHER", 40)
    order = module.shuffle_blocks(402, np.random.default_rng(3))
    assert sorted(order.tolist()) == list(range(402))
    assert order.tolist() != list(range(402))
    for first in range(0, 400, 40):  # few blocks are read at a time
        assert len(np.unique(order[first : first + 40] // 4)) <= 12
    again = module.shuffle_blocks(402, np.random.default_rng(3))
    assert np.array_equal(order, again)
