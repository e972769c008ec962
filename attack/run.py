"""Running attacks: each in a process of its own, so that a crash or a hang is one outcome."""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Self

from attack.case import Attack

PREPARE_SECONDS = 900.0  # training the models to be attacked, importing torch
LINE_END = "\x1f"  # in a report, which is one line
KEPT_OUTPUT = 2000  # characters of what a failed case printed


@dataclass
class Tally:
    """What came of an attack: cases by outcome, and the seed and story of every failure."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, seed: int, outcome: str, story: str = "") -> None:
        """Count one case."""
        self.outcomes[outcome] += 1
        if outcome not in ("answered", "refused"):
            self.failures.append((seed, f"{outcome}: {story.strip()}"))


def run_attack(attack: Attack, seconds: float, first_seed: int = 0, n_cases: int = 0) -> Tally:
    """Try cases for so many seconds, or so many cases if their number is given.

    Preparing, before the first case and after a crash, does not count.
    """
    tally = Tally()
    while tally.outcomes.total() < n_cases if n_cases else tally.seconds < seconds:
        seed = first_seed + tally.outcomes.total()
        with _Worker(attack, seed) as worker:
            _try_cases(attack, worker, seed, seconds, n_cases, tally)
    return tally


def _try_cases(
    attack: Attack, worker: "_Worker", seed: int, seconds: float, n_cases: int, tally: Tally
) -> None:
    """Count what a worker reports, until it dies, hangs, or has done enough."""
    while tally.outcomes.total() < n_cases if n_cases else tally.seconds < seconds:
        began = time.monotonic()
        outcome, story = worker.report(attack.seconds)
        tally.add(seed, outcome, story)
        tally.seconds += time.monotonic() - began
        seed += 1
        if outcome in ("hang", "crash"):
            return


class _Worker:
    """A process that tries case after case, and what it reports."""

    def __init__(self, attack: Attack, seed: int) -> None:
        self._attack, self._seed = attack, seed
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Start the process, and wait until it has prepared itself."""
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="attack-"))
        self._said = self._resources.enter_context(tempfile.TemporaryFile())
        module, name = self._attack.prepare.__module__, self._attack.name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attack.worker", module, name, str(self._seed), folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **self._attack.environment},
            start_new_session=True,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        outcome, story = self.report(PREPARE_SECONDS)
        if outcome != "prepared":
            self.__exit__()
            raise RuntimeError(f"{name} cannot be prepared: {outcome}: {story}")
        return self

    def __exit__(self, *_: object) -> None:
        """End the process with everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._resources.close()

    def report(self, seconds: float) -> tuple[str, str]:
        """Return the outcome of the next case, and the story of a failure."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return "hang", f"no answer after {seconds:.0f} s"
        if line is None:
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return "crash", f"{how}\n{self._tail()}"
        outcome, _, story = line.partition(" ")
        return outcome, story.replace(LINE_END, "\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _tail(self) -> str:
        """Return the end of what it said on standard error."""
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - KEPT_OUTPUT))
        return self._said.read().decode("utf-8", "backslashreplace")


def try_cases(attack: Attack, seed: int, folder: Path, report: IO[str]) -> None:
    """Try case after case and report each in a line; what a worker does until it is killed."""
    attempt = attack.prepare(folder)
    print("prepared", file=report, flush=True)
    while True:
        try:
            outcome, story = str(attempt(Random(f"{attack.name} {seed}"))), ""
        except Exception:
            outcome, story = "raised", traceback.format_exc()[-KEPT_OUTPUT:]
        print(outcome, story.replace("\n", LINE_END), file=report, flush=True)
        seed += 1


def find_attack(name: str, attacks: Sequence[Attack]) -> Attack:
    """Return the attack of this name."""
    return next(attack for attack in attacks if attack.name == name)
