"""Steps on a GPU that are recorded once for each shape of a batch, then replayed in one launch.

Python starts the kernels of a step one by one, which takes longer than many of them. A CUDA graph
starts them all at once, but knows only the memory it was recorded with. So a batch is copied to
where the recorded one lay, and learning rates and seeds lie on the GPU. Where weights have been
moved, as an LSTM's are when it gets ready to predict, steps are recorded anew. Where recording
fails, steps are taken as before.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.training.processes import Processes
from longtail.training.task import Batch, Task

MOST_GRAPHS = 64  # each keeps some megabytes on the GPU

Step = Callable[[Batch], Tensor]
Key = tuple[tuple[str, tuple[int, ...]], ...]

_log = logging.getLogger("longtail.training")


class _Recorded(NamedTuple):
    """A step as it was recorded: what to replay, what it reads, and what it leaves."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    found: Tensor

    def replay(self, batch: Batch) -> Tensor:
        """Take the step with another batch of the same shape."""
        for name, tensor in batch.items():
            self.batch[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.found


class StepGraphs:
    """Takes the steps of a run, from the second of each shape on by a graph.

    The first one compiles kernels and makes the optimizers' memory, which a graph cannot.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> None:
        self.device = device
        self.groups = [group for each in optimizers for group in each.param_groups]
        for group in self.groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        self.addresses = self._find_addresses()
        self.seen: set[Key] = set()
        self.recorded: dict[Key, _Recorded] = {}
        self.works = True

    @classmethod
    def of(
        cls, task: Task, optimizers: Sequence[torch.optim.Optimizer], processes: Processes
    ) -> "StepGraphs | None":
        """Return those of a run whose task can be replayed, None for any other."""
        replays = getattr(task, "replays", False) and processes.count == 1
        return cls(optimizers, processes.device) if replays else None

    def take(self, batch: Batch, step: Step) -> Tensor:
        """Return what `step` finds for a batch that is not on the device yet."""
        self._forget_if_moved()
        key = tuple((name, tuple(tensor.shape)) for name, tensor in batch.items())
        known = self.recorded.get(key)
        if known is None and key in self.seen and self.works:
            known = self._try_to_record(key, batch, step)
        self.seen.add(key)
        if known is None:
            return step(place_batch(batch, self.device))
        return known.replay(batch)

    def forget(self) -> None:
        """Give back the memory that graphs hold, of which nothing else can make use."""
        self.recorded.clear()
        torch.cuda.empty_cache()

    def _forget_if_moved(self) -> None:
        """Forget steps that read and write where the weights have been."""
        addresses = self._find_addresses()
        if addresses != self.addresses:
            self.addresses = addresses
            self.recorded.clear()

    def _find_addresses(self) -> list[int]:
        return [each.data_ptr() for group in self.groups for each in group["params"]]

    def _try_to_record(self, key: Key, batch: Batch, step: Step) -> _Recorded | None:
        """Return the step for batches of this shape; None where it cannot be recorded."""
        if len(self.recorded) >= MOST_GRAPHS:
            return None
        try:
            with self._recordable():
                self.recorded[key] = self._record(batch, step)
        except Exception as error:  # whatever a driver, a kernel or an optimizer objects to
            _log.debug("steps are taken without a CUDA graph: %s", error, exc_info=True)
            self.works = False
            self.recorded.clear()
            for parameter in (each for group in self.groups for each in group["params"]):
                parameter.grad = None
            return None
        return self.recorded[key]

    def _record(self, batch: Batch, step: Step) -> _Recorded:
        placed = place_batch(batch, self.device)
        here = torch.cuda.current_stream(self.device)
        aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        # Graphs run one after the other, so that all of them can work in the same memory.
        pool = next((each.graph.pool() for each in self.recorded.values()), None)
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            # Threads that prepare batches may ask the driver for memory in the meantime.
            graph.capture_begin(pool=pool, capture_error_mode="relaxed")
            try:
                found = step(placed)
            finally:
                graph.capture_end()
        here.wait_stream(aside)
        return _Recorded(graph, placed, found)

    @contextmanager
    def _recordable(self) -> Iterator[None]:
        """Tell torch's optimizers that they are recorded; otherwise they would warn of it."""
        asked = [group for group in self.groups if "capturable" in group]
        for group in asked:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in asked:
                group["capturable"] = False


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set a learning rate, where it lies."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def place_batch(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on the device, as soon as that has come to it."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
