"""One run in a process of its own: started, listened to, stopped, and its failure put in words."""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import longtail.errors
from longtail import peers
from longtail.peers import Contender
from longtail.peers.measure import EVENTS
from longtail.progress import Progress

ROOT = Path(peers.__file__).parent.parent.parent
OUTPUT = "output.txt"
PATIENCE = 0.2  # seconds between two looks at a silent process
# Each thread of a numeric library beyond these would only be in the others' way.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class RunFailed(Exception):
    """A method did not finish; the message says why, in one line."""


@dataclass(frozen=True)
class Job:
    """A contender and what its process is to do.

    Attributes:
        contender: who.
        python: the interpreter that can import it.
        given: the folder of documents that it reads.
        out: the folder that it writes.
        seed: fixes what is random.
        k: how many labels it predicts for each document.
        threads: how many it may use.
        timeout: seconds after which it is stopped, None for never.
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
    drop_empty: bool = False

    def command(self) -> list[str]:
        """Return the command line of the process."""
        setting = json.dumps(self.contender.setting | {"seed": self.seed})
        command = [str(self.python), "-m", self.contender.module, str(self.given), str(self.out)]
        command += [str(self.threads), setting, "-k", str(self.k)]
        return [*command, "--drop-empty"] if self.drop_empty else command


def run(job: Job, progress: Progress, prefix: str, library: Path) -> dict[str, Any]:
    """Run a job to its end and return what it measured; its stages are shown behind `prefix`.

    Raises:
        RunFailed: it failed, was killed, or took longer than it may.
    """
    job.out.mkdir(parents=True, exist_ok=True)
    for name in ("failed.json", "measured.json"):
        (job.out / name).unlink(missing_ok=True)
    began = time.monotonic()
    with _started(job, library) as (process, events):
        for event in _listen(process, events):
            _show(event, progress, prefix)
            if job.timeout is not None and time.monotonic() - began > job.timeout:
                raise RunFailed(f"stopped after {job.timeout:.0f} s")
        code = process.wait()
    # some libraries crash when the interpreter ends, with all work done
    with suppress(FileNotFoundError):
        measured: dict[str, Any] = json.loads((job.out / "measured.json").read_text())
        return measured
    raise RunFailed(describe_failure(job.out, code))


@contextmanager
def _started(job: Job, library: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the process, in a group of its own so that nothing of it outlives this block."""
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
    """Copy the adapters, and nothing else of ours, for interpreters that have no longtail."""
    (folder / "longtail").mkdir(parents=True)
    (folder / "longtail" / "__init__.py").touch()
    source = Path(peers.__file__).parent
    shutil.copytree(
        source, folder / "longtail" / "peers", ignore=shutil.ignore_patterns("__pycache__")
    )


def _listen(process: subprocess.Popen[bytes], events: int) -> Iterator[dict[str, Any]]:
    """Yield what the process reports, and now and then nothing, until it ends."""
    waiting = b""
    while True:
        ready, _, _ = select.select([events], [], [], PATIENCE)
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
        return _describe_exception(failed["kind"], failed["message"])
    if code == -signal.SIGKILL:
        return "killed (signal 9), most likely because memory ran out"
    if code < 0:
        return f"crashed ({signal.Signals(-code).name}): {shorten(output)}"
    return shorten(output)


def _describe_exception(kind: str, message: str) -> str:
    first = next(iter(message.strip().splitlines()), "")
    if kind in ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError"):
        return f"out of memory{': ' * bool(first)}{first}"
    is_ours = isinstance(getattr(longtail.errors, kind, None), type)
    return (message if is_ours else f"{kind}: {first}")[:400]


def shorten(output: str, limit: int = 160) -> str:
    """Return the line of a program's output that says best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "panicked" in line]
    line = (telling or lines or ["no message"])[-1]
    return line if len(line) <= limit else line[: limit - 1] + "…"
