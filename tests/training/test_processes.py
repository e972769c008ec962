"""Processes: gradients averaged between two of them, touched rows and untouched parameters."""

import pytest

torch = pytest.importorskip("torch", reason="processes exchange torch's tensors")

from torch import multiprocessing  # noqa: E402

from longtail.errors import ParameterError  # noqa: E402
from longtail.training.processes import Processes, join_processes  # noqa: E402

CPU = torch.device("cpu")


def test_alone_nothing_is_exchanged():
    alone = Processes(CPU)
    value = torch.tensor(2.0)
    assert alone.share("x") == "x"
    assert alone.mean(value) is value
    alone.wait()
    alone.average_gradients([torch.nn.Parameter(value)])


def sparse(rows, values):
    return torch.sparse_coo_tensor(
        [rows], [[float(value)] for value in values], (4, 1), check_invariants=True
    )


def average(rank, port, results):
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
    processes.average_gradients([dense, half, table, half_table, untouched])
    assert untouched.grad is None
    gradients = [dense.grad, half.grad, table.grad.to_dense(), half_table.grad.to_dense()]
    results[rank] = [gradient.flatten().tolist() for gradient in gradients]
    module = torch.nn.Linear(2, 2)
    processes.share_weights(module)
    results[f"weights {rank}"] = module.weight.tolist()
    results[f"shared {rank}"] = processes.share({"P@1": 1 / 3, "n": 7} if rank == 0 else None)
    results[f"nothing {rank}"] = processes.share(None)
    torch.distributed.destroy_process_group()


def test_two_processes_agree_on_the_mean():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(average, (port, results), nprocs=2)
        results = dict(results)
    expected = [[0.5] * 4, [0.5] * 4, [1, 0, 3, 3], [0, 4, 0, 0]]
    assert results[0] == results[1] == expected
    assert results["weights 0"] == results["weights 1"]
    assert results["shared 0"] == results["shared 1"] == {"P@1": 1 / 3, "n": 7}
    assert results["nothing 0"] is results["nothing 1"] is None


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
