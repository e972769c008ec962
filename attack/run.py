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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO

from attack.case import Attack

PREPARE_SECONDS = 300.0  # training the models to be attacked, importing torch
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
    """Try cases for so many seconds, or so many cases if their number is given."""
    tally, seed, end = Tally(), first_seed, time.monotonic() + seconds
    began = time.monotonic()
    while not _is_over(tally, end, n_cases):
        seed = _run_worker(attack, seed, end, n_cases, tally)
    tally.seconds = time.monotonic() - began
    return tally


def _is_over(tally: Tally, end: float, n_cases: int) -> bool:
    if n_cases:
        return tally.outcomes.total() >= n_cases
    return time.monotonic() >= end


def _run_worker(attack: Attack, seed: int, end: float, n_cases: int, tally: Tally) -> int:
    """Run one worker until it dies, hangs, or there is no more to do; return the next seed."""
    module = attack.prepare.__module__
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, tempfile.TemporaryFile() as said:
        worker = subprocess.Popen(
            [sys.executable, "-m", "attack.worker", module, attack.name, str(seed), folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, **attack.environment},
            start_new_session=True,
            text=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(worker.stdout, lines))
        reader.start()
        try:
            return _follow(worker, lines, said, attack, seed, end, n_cases, tally)
        finally:
            _kill(worker)
            reader.join()


def _follow(
    worker: "subprocess.Popen[str]",
    lines: "queue.Queue[str | None]",
    said: IO[bytes],
    attack: Attack,
    seed: int,
    end: float,
    n_cases: int,
    tally: Tally,
) -> int:
    """Count what the worker reports, one line for each case."""
    limit, prepared = PREPARE_SECONDS, False
    while True:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            tally.add(seed, "hang", f"no answer after {limit:.0f} s")
            return seed + 1
        if line is None:
            tally.add(seed, "crash", f"{_describe_exit(worker.wait())}\n{_tail(said)}")
            if not prepared:
                raise RuntimeError(f"{attack.name} cannot be prepared:\n{_tail(said)}")
            return seed + 1
        if not prepared:
            prepared, limit = True, attack.seconds
            continue
        outcome, _, story = line.partition(" ")
        tally.add(seed, outcome, story.replace("\x1f", "\n"))
        seed += 1
        if _is_over(tally, end, n_cases):
            return seed


def _read_lines(stream: IO[str] | None, lines: "queue.Queue[str | None]") -> None:
    assert stream is not None
    with stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _describe_exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _tail(said: IO[bytes]) -> str:
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - KEPT_OUTPUT))
    return said.read().decode("utf-8", "backslashreplace")


def _kill(worker: "subprocess.Popen[str]") -> None:
    """End a worker with everything that it started."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    if worker.stdout is not None:
        worker.stdout.close()


def try_cases(attack: Attack, seed: int, folder: Path, report: IO[str]) -> None:
    """Try case after case and report each in a line; what a worker does until it is killed."""
    attempt = attack.prepare(folder)
    print("prepared", file=report, flush=True)
    while True:
        try:
            outcome, story = str(attempt(Random(f"{attack.name} {seed}"))), ""
        except Exception:
            outcome, story = "raised", traceback.format_exc()[-KEPT_OUTPUT:]
        print(outcome, story.replace("\n", "\x1f"), file=report, flush=True)
        seed += 1


def find_attack(name: str, attacks: Sequence[Attack]) -> Attack:
    """Return the attack of this name."""
    return next(attack for attack in attacks if attack.name == name)
