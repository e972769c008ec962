"""Load: what wrk, a load generator in a process of its own, measures of a server."""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.serving.process import Server

SCRIPT = Path(__file__).with_name("load.lua")


class Requests(NamedTuple):
    """What clients send: a file with one body a line, to a path, as a content type."""

    path: str
    content_type: str
    bodies: Path


class Load(NamedTuple):
    """What was measured under one load; times of requests in ms, CPU in seconds."""

    n: int
    seconds: float
    p50: float
    p90: float
    p99: float
    n_failed: int
    cpu: float
    client_cpu: float

    @property
    def rate(self) -> float:
        """Documents a second."""
        return self.n / self.seconds

    @property
    def cpu_each(self) -> float:
        """CPU milliseconds of the server for a document."""
        return 1e3 * self.cpu / max(1, self.n)

    def row(self, what: str) -> list[str]:
        """Return the row of a table."""
        times = [f"{each:.1f}" for each in (self.p50, self.p90, self.p99)]
        client = f"{1e3 * self.client_cpu / max(1, self.n):.3f}"
        return [
            what,
            f"{self.rate:,.0f}",
            *times,
            f"{self.cpu_each:.2f}",
            client,
            f"{self.n_failed}",
        ]


def apply_load(
    server: Server,
    requests: Requests,
    n_clients: int,
    seconds: float,
    rate: float | None = None,
    latency: float = 0.0,
) -> Load:
    """Send requests over as many connections; `rate` a second in all, else without a pause.

    Between its requests a client pauses so that the rate comes about if an answer takes `latency`
    seconds.
    """
    if shutil.which("wrk") is None:
        raise SystemExit("the load generator wrk is missing; install it, as by: apt install wrk")
    pause = 0.0 if rate is None else max(0.0, n_clients / rate - latency)
    given = {
        "BODIES": str(requests.bodies),
        "REQUEST_PATH": requests.path,
        "CONTENT_TYPE": requests.content_type,
        "PAUSE_MS": str(1e3 * pause),
    }
    command: Sequence[str] = [
        *("wrk", "-t1", f"-c{n_clients}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"),
        *("-s", str(SCRIPT), f"http://127.0.0.1:{server.port}"),
    ]
    cpu, client = server.cpu_seconds(), _cpu_of_children()
    done = subprocess.run(
        command, env=os.environ | given, capture_output=True, text=True, check=True
    )
    held = json.loads(done.stdout.splitlines()[-1])
    return Load(**held, cpu=server.cpu_seconds() - cpu, client_cpu=_cpu_of_children() - client)


def _cpu_of_children() -> float:
    """Return the CPU seconds of processes that have ended, which wrk has and servers have not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
