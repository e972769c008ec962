"""`python -m bench.serve DIR DATA`: how many documents a second a server labels, and how soon.

Starts `longtail serve DIR` in a process of its own and sends it the test texts of DATA, one a
request, over as many connections as there are clients: first as quickly as they are answered, then
at half of that rate. The client writes and reads plain HTTP, as a library for it would take more
time than the server. Beside it stands what `predict` takes for the same texts in this process. CPU
milliseconds are those of the server's process: other work on the machine does not change them much.
"""

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np

import longtail
from bench.table import markdown

HEADINGS = ["what", "documents/s", "p50 ms", "p99 ms", "CPU ms each", "not 200"]
START_SECONDS = 60
TICKS = 100  # of Linux, a second


class Load(NamedTuple):
    """What was measured under one load."""

    n: int
    seconds: float
    latencies: list[float]
    cpu: float
    n_failed: int

    def row(self, what: str) -> list[str]:
        """Return the row of a table."""
        p50, p99 = np.percentile(self.latencies, [50, 99]) * 1e3
        rate, cpu = self.n / self.seconds, 1e3 * self.cpu / self.n
        return [what, f"{rate:,.0f}", f"{p50:.1f}", f"{p99:.1f}", f"{cpu:.2f}", str(self.n_failed)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a server under full and half load, and predict alone."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve")
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--documents", type=int, default=5000)
    args = parser.parse_args(arguments)
    test = longtail.load(args.data).test
    texts = list(test.texts or [])[: args.documents]
    with _Server(args.model) as server:
        path = f"/v1/models/{args.model.resolve().name}/predict"
        requests = [_make_request(path, text) for text in texts]
        asyncio.run(load(server, requests, args.clients, args.seconds / 4))  # warm-up
        full = asyncio.run(load(server, requests, args.clients, args.seconds))
        rate = full.n / full.seconds / 2
        half = asyncio.run(load(server, requests, args.clients, args.seconds, rate))
        started = server.start_seconds
    rows = [full.row(f"{args.clients} clients"), half.row("half of that load")]
    rows += measure_predict(args.model, texts)
    print(f"{args.model.name}; the server was ready after {started:.1f} s\n")
    print(markdown(HEADINGS, rows))


def measure_predict(path: Path, texts: list[str]) -> list[list[str]]:
    """Return rows for predict in this process: in batches of 64, and one by one."""
    model = longtail.load_model(path)
    model.predict(texts[:64])
    rows = []
    for what, size, n in (("predict, 64 together", 64, len(texts)), ("predict, one", 1, 500)):
        latencies, cpu, began = [], time.process_time(), time.perf_counter()
        for start in range(0, min(n, len(texts)), size):
            at = time.perf_counter()
            model.predict(texts[start : start + size]).to_list()
            latencies.append(time.perf_counter() - at)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        rows.append(Load(min(n, len(texts)), seconds, latencies, cpu, 0).row(what))
    return rows


async def load(
    server: "_Server",
    requests: list[bytes],
    n_clients: int,
    seconds: float,
    rate: float | None = None,
) -> Load:
    """Send requests over `n_clients` connections; `rate` a second in all, else without a pause."""
    latencies: list[float] = []
    failed = 0
    began, cpu = time.perf_counter(), server.cpu_seconds()

    async def client(number: int) -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        i, due = number, began + (number / rate if rate else 0)
        while time.perf_counter() < began + seconds:
            if rate:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += n_clients / rate
            at = time.perf_counter()
            writer.write(requests[i % len(requests)])
            status = await _read_answer(reader)
            latencies.append(time.perf_counter() - at)
            failed += status != 200
            i += n_clients
        writer.close()

    await asyncio.gather(*(client(number) for number in range(n_clients)))
    spent = time.perf_counter() - began
    return Load(len(latencies), spent, latencies, server.cpu_seconds() - cpu, failed)


async def _read_answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(found[1]) if found else 0)
    return int(head[9:12])


def _make_request(path: str, text: str) -> bytes:
    body = json.dumps({"text": text}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Server:
    """`longtail serve` in a process of its own."""

    def __init__(self, model: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._model = model
        self.start_seconds = 0.0

    def __enter__(self) -> "_Server":
        began = time.perf_counter()
        command = [sys.executable, "-m", "longtail", "serve", str(self._model)]
        self._process = subprocess.Popen([*command, "--port", str(self.port)])
        while time.perf_counter() < began + START_SECONDS:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/health/ready"):
                    self.start_seconds = time.perf_counter() - began
                    return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise SystemExit(f"the server did not start within {START_SECONDS} s")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the server's process has taken."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
