"""Batching: documents of several clients are answered together, as one call of the model.

Nobody waits for company: a document that comes while the model is idle is answered at once, and
what comes meanwhile makes the next batch. Only documents that ask for the same (same version of
the model, same k, same threshold) share a batch, so each gets what it would get alone.

A thread works on the batches, so that the server goes on reading requests. Handing a short text
over to it and back takes a tenth of what labelling it takes, so batches of short texts that take
no longer than a few milliseconds are worked on at once.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from longtail.errors import LongtailError, ParameterError

QUICK_SECONDS = 0.003  # of a batch for which the server may stand still
REMEMBERED = 5  # batches; the quickest counts, as others had to wait for the processor

Work = Callable[[list[Any]], Sequence[Any]]  # a result for each document


class BusyError(LongtailError):
    """More documents wait than the server takes; to be tried again later."""


@dataclass(frozen=True)
class Limits:
    """How much the server takes from clients.

    Attributes:
        max_batch: documents that are answered together.
        max_wait: seconds to wait for a batch to fill up.
        max_queue: documents that may wait; more are refused.
        max_documents: in one request.
        max_bytes: of a request's body.
        patience: seconds that a client may take to send its request, or to take the answer.
    """

    max_batch: int = 64
    max_wait: float = 0.0
    max_queue: int = 4096
    max_documents: int = 1000
    max_bytes: int = 16 << 20
    patience: float = 15.0

    def __post_init__(self) -> None:
        """Check what users choose."""
        if self.max_batch < 1:
            raise ParameterError(f"--max-batch must be at least 1. Got {self.max_batch} instead.")

    def check(self, n_documents: int) -> None:
        """Raise ParameterError if a request has too many documents."""
        if n_documents > self.max_documents:
            raise ParameterError(
                f"{n_documents:,} documents in one request; "
                f"this server takes {self.max_documents:,} at most"
            )


@dataclass(eq=False)
class Job:
    """The documents of one request, which are answered together or not at all."""

    key: Hashable
    documents: list[Any]
    work: Work
    done: asyncio.Future[list[Any]]
    is_short: bool


class Batcher:
    """A bounded queue of jobs, and one thread that works on them."""

    def __init__(
        self, limits: Limits, on_batch: Callable[[int], None], on_queue: Callable[[int], None]
    ) -> None:
        """Begin with an empty queue.

        Args:
            limits: how many documents may wait, and how many share a batch.
            on_batch: is told the size of each batch.
            on_queue: is told how many documents wait, whenever that changes.
        """
        self.limits = limits
        self._on_batch = on_batch
        self._on_queue = on_queue
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[Job] = deque()
        self._busy = False  # a batch is worked on, or about to be
        self._paces = deque([math.inf], maxlen=REMEMBERED)  # seconds of a short document, of late
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="longtail-predict")
        self.n_waiting = 0  # documents
        on_queue(0)

    def submit(
        self, key: Hashable, documents: list[Any], work: Work, *, is_short: bool = False
    ) -> asyncio.Future[list[Any]]:
        """Return what will be a result for each document; jobs of equal keys may share a call.

        Those with `is_short` do without the thread if they are quick. A future that is cancelled before its documents are worked on gives up its place.
        """
        if self.n_waiting + len(documents) > self.limits.max_queue:
            raise BusyError(
                f"{self.n_waiting:,} documents are waiting, and {self.limits.max_queue:,} may; "
                "try again in a second"
            )
        job = Job(key, documents, work, self._loop.create_future(), is_short)
        self._jobs.append(job)
        self._count(len(documents))
        if not self._busy:
            self._busy = True
            self._plan()
        job.done.add_done_callback(lambda done: self._forget(job) if done.cancelled() else None)
        return job.done

    def _count(self, more: int) -> None:
        self.n_waiting += more
        self._on_queue(self.n_waiting)

    def _forget(self, job: Job) -> None:
        """Free the place of a job whose client went away."""
        if job in self._jobs:
            self._jobs.remove(job)
            self._count(-len(job.documents))

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)

    def _take(self) -> list[Job]:
        """Remove the oldest job from the queue, and others that can be answered with it."""
        batch: list[Job] = []
        left: deque[Job] = deque()
        n = 0
        for job in self._jobs:
            fits = not batch or (
                job.key == batch[0].key and n + len(job.documents) <= self.limits.max_batch
            )
            (batch if fits else left).append(job)
            n += len(job.documents) if fits else 0
        self._jobs = left
        self._count(-n)
        return batch

    def _plan(self) -> None:
        """Begin with the next batch soon: once what has come by now is seen, or filled it."""
        if self.limits.max_wait and 0 < self.n_waiting < self.limits.max_batch:
            self._loop.call_later(self.limits.max_wait, self._begin)
        else:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Work on the next batch, or let the thread do so, if there is one."""
        batch = self._take()
        self._busy = bool(batch)
        if not batch:
            return
        n = sum(len(job.documents) for job in batch)
        self._on_batch(n)
        if n * min(self._paces) < QUICK_SECONDS and all(job.is_short for job in batch):
            self._finish(batch, self._work(batch))
        else:
            self._thread.submit(self._work_aside, batch)

    def _work_aside(self, batch: list[Job]) -> None:
        """Work on a batch, in the thread."""
        self._loop.call_soon_threadsafe(self._finish, batch, self._work(batch))

    def _work(self, batch: list[Job]) -> Sequence[Any] | Exception:
        """Return the results of all documents of a batch, or why there are none."""
        documents = [document for job in batch for document in job.documents]
        began = time.perf_counter()
        try:
            results = batch[0].work(documents)
        except Exception as error:
            return error
        if all(job.is_short for job in batch):
            self._paces.append((time.perf_counter() - began) / max(1, len(documents)))
        return results

    def _finish(self, batch: list[Job], results: Sequence[Any] | Exception) -> None:
        """Hand out the results; if there are none, try each job alone."""
        start = 0
        for job in batch:
            end = start + len(job.documents)
            if job.done.done():
                pass  # the client went away
            elif not isinstance(results, Exception):
                job.done.set_result(list(results[start:end]))
            elif len(batch) > 1:
                job.key = object()  # so that nothing shares its next batch
                self._jobs.append(job)
                self._count(len(job.documents))
            else:
                job.done.set_exception(results)
            start = end
        self._plan()
