"""Processes: gradients summed between two of them; several learn what one learns."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="processes exchange torch's tensors")

import numpy as np  # noqa: E402
from many_processes import CALM_CASES, CASES, train_all, train_among  # noqa: E402

from longtail.errors import LostProcessError, ParameterError  # noqa: E402
from longtail.training import loop  # noqa: E402
from longtail.training.processes import Processes, join_processes  # noqa: E402
from longtail.training.split import draw_rows  # noqa: E402

CPU = torch.device("cpu")

SPLIT = [
    "glas, split",
    "glas, mining, split",
    "glas, softmax, split",
    "glas, automatically split",
    "attention-xml, tree, split",
]
COMPARED = ["glas", "mnn", "dxml", "rank-ae", "attention-xml", *SPLIT]
# What is rounded at random differs from one process, but not between several.
ROUNDED = "glas, int8"


@pytest.fixture(scope="module")
def alone():
    """What one process learns. It comes first, as it compiles what all then need."""
    return train_all([*COMPARED, *CALM_CASES])


@pytest.fixture(scope="module")
def together(alone, tmp_path_factory):
    """What two processes exchange, and what they learn: to start them takes long."""
    folder = tmp_path_factory.mktemp("two")
    learned = train_among(2, folder, [*COMPARED, *CALM_CASES, ROUNDED])
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)], learned


def test_alone_nothing_is_exchanged():
    alone = Processes(CPU)
    value = torch.tensor(2.0)
    assert alone.share("x") == "x"
    assert alone.sum(value) is value
    alone.wait()
    alone.sum_gradients([torch.nn.Parameter(value)])


def test_two_processes_agree_on_the_sum(together):
    results, _ = together
    expected = [[1.0] * 4, [1.0] * 4, [2, 0, 6, 6], [0, 8, 0, 0]]
    assert [result["sums"] for result in results] == [expected] * 2
    assert results[0]["weights"] == results[1]["weights"]
    assert [result["shared"] for result in results] == [{"P@1": 1 / 3, "n": 7}] * 2
    assert [result["nothing"] for result in results] == [None] * 2
    refused = (
        "process 1 of 2 has data d1 and not d0 as process 0 has; give all of them the same data, "
        "options and versions"
    )
    assert [result["refused"] for result in results] == [refused] * 2
    assert [result["rows"] for result in results] == [list(range(7))] * 2
    assert [result["state"] for result in results] == [True] * 2


def test_a_process_without_documents_is_one_too_many():
    task = SimpleNamespace(n_documents=3)
    with pytest.raises(ParameterError, match="4 processes are too many for 3 documents; start"):
        loop._check_documents(task, Processes(CPU, 0, 4))


def test_one_that_cannot_reach_the_others_says_so(monkeypatch):
    def fail(tensor):
        raise RuntimeError("[transport.cc]\n Connection closed by peer")

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    with pytest.raises(LostProcessError, match="process 1 of 2 cannot reach the others, of which"):
        Processes(CPU, 1, 2).sum(torch.ones(1))


@pytest.mark.parametrize(("width", "n_rows"), [(3, 5), (16, 40_000)])
def test_rows_are_drawn_as_if_all_were(width, n_rows):
    torch.manual_seed(5)
    whole = torch.randn(n_rows, width)
    for rank in range(3):
        torch.manual_seed(5)
        own = draw_rows(n_rows, width, slice(rank, None, 3))
        assert torch.equal(own, whole[rank::3])


def test_one_process_needs_no_launcher(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_processes("cpu") == Processes(CPU, rank=0, count=1)
    monkeypatch.setenv("WORLD_SIZE", "1")  # torchrun with one process
    assert join_processes("cpu") == Processes(CPU)


def test_several_processes_that_cannot_find_each_other(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ParameterError) as caught:
        join_processes("cpu")
    assert str(caught.value) == (
        "WORLD_SIZE says that 2 processes train together, but these variables are not set: "
        "MASTER_ADDR, MASTER_PORT; start the processes with torchrun, or unset WORLD_SIZE to "
        "train in one process"
    )


def test_processes_joined_on_gpus_do_not_train_on_cpus(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    with pytest.raises(ParameterError, match="were joined on cuda and cannot train on cpu"):
        join_processes("cpu")


# ------------------------------------------------------------- what several learn, one learns


def compare_with_one(count, alone, together, names):
    for name in names:
        (losses, scores, held), (shared_losses, shared_scores, share) = alone[name], together[name]
        np.testing.assert_allclose(shared_losses, losses, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(
            comparable(name, shared_scores), comparable(name, scores), atol=1e-3, err_msg=name
        )
        n_shares = count if "split" in name else 1
        assert share[-1] == held[-1] / n_shares, name  # 12 labels


def comparable(name, scores):
    """Return scores without what a loss leaves open: a softmax, by how much all log-odds are moved.

    The gradient of that is all rounding, of which Adam makes whole steps.
    """
    if "softmax" not in name:
        return scores
    log_odds = np.log(scores / (1 - scores))
    return log_odds - log_odds.mean()


def test_two_processes_have_the_losses_of_one_at_every_step(alone, together):
    compare_with_one(2, alone, together[1], COMPARED)


def test_two_processes_differ_from_one_by_what_adam_makes_of_rounding_only(alone, together):
    compare_with_one(2, alone, together[1], list(CALM_CASES))


@pytest.mark.slow
def test_four_processes_have_the_losses_of_one_at_every_step(tmp_path):
    names = [name for name in CASES if name != ROUNDED]
    alone, together = train_all(names), train_among(4, tmp_path, [*names, ROUNDED])
    compare_with_one(4, alone, together, names)
