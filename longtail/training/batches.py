"""The batches of a run: which documents, in which order, prepared ahead of their use."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from longtail.training.draws import Part
from longtail.training.processes import Processes
from longtail.training.task import Batch, Task

Item = TypeVar("Item")
Made = TypeVar("Made")

# Threads that prepare batches before they are needed, and how many of these wait at most: four
# cannot keep a GPU busy that takes a step in 10 ms; on a CPU, more would slow training down.
WORKERS = {"cpu": 1, "cuda": 8}
AHEAD = {"cpu": 4, "cuda": 8}
WINDOW = 50  # batches whose documents are sorted by length together
# Of documents in files: those of a block, and those that are shuffled together.
NEIGHBOURS, TOGETHER = 1 << 10, 1 << 18
ORDER, BATCH, LOSS = 1, 2, 3  # seeds of the three streams of random numbers


class Share(NamedTuple):
    """What one process gets of the documents of a step.

    Attributes:
        batch: the tensors of its documents.
        weight: its loss times this, summed over the processes, is the mean over all documents.
        n_documents: how many documents the step has, over all processes.
        part: which of them it gets.
    """

    batch: Batch
    weight: float
    n_documents: int
    part: Part = Part()


class Batches:
    """The documents in a new order for every epoch, cut into steps and shared by the processes."""

    def __init__(self, task: Task, batch_size: int, processes: Processes, seed: int) -> None:
        self.task, self.size, self.processes, self.seed = task, batch_size, processes, seed
        self.lengths: NDArray[np.int64] | None = getattr(task, "lengths", None)
        self.per_epoch = -(-task.n_documents // batch_size)
        # Two, as one thread may be an epoch ahead of another. Not a method, or the cache would hold
        # its own holder, and with that the task, until the garbage collector comes by.
        in_files = getattr(task, "lies_in_files", False) and task.n_documents > TOGETHER
        draw = partial(_draw_order, task.n_documents, self.lengths, batch_size, seed, in_files)
        self._order = lru_cache(maxsize=2)(draw)

    def prepare(self, steps: Iterable[int]) -> Generator[Share, None, None]:
        """Yield this process's share of each of the steps."""
        device = self.processes.device.type
        return prefetch(self.make, steps, AHEAD[device], WORKERS[device])

    def make(self, step: int) -> Share:
        """Build this process's share of a step; the same whenever and wherever it is called."""
        rows = self._rows(step)
        part, n_mine = self._cut(len(rows))
        batch = self.task.batch(rows, np.random.default_rng([BATCH, self.seed, step, 0]), part.mine)
        if self.processes.device.type == "cuda":
            with torch.cuda.device(self.processes.device):  # each thread has its own
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        # The losses of own labels add up to that of all labels as they are.
        weight = 1.0 if getattr(self.task, "split", ()) else n_mine / len(rows)
        return Share(batch, weight, len(rows), part)

    def _cut(self, n_documents: int) -> tuple[Part, int]:
        """Return which of so many documents are this process's, and how many they are.

        One for which there are none takes the first document along, which does not count.
        """
        rank, count = self.processes.rank, self.processes.count
        if count == 1:
            return Part(), n_documents
        mine = slice(rank, None, count) if rank < n_documents else slice(0, 1)
        return Part(mine, n_documents), len(range(rank, n_documents, count))

    def _rows(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(step, self.per_epoch)
        return self._order(epoch)[place * self.size : (place + 1) * self.size]


def _draw_order(
    n_documents: int,
    lengths: NDArray[np.int64] | None,
    size: int,
    seed: int,
    in_files: bool,
    epoch: int,
) -> NDArray[np.int64]:
    """Return the order of the documents in an epoch."""
    rng = np.random.default_rng([ORDER, seed, epoch])
    order = shuffle_blocks(n_documents, rng) if in_files else rng.permutation(n_documents)
    return order if lengths is None else bucket(order, lengths, size, rng)


def shuffle_blocks(n_documents: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an order in which documents that are read near in time lie near in their file.

    Blocks of neighbours come in a random order, and what is in many blocks is shuffled together.
    """
    blocks = rng.permutation(-(-n_documents // NEIGHBOURS))
    order = (blocks[:, None] * NEIGHBOURS + np.arange(NEIGHBOURS)).ravel()
    order = order[order < n_documents]
    for first in range(0, n_documents, TOGETHER):
        rng.shuffle(order[first : first + TOGETHER])
    return order


def bucket(
    order: NDArray[np.int64],
    lengths: NDArray[np.int64],
    size: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the random `order` changed so that each batch holds documents of similar length.

    Of every WINDOW batches the documents are sorted by length, then all batches are shuffled.
    The last batch, which may be smaller, stays as it is.
    """
    n_full = len(order) // size
    order = order.copy()
    for begin in range(0, n_full * size, WINDOW * size):
        window = order[begin : min(begin + WINDOW * size, n_full * size)]
        window[:] = window[np.argsort(lengths[window], kind="stable")]
    batches = order[: n_full * size].reshape(n_full, size)
    batches[:] = batches[rng.permutation(n_full)]
    return order


def prefetch(
    make: Callable[[Item], Made], items: Iterable[Item], ahead: int, n_workers: int = 1
) -> Generator[Made, None, None]:
    """Yield `make(item)` for each item, in order, made by threads that run ahead."""
    waiting: deque[Future[Made]] = deque()
    pool = ThreadPoolExecutor(n_workers)
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
