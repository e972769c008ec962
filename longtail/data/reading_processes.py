"""Processes that help to read: Python parses on one core, however many there are.

Each is a Python of its own that answers questions from its standard input until that ends. What is
exchanged are lists of bytes, each part behind its length.
"""

import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import local
from typing import IO, TypeVar

from longtail.runtime.parallel import n_threads

MOST_PROCESSES = 4  # with 16, the one that takes their answers has more to wait for
WAITING = 2  # questions that wait beside those that are answered

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Parts = Sequence[bytes]

_SIZE = struct.Struct("<q")


def count_processes() -> int:
    """Return how many processes may help; 1 if none is worth it, or can be started."""
    return min(MOST_PROCESSES, n_threads()) if sys.executable else 1


class ReadingProcesses:
    """Some processes, each served by a thread; one starts when it is needed."""

    def __init__(self, module: str, description: bytes, n: int) -> None:
        """Let `module.serve()` answer; the first thing that it gets is the description."""
        self._module, self._description, self._n = module, description, n
        self._threads = ThreadPoolExecutor(n)
        self._here = local()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "ReadingProcesses":
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            process.wait()

    def ask(self, parts: Parts) -> list[bytes] | None:
        """Return what the process of this thread answers; None if it died or cannot be started."""
        process = getattr(self._here, "process", None)
        try:
            if process is None:
                process = self._here.process = self._start()
            _send(process.stdin, parts)
            return _receive(process.stdout)
        except (OSError, EOFError):
            return None

    def each(
        self, work: Callable[[Asked], Answer], items: Iterable[Asked]
    ) -> Iterator[tuple[Asked, Answer]]:
        """Yield each item with `work(item)`, in order; some are worked on at a time."""
        waiting: deque[tuple[Asked, Future[Answer]]] = deque()
        for item in items:
            waiting.append((item, self._threads.submit(work, item)))
            if len(waiting) > self._n + WAITING:
                first, found = waiting.popleft()
                yield first, found.result()
        for item, found in waiting:
            yield item, found.result()

    def _start(self) -> "subprocess.Popen[bytes]":
        # The same modules as here, wherever they come from.
        code = f"import sys; sys.path[:] = {sys.path!r}; from longtail.data import {self._module}; "
        process = subprocess.Popen(
            [sys.executable, "-c", f"{code}{self._module}.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started.append(process)
        _send(process.stdin, [self._description])
        return process


def answer_questions(build: Callable[[bytes], Callable[[Parts], Parts]]) -> None:
    """Answer what comes from standard input until it ends; runs in a process of its own.

    `build` takes the description and returns what answers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    with suppress(EOFError, BrokenPipeError):
        answer = build(*_receive(asked))
        while True:
            _send(answers, answer(_receive(asked)))


def _send(stream: IO[bytes] | None, parts: Parts) -> None:
    assert stream is not None
    stream.write(_SIZE.pack(len(parts)))
    for part in parts:
        stream.write(_SIZE.pack(len(part)))
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> list[bytes]:
    assert stream is not None

    def read(n: int) -> bytes:
        found = stream.read(n)
        if len(found) < n:
            raise EOFError
        return found

    def read_size() -> int:
        return int(_SIZE.unpack(read(_SIZE.size))[0])

    return [read(read_size()) for _ in range(read_size())]
