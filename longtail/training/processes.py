"""The processes that train one model together, each on a share of every batch.

Accelerate finds out who launched us (torchrun, accelerate launch, or nobody) and connects the
processes. Of it we use `PartialState` and not `Accelerator`, which fixes device and precision for
the life of a process, where ours may fit one model on a GPU and the next on the CPU. Gradients
are averaged here and not by DDP, which must be told beforehand which gradients are sparse, and
cannot average sparse ones on GPUs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from longtail.errors import MissingExtraError, ParameterError, suggest

Value = TypeVar("Value")

DEVICES = ("auto", "cpu", "cuda")
_NONE, _DENSE, _SPARSE = 0, 1, 2


def choose_device(name: str) -> torch.device:
    """Return the device called "auto", "cpu" or "cuda"; ParameterError if there is no such."""
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
        """Return the main process's value."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

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
        kinds = torch.tensor([_kind(parameter.grad) for parameter in trained], device=self.device)
        dist.all_reduce(kinds, dist.ReduceOp.MAX)  # a batch may leave a parameter untouched
        for parameter, kind in zip(trained, kinds.tolist(), strict=True):
            if kind == _DENSE:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.mean(parameter.grad)
            elif kind == _SPARSE:
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
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise MissingExtraError(
            "training needs accelerate, which is not installed; "
            "install it with: pip install 'longtail[deep]'"
        ) from error
    device = choose_device(device_name)
    state = PartialState(cpu=device.type == "cpu")
    if state.num_processes == 1:
        return Processes(device)
    if state.device.type != device.type:
        raise ParameterError(
            f"these processes were joined on {state.device.type} and cannot train on "
            f"{device.type}; launch them anew"
        )
    return Processes(state.device, state.process_index, state.num_processes)


def _kind(gradient: Tensor | None) -> int:
    if gradient is None:
        return _NONE
    return _SPARSE if gradient.is_sparse else _DENSE


def _pad(tensor: Tensor, n_rows: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(n_rows - len(tensor), *tensor.shape[1:])])
