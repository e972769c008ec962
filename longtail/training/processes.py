"""The processes that train one model together, each on a share of every batch.

Whoever launches several processes (torchrun, accelerate launch, Ray) tells each of them its place
by the variables RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without these a process
trains alone. They exchange tensors by gloo on CPUs and by NCCL on GPUs. Gradients are averaged here
and not by DDP, which must be told beforehand which gradients are sparse, and cannot average sparse
ones on GPUs. Nothing that is exchanged is pickled.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from longtail.errors import ParameterError, suggest

Value = TypeVar("Value")

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
LAUNCH_VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # that WORLD_SIZE makes necessary
_NONE, _DENSE, _SPARSE = 0, 1, 2  # layouts of a gradient


def choose_device(name: str) -> torch.device:
    """Return the device called "auto", "cpu" or "cuda"; ParameterError if there is no such.

    Of several processes on a machine with GPUs, each makes that of its LOCAL_RANK the current one.
    """
    if name not in DEVICES:
        raise ParameterError(
            f"The device must be 'auto', 'cpu' or 'cuda'. Got {name!r} instead"
            f"{suggest(name, DEVICES) or '.'}"
        )
    if name == "cuda" and not torch.cuda.is_available():
        why = "torch sees none" if torch.version.cuda else "this torch is built for CPUs only"
        raise ParameterError(f"there is no GPU to train on: {why}; choose --device cpu or auto")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if _count_launched() > 1:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@dataclass(frozen=True)
class Processes:
    """This process's device, its rank, and how many processes there are."""

    device: torch.device
    rank: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Return whether this is the process that validates, shows and writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            gpus = [self.device.index] if self.device.type == "cuda" else None
            dist.barrier(device_ids=gpus)

    def share(self, value: Value) -> Value:
        """Return the main process's value, which must be one that JSON can hold."""
        if self.count == 1:
            return value
        text = json.dumps(value).encode() if self.is_main else b""
        length = torch.tensor([len(text)], device=self.device)
        dist.broadcast(length, src=0)
        letters = torch.tensor(list(text) or [0] * int(length), dtype=torch.uint8).to(self.device)
        dist.broadcast(letters, src=0)
        shared: Value = json.loads(bytes(letters.tolist()))
        return shared

    def share_weights(self, module: torch.nn.Module) -> None:
        """Give every process the main process's weights."""
        if self.count > 1:
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of all processes' values."""
        if self.count > 1:
            dist.all_reduce(value)
            value /= self.count
        return value

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every process the mean of all processes' gradients, dense or sparse."""
        if self.count == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        layouts = torch.tensor([_layout(each.grad) for each in trained], device=self.device)
        dist.all_reduce(layouts, dist.ReduceOp.MAX)  # a batch may leave a parameter untouched
        for parameter, layout in zip(trained, layouts.tolist(), strict=True):
            if layout == _DENSE:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.mean(parameter.grad)
            elif layout == _SPARSE:
                parameter.grad = self._mean_rows(parameter)

    def _mean_rows(self, parameter: torch.nn.Parameter) -> Tensor:
        """Return the mean of a sparse gradient, whose touched rows differ by process."""
        if parameter.grad is None:
            rows = torch.empty(0, dtype=torch.int64, device=self.device)
            values = parameter.detach()[:0]
        else:
            gradient = parameter.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
        n_rows = self._gather(torch.tensor([len(rows)], device=self.device))
        longest = int(max(n_rows))
        all_rows, all_values = (
            self._gather(_pad(rows, longest)),
            self._gather(_pad(values, longest)),
        )
        rows = torch.cat([part[:n] for part, n in zip(all_rows, n_rows, strict=True)])
        values = torch.cat([part[:n] for part, n in zip(all_values, n_rows, strict=True)])
        values = values / self.count
        mean = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
        return mean.coalesce()

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor)
        return parts


def join_processes(device_name: str) -> Processes:
    """Return this process's place among those that were launched together; alone, it is one."""
    device = choose_device(device_name)
    if _count_launched() == 1:
        return Processes(device)
    if not dist.is_initialized():
        _check_launch()
        dist.init_process_group(BACKENDS[device.type])
    joined = "cuda" if "nccl" in dist.get_backend() else "cpu"
    if joined != device.type:
        raise ParameterError(
            f"these processes were joined on {joined} and cannot train on "
            f"{device.type}; launch them anew"
        )
    return Processes(device, dist.get_rank(), dist.get_world_size())


def _count_launched() -> int:
    """Return how many processes were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _check_launch() -> None:
    """Raise ParameterError if a process among several was not told how to find the others."""
    missing = [name for name in LAUNCH_VARIABLES if not os.environ.get(name)]
    if missing:
        raise ParameterError(
            f"WORLD_SIZE says that {_count_launched()} processes train together, but these "
            f"variables are not set: {', '.join(missing)}; start the processes with torchrun, "
            "or unset WORLD_SIZE to train in one process"
        )


def _layout(gradient: Tensor | None) -> int:
    if gradient is None:
        return _NONE
    return _SPARSE if gradient.is_sparse else _DENSE


def _pad(tensor: Tensor, n_rows: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(n_rows - len(tensor), *tensor.shape[1:])])
