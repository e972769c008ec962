"""Processes: gradients summed between two of them; several learn what one learns."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="processes exchange torch's tensors")

import numpy as np  # noqa: E402
from many_processes import CALM_CASES, CASES, train_all, train_among  # noqa: E402
from torch import multiprocessing  # noqa: E402

from longtail.errors import LostProcessError, ParameterError  # noqa: E402
from longtail.training import loop  # noqa: E402
from longtail.training.averaging import WeightMean  # noqa: E402
from longtail.training.layers import RowAdam  # noqa: E402
from longtail.training.processes import Processes, join_processes  # noqa: E402
from longtail.training.split import SplitRows, draw_rows, gather_rows  # noqa: E402

CPU = torch.device("cpu")


def test_alone_nothing_is_exchanged():
    alone = Processes(CPU)
    value = torch.tensor(2.0)
    assert alone.share("x") == "x"
    assert alone.sum(value) is value
    alone.wait()
    alone.sum_gradients([torch.nn.Parameter(value)])


def sparse(rows, values):
    return torch.sparse_coo_tensor(
        [rows], [[float(value)] for value in values], (4, 1), check_invariants=True
    )


def add_up(rank, port, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    processes = Processes(CPU, rank, 2)
    dense, half, table, half_table, untouched = (
        torch.nn.Parameter(torch.zeros(4, 1)) for _ in range(5)
    )
    dense.grad = torch.full((4, 1), float(rank))
    table.grad = sparse([0, 2], [2, 4]) if rank == 0 else sparse([2, 3, 2], [1, 6, 1])
    if rank == 1:  # a batch need not touch every parameter in every process
        half.grad, half_table.grad = torch.ones(4, 1), sparse([1], [8])
    processes.sum_gradients([dense, half, table, half_table, untouched])
    assert untouched.grad is None
    gradients = [dense.grad, half.grad, table.grad.to_dense(), half_table.grad.to_dense()]
    results[rank] = [gradient.flatten().tolist() for gradient in gradients]
    module = torch.nn.Linear(2, 2)
    processes.share_weights(module)
    results[f"weights {rank}"] = module.weight.tolist()
    results[f"shared {rank}"] = processes.share({"P@1": 1 / 3, "n": 7} if rank == 0 else None)
    results[f"nothing {rank}"] = processes.share(None)
    results[f"refused {rank}"] = refuse(processes, {"seed": 3, "data": f"d{rank}"})
    processes.require_same({"seed": 3})
    results[f"rows {rank}"] = gather_rows(torch.arange(7)[rank::2], processes).tolist()
    results[f"state {rank}"] = join_and_cut(processes)
    torch.distributed.destroy_process_group()


def refuse(processes, facts):
    try:
        processes.require_same(facts)
    except ParameterError as error:
        return str(error)


def join_and_cut(processes):
    """Return whether the state of a run with split rows becomes whole, and what it was again."""
    module = torch.nn.Module()
    module.other = torch.nn.Parameter(torch.ones(2))
    module.labels = torch.nn.Parameter(torch.arange(10.0).view(5, 2)[processes.rank :: 2].clone())
    optimizer = RowAdam(module.labels)
    module.labels.grad = torch.ones_like(module.labels).to_sparse(1)
    optimizer.step()
    mean = WeightMean(module.parameters())
    mean.add()
    split = SplitRows(module, ("labels",), processes)
    memory = {0: dict(optimizer.state[module.labels])}
    state = {"weights": dict(module.state_dict()), "average": mean.values}
    state |= {"best": {}, "optimizers": [memory], "step": 4}
    whole = split.join(state, [optimizer])
    if processes.is_main:
        assert whole["weights"]["labels"].shape == whole["average"][1].shape == (5, 2)
        assert whole["optimizers"][0][0]["steps"].tolist() == [1] * 5
        cut = split.cut(whole, [optimizer])
        assert torch.equal(cut["weights"]["labels"], module.labels)
        assert torch.equal(cut["optimizers"][0][0]["mean"], memory[0]["mean"])
    return torch.equal(whole["weights"]["other"], module.other)


def test_two_processes_agree_on_the_sum():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(add_up, (port, results), nprocs=2)
        results = dict(results)
    expected = [[1.0] * 4, [1.0] * 4, [2, 0, 6, 6], [0, 8, 0, 0]]
    assert results[0] == results[1] == expected
    assert results["weights 0"] == results["weights 1"]
    assert results["shared 0"] == results["shared 1"] == {"P@1": 1 / 3, "n": 7}
    assert results["nothing 0"] is results["nothing 1"] is None
    refused = (
        "process 1 of 2 has data d1 and not d0 as process 0 has; give all of them the same data, "
        "options and versions"
    )
    assert results["refused 0"] == results["refused 1"] == refused
    assert results["rows 0"] == results["rows 1"] == list(range(7))
    assert results["state 0"] is results["state 1"] is True


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


def compare_with_one(count, folder, names):
    # What is rounded at random differs from one process, but not between several.
    alone, together = train_all(names), train_among(count, folder, [*names, "glas, int8"])
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


def test_two_processes_have_the_losses_of_one_at_every_step(tmp_path):
    split = [
        "glas, split",
        "glas, mining, split",
        "glas, softmax, split",
        "glas, automatically split",
        "attention-xml, tree, split",
    ]
    compare_with_one(2, tmp_path, ["glas", "mnn", "dxml", "rank-ae", "attention-xml", *split])


def test_two_processes_differ_from_one_by_what_adam_makes_of_rounding_only(tmp_path):
    compare_with_one(2, tmp_path, list(CALM_CASES))


@pytest.mark.slow
def test_four_processes_have_the_losses_of_one_at_every_step(tmp_path):
    compare_with_one(4, tmp_path, [name for name in CASES if "int8" not in name])
