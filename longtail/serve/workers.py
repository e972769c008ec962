"""Workers: several processes that serve the same folders on one port, and what watches them.

The supervisor holds the sockets and starts the workers; it loads no model. Each worker listens on
a socket of its own, so that the system shares connections out evenly. The weights are in memory
once: all workers map the same files. A worker that dies is started again, at once if it died for
the first time, and later and later if it keeps dying; the others get its clients meanwhile.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from longtail.errors import LongtailError, MissingExtraError, ParameterError
from longtail.runtime.garbage import no_garbage
from longtail.runtime.parallel import count_cores, set_threads
from longtail.serve.listening import open_socket, open_sockets
from longtail.visible import visible

MOST_WORKERS = 256
STEADY_SECONDS = 60.0  # a worker that lived so long may die, and the next is started at once
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # before others, doubled from one to the next
START_SECONDS = 600.0  # to load the models
FINISH_SECONDS = 35.0  # to end; a worker gives its requests less
LOOK_SECONDS = 0.5
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # by which prometheus-client counts across processes
READY = ""  # what a worker sends once it listens; anything else is why it cannot

_log = logging.getLogger("longtail.serve")


class WorkerError(LongtailError):
    """The workers cannot start."""


@dataclass(eq=False)
class Worker:
    """A process that serves, its socket, and when to start the next one in its place."""

    number: int
    listening: socket.socket
    process: BaseProcess | None = None
    told: Connection | None = None
    began: float = 0.0
    n_deaths: int = 0  # one soon after the other
    due: float = 0.0

    def put_off(self) -> float:
        """Note that the process died; return the seconds until the next one."""
        now = time.monotonic()
        self.n_deaths = 1 if now - self.began > STEADY_SECONDS else self.n_deaths + 1
        delay = FIRST_DELAY * 2.0 ** min(self.n_deaths - 2, 10) if self.n_deaths > 1 else 0.0
        self.due = now + min(LONGEST_DELAY, delay)
        self.process = None
        return self.due - now

    def read_problem(self) -> str | None:
        """Return what it sent; None if it died before it could send anything."""
        try:
            return None if self.told is None else str(self.told.recv())
        except EOFError:
            return None


class Supervisor:
    """Keeps workers running until it is told to end."""

    def __init__(
        self,
        sockets: list[socket.socket],
        options: dict[str, Any],
        *,
        threads: int | None,
        prepare: Callable[[], None],
    ) -> None:
        """Start nothing yet.

        Args:
            sockets: one for each worker, on the same port.
            options: of `server.make_server`.
            threads: for each worker; None shares the cores out.
            prepare: what each worker calls first.
        """
        self._workers = [Worker(i, each) for i, each in enumerate(sockets)]
        self._options = options
        self.port: int = sockets[0].getsockname()[1]
        # More threads than cores would only take turns.
        self._threads = threads or max(1, count_cores() // len(sockets))
        self._prepare = prepare
        self._ending = False
        self._context = multiprocessing.get_context("spawn")

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until Ctrl-C or SIGTERM; call `on_ready` once all workers listen."""
        with TemporaryDirectory(prefix="longtail-metrics-") as counts, self._signals():
            os.environ[METRICS_FOLDER] = counts
            try:
                for worker in self._workers:
                    self._start(worker)
                self._wait_for_all()
                if not self._ending:
                    on_ready()
                while not self._ending:
                    self._look()
            finally:
                self._end()
                del os.environ[METRICS_FOLDER]

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """End on Ctrl-C and SIGTERM; at the second, at once."""

        def end(number: int, frame: FrameType | None) -> None:
            for process in self._alive():
                process.kill() if self._ending else process.terminate()
            self._ending = True

        usual = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, before in usual.items():
                signal.signal(each, before)

    def _alive(self) -> list[BaseProcess]:
        return [each.process for each in self._workers if each.process is not None]

    def _start(self, worker: Worker) -> None:
        """Start a process in this place."""
        if worker.listening.fileno() < 0:
            worker.listening = open_socket(self._options["host"], self.port, shared=True)
        worker.told, tell = self._context.Pipe(duplex=False)
        worker.process = self._context.Process(
            target=work,
            name=f"longtail-worker-{worker.number}",
            args=(worker.number, worker.listening, self._options, tell),
            kwargs={"threads": self._threads, "prepare": self._prepare},
        )
        worker.began = time.monotonic()
        worker.process.start()
        tell.close()
        if self._ending:  # a signal came before there was a process to tell
            worker.process.terminate()

    def _wait_for_all(self) -> None:
        """Return when all workers listen, or raise why one cannot."""
        end = time.monotonic() + START_SECONDS
        waiting = list(self._workers)
        while waiting and not self._ending:
            if time.monotonic() > end:
                raise WorkerError(f"the workers did not start within {START_SECONDS:g} s")
            wait([each.told for each in waiting if each.told is not None], LOOK_SECONDS)
            for worker in [each for each in waiting if each.told is not None and each.told.poll()]:
                waiting.remove(worker)
                problem = worker.read_problem()
                if problem is None:
                    problem = "a worker died while it loaded the models; is there enough memory?"
                if problem != READY and not self._ending:
                    raise WorkerError(problem)

    def _look(self) -> None:
        """Wait a moment for workers to die; start those that are due."""
        wait([process.sentinel for process in self._alive()], LOOK_SECONDS)
        for worker in self._workers:
            process = worker.process
            if process is not None and not process.is_alive() and not self._ending:
                self._note_death(worker, process)
            if worker.process is None and time.monotonic() >= worker.due and not self._ending:
                self._start(worker)

    def _note_death(self, worker: Worker, process: BaseProcess) -> None:
        code = process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        problem = worker.read_problem() if worker.told and worker.told.poll() else None
        seconds = worker.put_off()
        if self._alive() and sys.platform == "linux":
            worker.listening.close()  # or clients would wait in it for the next worker
        from prometheus_client.multiprocess import mark_process_dead  # takes long the first time

        mark_process_dead(  # type: ignore[no-untyped-call]
            process.pid or 0, os.environ[METRICS_FOLDER]
        )
        when = f"in {seconds:.1f} s" if seconds else "now"
        _log.warning(
            "worker %d %s%s; the next one is started %s",
            worker.number,
            how,
            f" ({visible(problem)})" if problem else "",
            when,
        )

    def _end(self) -> None:
        """End all workers, which answer first what they have begun."""
        self._ending = True
        for worker in self._workers:
            worker.listening.close()
        for process in self._alive():
            process.terminate()
        end = time.monotonic() + FINISH_SECONDS
        for process in self._alive():
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def work(
    number: int,
    listening: socket.socket,
    options: dict[str, Any],
    tell: Connection,
    *,
    threads: int,
    prepare: Callable[[], None],
) -> None:
    """Serve, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the first decides
    prepare()
    if number:  # what happens to a folder is said once
        _log.setLevel(logging.ERROR)
    set_threads(threads)
    try:
        with no_garbage():
            from longtail.serve.server import make_server
        server = make_server(**options)
    except ModuleNotFoundError as error:
        tell.send(str(MissingExtraError.of(f"serving needs the package {error.name}", "serve")))
        return
    except (LongtailError, OSError) as error:
        tell.send(str(error))
        return

    def end_with_supervisor() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        shutil.rmtree(os.environ[METRICS_FOLDER], ignore_errors=True)  # which it leaves behind
        server.should_exit = True

    threading.Thread(target=end_with_supervisor, daemon=True).start()
    server.ending_signals = (signal.SIGTERM,)
    server.on_started = lambda: tell.send(READY)
    server.run(sockets=[listening])


def serve_with_workers(
    n_workers: int,
    *,
    port: int,
    options: dict[str, Any],
    threads: int | None,
    prepare: Callable[[], None],
    on_ready: Callable[[int], None],
) -> None:
    """Serve with several processes until told to end; `on_ready` is told the port."""
    if not 1 <= n_workers <= MOST_WORKERS:
        raise ParameterError(
            f"--workers must be from 1 to {MOST_WORKERS}. Got {n_workers} instead."
        )
    sockets = open_sockets(options["host"], port, n_workers)
    if options["feedback"] is not None:  # made before several processes open it
        from longtail.serve.feedback import FeedbackStore

        FeedbackStore(options["feedback"], create=True).close()
    supervisor = Supervisor(sockets, options, threads=threads, prepare=prepare)
    supervisor.run(lambda: on_ready(supervisor.port))
