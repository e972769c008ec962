"""One run in its own process: start it, show its progress, stop it, describe its failure."""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import longtail.errors
from longtail import peers
from longtail.errors import LongtailError
from longtail.peers import EVENTS, Contender
from longtail.progress import Progress

ROOT = Path(peers.__file__).parent.parent.parent
OUTPUT = "output.txt"
POLL_SECONDS = 0.2  # between two checks of a process that reports nothing
# More threads of a numeric library than these would only slow each other down.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class RunFailed(Exception):
    """A method did not finish; the message says why, in one line."""


class RunStopped(RunFailed):
    """A method was ended from outside: by the timeout, for its memory, or with its node."""


@dataclass(frozen=True)
class Job:
    """A contender and what its process has to do.

    Attributes:
        contender: the method.
        python: the interpreter that can import it.
        given: the folder of documents that it reads.
        out: the folder that it writes.
        seed: the seed of its random numbers.
        k: how many labels it predicts for each document.
        threads: how many it may use.
        timeout: seconds after which it is stopped; None for never.
        place: which of the jobs that run at the same time it is; it chooses the cores.
        drop_empty: whether training documents without features are left out.
    """

    contender: Contender
    python: Path
    given: Path
    out: Path
    seed: int
    k: int
    threads: int
    timeout: float | None
    place: int = 0
    drop_empty: bool = False

    def command(self) -> list[str]:
        """Return the command line of the process."""
        setting = json.dumps(self.contender.setting | {"seed": self.seed})
        command = [str(self.python), "-m", self.contender.module, str(self.given), str(self.out)]
        command += [str(self.threads), setting, "-k", str(self.k), "--place", str(self.place)]
        return [*command, "--drop-empty"] if self.drop_empty else command


def check_platform() -> None:
    """Raise LongtailError on a system that cannot run methods as processes the way we do."""
    # pipes that select can wait for and child processes inherit, and process groups that stop whole
    if not hasattr(os, "killpg"):
        raise LongtailError(
            "compare needs process groups, which this system (Windows) does not have; "
            "run it on Linux, on macOS, or in the Windows Subsystem for Linux"
        )


def run(
    job: Job, progress: Progress, prefix: str, library: Path, patience: float = POLL_SECONDS
) -> Generator[None, None, dict[str, Any]]:
    """Run a job to its end and return what it measured; `prefix` precedes its stages.

    It yields after each event and each `patience` seconds without one, so that others can run
    beside it. To close it ends the job.

    Raises:
        RunFailed: it failed; RunStopped if it was killed or reached the timeout.
    """
    job.out.mkdir(parents=True, exist_ok=True)
    for name in ("failed.json", "measured.json"):
        (job.out / name).unlink(missing_ok=True)
    began = time.monotonic()
    with _started(job, library) as (process, events):
        for event in _listen(process, events, patience):
            _show(event, progress, prefix)
            if job.timeout is not None and time.monotonic() - began > job.timeout:
                raise RunStopped(f"stopped after {job.timeout:.0f} s")
            yield
        code = process.wait()
    # some libraries crash when the interpreter ends, with all work done
    with suppress(FileNotFoundError):
        measured: dict[str, Any] = json.loads((job.out / "measured.json").read_text())
        return measured
    kind = RunStopped if code == -signal.SIGKILL else RunFailed
    raise kind(describe_failure(job.out, code))


@contextmanager
def _started(job: Job, library: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the process in its own group, so that all of it ends with this block."""
    reading, writing = os.pipe()
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(job.threads))
    environment[EVENTS] = str(writing)
    # the process may start in another folder, and must find our package where we have found it
    paths = [str(ROOT if job.contender.ours else library), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with (job.out / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            job.command(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            env=environment,
            start_new_session=True,  # Ctrl-C is for us; we stop the process ourselves
        )
    os.close(writing)
    try:
        yield process, reading
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reading)
        if process.stdin is not None:
            process.stdin.close()


def write_library(folder: Path) -> None:
    """Copy only the adapters, for interpreters in which longtail is not installed."""
    (folder / "longtail").mkdir(parents=True)
    (folder / "longtail" / "__init__.py").touch()
    source = Path(peers.__file__).parent
    shutil.copytree(
        source, folder / "longtail" / "peers", ignore=shutil.ignore_patterns("__pycache__")
    )


def _listen(
    process: subprocess.Popen[bytes], events: int, patience: float
) -> Iterator[dict[str, Any]]:
    """Yield the events that the process reports, and {} while it is silent, until it ends."""
    waiting = b""
    while True:
        ready, _, _ = select.select([events], [], [], patience)
        block = os.read(events, 1 << 16) if ready else b""
        if ready and not block:
            return
        *whole, waiting = (waiting + block).split(b"\n")
        for line in whole:
            yield json.loads(line)
        if not ready:
            yield {}
            if process.poll() is not None:
                return


def _show(event: dict[str, Any], progress: Progress, prefix: str) -> None:
    if "stage" in event:
        progress.stage(prefix + event["stage"], event["total"])
    elif "advance" in event:
        progress.advance(event["advance"])
    elif "note" in event:
        progress.note(event["note"])
    elif "say" in event:
        progress.say(prefix + event["say"])


# --------------------------------------------------------------------------------------- failures


def describe_failure(out: Path, code: int) -> str:
    """Say in one line why a process ended with the exit code `code`."""
    output = (out / OUTPUT).read_text(errors="replace")
    with suppress(FileNotFoundError):
        failed = json.loads((out / "failed.json").read_text())
        return _describe_exception(failed["error"], failed["message"])
    if code == -signal.SIGKILL:
        return "killed (signal 9), most likely because memory ran out"
    if code < 0:
        return f"crashed ({signal.Signals(-code).name}): {shorten(output)}"
    return shorten(output)


def _describe_exception(name: str, message: str) -> str:
    first = next(iter(message.strip().splitlines()), "")
    if name in ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError"):
        return f"out of memory{': ' * bool(first)}{first}"
    is_ours = isinstance(getattr(longtail.errors, name, None), type)
    return (message if is_ours else f"{name}: {first}")[:400]


def shorten(output: str, limit: int = 160) -> str:
    """Return the line of a program's output that says best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "panicked" in line]
    line = (telling or lines or ["no message"])[-1]
    return line if len(line) <= limit else line[: limit - 1] + "…"
