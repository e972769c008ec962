"""`longtail train --processes N`: the same command by N processes that end together.

The first of them shows progress and writes; what another says is shown only if it is the reason why
all have ended. On several machines, torchrun starts the same command instead.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

import typer

from longtail.cli.exits import INTERRUPTED
from longtail.errors import LongtailError
from longtail.runtime.parallel import count_cores

LAUNCHED = "LONGTAIL_LAUNCHED"  # is set in processes that were started here
LOST = 75  # exit code of one that cannot reach another, and leaves it to us to say why
LOOK, GRACE = 0.1, 15.0  # seconds between two looks, and to end after another has


@dataclass
class Child:
    """One of the processes, and the file of what it says if that is not shown."""

    process: subprocess.Popen[bytes]
    said: IO[bytes] | None
    is_stopped: bool = False  # by us, as another had ended

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.poll()


def is_launched() -> bool:
    """Whether this process is one of several, started here or by torchrun."""
    return "RANK" in os.environ


def share_threads(threads: int | None, count: int | None) -> int | None:
    """Return the threads of each of `count` processes: those given, or its share of the cores."""
    if threads is not None or count is None:
        return threads
    return max(1, count_cores() // count)


def launch(count: int, say_what_is_kept: Callable[[], str]) -> None:
    """Run this command by `count` processes, and end as they do."""
    with ExitStack() as files:
        children = _start(count, files)
        signal.signal(signal.SIGTERM, _stop)
        _watch(children)
        _conclude(children, say_what_is_kept)


def _watch(children: Sequence[Child]) -> None:
    """Wait until all have ended, and see to it that they do."""
    try:
        _wait(children)
    except KeyboardInterrupt:  # the first one says what is kept
        _tell(children, signal.SIGINT)
        _wait_for_all(children, GRACE)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        _tell(children, signal.SIGKILL)


def _start(count: int, files: ExitStack) -> list[Child]:
    """Start the processes; a session of their own keeps Ctrl-C from reaching them twice."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common: dict[str, object] = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, LAUNCHED: 1}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    children = []
    for rank in range(count):
        place = {**common, "RANK": rank, "LOCAL_RANK": rank}
        said = files.enter_context(TemporaryFile()) if rank else None  # noqa: SIM115 - it is one
        process = subprocess.Popen(
            [sys.executable, "-m", "longtail", *sys.argv[1:]],
            env={**os.environ, **{name: str(value) for name, value in place.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if rank else None,
            stderr=said,
            start_new_session=True,
        )
        children.append(Child(process, said))
    return children


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _wait(children: Sequence[Child]) -> None:
    """Wait until all have ended; once one has failed, the others have to end soon."""
    while any(child.code is None for child in children):
        if any(child.code for child in children):
            _wait_for_all(children, GRACE)
            return
        time.sleep(LOOK)


def _wait_for_all(children: Sequence[Child], seconds: float) -> None:
    until = time.monotonic() + seconds
    while any(child.code is None for child in children) and time.monotonic() < until:
        time.sleep(LOOK)


def _tell(children: Sequence[Child], number: int) -> None:
    for child in children:
        if child.code is None:
            child.process.send_signal(number)
            child.is_stopped = number == signal.SIGKILL
    if number == signal.SIGKILL:
        for child in children:
            child.process.wait()


def _conclude(children: Sequence[Child], say_what_is_kept: Callable[[], str]) -> None:
    """Say why they ended, unless the first one has said it."""
    codes = [LOST if child.is_stopped else child.process.returncode for child in children]
    if not any(codes):
        return
    guilty = min(range(len(codes)), key=lambda rank: _rank_guilt(codes[rank]))
    code, said = codes[guilty], children[guilty].said
    if code > 0 and code != LOST:
        if said is None:
            raise typer.Exit(code)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines() or ["it did not say why"]
        reason = lines[-1].removeprefix("Error: ")
        raise LongtailError(f"process {guilty} of {len(codes)}: {reason}")
    how = f"was ended by signal {-code}" if code < 0 else "cannot reach the others"
    raise LongtailError(
        f"process {guilty} of {len(codes)} {how}, so all have stopped; {say_what_is_kept()}"
    )


def _rank_guilt(code: int) -> tuple[bool, bool, bool]:
    """Order exit codes by how likely they are the reason: of one's own, by a signal, others."""
    return (code in (0, LOST), code == 0, code < 0)
