"""The processes that train one model together, each on a share of every batch.

Whoever launches several processes (torchrun, accelerate launch, Ray) tells each of them its place
by the variables RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without these a process
trains alone. They exchange tensors by gloo on CPUs and by NCCL on GPUs, one for each. Gradients are
summed here and not by DDP, which must be told beforehand which gradients are sparse, and cannot sum
sparse ones on GPUs. Nothing that is exchanged is pickled.
"""

import atexit
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # later, its defaults would hold the group for ever
from torch import Tensor

from longtail.errors import LostProcessError, ParameterError, suggest

Value = TypeVar("Value")

DEVICES = ("auto", "cpu", "cuda")
LAUNCH_VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # that WORLD_SIZE makes necessary
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
SMALL = 1 << 18  # numbers of a gradient that is sent with others
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
    _let_segments_grow()
    if _count_launched() > 1:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@cache
def _let_segments_grow() -> None:
    """Let torch's GPU memory grow where it is, unless the user has said how it should be kept.

    Batches of texts differ in length; otherwise each size of their tensors gets memory of its own,
    which is half as much again as is in use with millions of labels.
    """
    is_chosen = any(os.environ.get(name) for name in ALLOCATOR_VARIABLES)
    choose = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if choose is not None and not is_chosen:
        choose("expandable_segments:True")


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
            self.sum(torch.zeros(1, device=self.device)).tolist()

    def share(self, value: Value, source: int = 0) -> Value:
        """Return the value of one process, the main one, which must be one that JSON can hold."""
        if self.count == 1:
            return value
        text = json.dumps(value).encode() if self.rank == source else b""
        length = torch.tensor([len(text)], device=self.device)
        self._give(length, source)
        letters = torch.tensor(list(text) or [0] * int(length), dtype=torch.uint8).to(self.device)
        self._give(letters, source)
        shared: Value = json.loads(bytes(letters.tolist()))
        return shared

    def share_weights(self, module: torch.nn.Module, but: Collection[str] = ()) -> None:
        """Give every process the main process's weights, `but` for some of these names."""
        if self.count > 1:
            for name, tensor in module.state_dict().items():
                if name not in but:
                    self._give(tensor)

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Raise ParameterError in all processes if these differ between some of them."""
        if self.count == 1:
            return
        main = self.share(dict(facts))
        other = [name for name in facts if facts[name] != main.get(name)]
        counts = [int(each) for each in self.gather(torch.tensor([len(other)]).to(self.device))]
        if not any(counts):
            return
        rank = next(rank for rank, n_other in enumerate(counts) if n_other)
        what = ", ".join(f"{name} {facts[name]} and not {main.get(name)}" for name in other)
        raise ParameterError(
            f"process {rank} of {self.count} has {self.share(what, rank)} as process 0 has; give "
            "all of them the same data, options and versions"
        )

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of all processes' values, in the place of this one's."""
        if self.count > 1:
            with self._reaching_others():
                dist.all_reduce(value)
        return value

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have the same shape."""
        if self.count == 1:
            return [tensor]
        # gloo knows neither of these types, but bytes
        as_bytes = tensor.dtype in (torch.bfloat16, torch.int16)
        sent = tensor.view(torch.uint8) if as_bytes else tensor
        parts = [torch.empty_like(sent) for _ in range(self.count)]
        with self._reaching_others():
            dist.all_gather(parts, sent)
        return [part.view(tensor.dtype) for part in parts]

    def gather_documents(self, x: Tensor, n_documents: int) -> Tensor:
        """Return all n_documents of a step, of which each process has every count-th."""
        parts = self.gather(_pad(x.contiguous(), -(-n_documents // self.count)))
        return torch.stack(parts, 1).flatten(0, 1)[:n_documents]

    def _give(self, tensor: Tensor, source: int = 0) -> None:
        """Give every process the tensor of one."""
        with self._reaching_others():
            dist.broadcast(tensor, src=source)

    @contextmanager
    def _reaching_others(self) -> Iterator[None]:
        """Say in one sentence that another process is gone."""
        try:
            yield
        except RuntimeError as error:  # of gloo; NCCL's is one, too
            raise LostProcessError(
                f"process {self.rank} of {self.count} cannot reach the others, of which one has "
                "probably ended; training stops here, and the same command with --resume goes on "
                f"from its last checkpoint ({' '.join(str(error).split())[:120]})"
            ) from error

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every process the sum of all processes' gradients, dense or sparse."""
        if self.count == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        layouts = torch.tensor([_layout(each.grad) for each in trained], device=self.device)
        with self._reaching_others():
            dist.all_reduce(layouts, dist.ReduceOp.MAX)  # a batch may leave a parameter untouched
        small = []
        for parameter, layout in zip(trained, layouts.tolist(), strict=True):
            if layout == _SPARSE:
                parameter.grad = self._sum_rows(parameter)
                continue
            if layout == _DENSE and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None and parameter.numel() > SMALL:
                self.sum(parameter.grad)
            elif parameter.grad is not None:
                small.append(parameter.grad)
        self._sum_together(small)

    def _sum_together(self, gradients: list[Tensor]) -> None:
        """Sum small gradients in one exchange: each takes a while, however little is sent."""
        if gradients:
            sums = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
            parts = torch.split(sums, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def _sum_rows(self, parameter: torch.nn.Parameter) -> Tensor:
        """Return the sum of a sparse gradient, whose touched rows differ by process."""
        if parameter.grad is None:
            rows = torch.empty(0, dtype=torch.int64, device=self.device)
            values = parameter.detach()[:0]
        else:
            gradient = parameter.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
        n_rows = self.gather(torch.tensor([len(rows)], device=self.device))
        longest = int(max(n_rows))
        all_rows, all_values = (
            self.gather(_pad(rows, longest)),
            self.gather(_pad(values, longest)),
        )
        rows = torch.cat([part[:n] for part, n in zip(all_rows, n_rows, strict=True)])
        values = torch.cat([part[:n] for part, n in zip(all_values, n_rows, strict=True)])
        total = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
        return total.coalesce()


def join_processes(device_name: str) -> Processes:
    """Return this process's place among those that were launched together; alone, it is one."""
    device = choose_device(device_name)
    if _count_launched() == 1:
        return Processes(device)
    if not dist.is_initialized():
        _check_launch()
        dist.init_process_group(_choose_backend(device))
        atexit.register(_leave)
    if device.type == "cpu" and "nccl" in dist.get_backend():
        raise ParameterError(
            "these processes were joined on cuda and cannot train on cpu; launch them anew"
        )
    return Processes(device, dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    """Part from the others while Python still runs.

    gloo's threads let go of tensors, for which they need Python; once it ends, they abort it.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _choose_backend(device: torch.device) -> str:
    """Return what carries tensors; NCCL wants a GPU for each process."""
    n_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    has_gpu = device.type == "cuda" and n_here <= torch.cuda.device_count()
    return "nccl" if has_gpu else "gloo"


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
