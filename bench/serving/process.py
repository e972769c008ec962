"""A server in a process of its own, with its workers: how soon it is ready, what it takes."""

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

START_SECONDS = 120
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PORT = "PORT"  # stands in a command for the port


def find_port() -> int:
    """Return a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Server:
    """A command that serves, while the block runs."""

    def __init__(
        self, command: Sequence[str], ready: str, *, cwd: Path | None = None, log: Path
    ) -> None:
        """Take a command with PORT in it, and a path that answers once it is ready."""
        self.port = find_port()
        self._command = [each.replace(PORT, str(self.port)) for each in command]
        self._ready, self._cwd, self._log = ready, cwd, log
        self.start_seconds = 0.0

    def __enter__(self) -> "Server":
        """Start, and wait until it is ready."""
        began = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, cwd=self._cwd, stdout=log, stderr=log)
        while time.perf_counter() < began + START_SECONDS and self._process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}{self._ready}", timeout=10):
                    self.start_seconds = time.perf_counter() - began
                    return self
            except (URLError, OSError):
                time.sleep(0.02)
        self.__exit__()
        raise SystemExit(f"{self._command[0]} did not start; see {self._log}")

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the server's processes have taken."""
        return sum((int(fields[11]) + int(fields[12])) / TICKS for fields in self._stats())

    def resident_bytes(self) -> int:
        """Return the memory of the server's processes; what they share counts for each."""
        return sum(int(fields[21]) * PAGE for fields in self._stats())

    def _stats(self) -> list[list[str]]:
        """Return what /proc says about each process, from the state on."""
        texts = [Path(f"/proc/{each}/stat").read_text() for each in self._family()]
        return [text.rsplit(")", 1)[1].split() for text in texts]

    def _family(self) -> list[int]:
        found = [self._process.pid]
        for pid in found:  # grows meanwhile
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found += [int(each) for each in children]
        return found
