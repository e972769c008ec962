"""`python -m bench.serve DATA [MODEL…]`: documents a second of a server, how soon, at what cost.

Starts `longtail serve MODEL --workers N` and lets wrk, a load generator in C, send it the test
texts of DATA, one a request, over as many connections as there are clients: first without a pause,
then at half of the rate that was reached. CPU milliseconds are those of all processes of the
server, those of wrk stand apart; other work on the machine changes them less than times. Without a
MODEL, a linear model of DATA is trained first (kept in build/serving). `--soak` goes on for so many
seconds, `--requests` for so many requests, and says how memory grows. `--annif` does the same with
Annif serving Omikuji, trained on the same texts, in an environment of its own; the ratios are ours
to Annif's. `--large MB` makes a model of that size and says how soon a server of it is ready.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import NamedTuple

import numpy as np

import longtail
from bench.loading import make_model
from bench.serving.annif import prepare_annif
from bench.serving.load import Load, Requests, apply_load
from bench.serving.process import PORT, Server
from bench.table import markdown
from longtail.runtime.parallel import set_threads

HEADINGS = ["what", "documents/s", "p50 ms", "p90 ms", "p99 ms", "CPU ms each", "of wrk", "failed"]
WORK = Path("build/serving")
ROUND = 60.0  # seconds of load at once


class Measured(NamedTuple):
    """A server under full load, under half of it, and how long it took to start."""

    full: Load
    half: Load
    start_seconds: float

    def rows(self, what: str) -> list[list[str]]:
        """Return the rows of a table."""
        return [self.full.row(what), self.half.row(f"{what}, half of that load")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure servers and print tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve")
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--requests", type=int, default=0, metavar="N")
    parser.add_argument("--annif", action="store_true")
    parser.add_argument("--large", type=int, default=0, metavar="MB")
    args = parser.parse_args(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    split = longtail.load(args.data)
    texts = list(split.test.texts or [])[: args.documents]
    models = args.models or [_train_linear(args.data)]
    rows, notes, ours = [], [], []
    for model in models:
        requests = _write_requests(model.resolve().name, texts)
        with _serve(model, args.workers) as server:
            ours.append(_measure(server, requests, args))
            notes += [f"{model.name}: ready after {ours[-1].start_seconds:.2f} s"]
            notes += [f"{model.name}: {_measure_overhead(server, requests, model, texts)}"]
            if args.soak or args.requests:
                notes += [f"{model.name}: {soak(server, requests, args)}"]
        rows += ours[-1].rows(f"longtail, {model.name}")
        rows += measure_predict(model, texts)
    if args.annif:
        command, requests = prepare_annif(split.train, texts, WORK, args.workers)
        log = WORK / "annif.log"
        with Server(command, "/v1/projects", cwd=WORK / "annif", log=log) as server:
            theirs = _measure(server, requests, args)
        rows += theirs.rows("Annif, Omikuji")
        notes += [_compare(ours[0], theirs)]
    if args.large:
        notes += [_measure_start(args.large, args.workers)]
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"\n{args.workers} workers, {args.clients} clients; the machine's load is {load}\n")
    print(markdown(HEADINGS, rows))
    print("\n" + "\n".join(f"- {note}" for note in notes))


def _measure_start(megabytes: int, n_workers: int) -> str:
    """Say how soon a server of a large model is ready, at its second start."""
    folder = WORK / f"large-{megabytes}"
    if not folder.exists():
        make_model(folder, megabytes)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    seconds = []
    for n in (1, 1, n_workers):  # at the first, the system may not hold the folder yet
        with _serve(folder, n) as server:
            seconds.append(server.start_seconds)
    return (
        f"a model of {size:.0f} MB: ready after {seconds[1]:.2f} s, "
        f"with {n_workers} workers after {seconds[2]:.2f} s"
    )


def _train_linear(data: Path) -> Path:
    """Return a linear model of the data, which is trained if it is not there."""
    folder = WORK / "linear"
    if not folder.exists():
        command = [sys.executable, "-m", "longtail", "train", str(data), "--model", "linear"]
        subprocess.run([*command, "--out", str(folder)], check=True)
    return folder


def _serve(model: Path, n_workers: int) -> Server:
    command = [sys.executable, "-m", "longtail", "serve", str(model), "--port", PORT]
    command += ["--workers", str(n_workers)]
    return Server(command, "/health/ready", log=WORK / f"{model.name}.log")


def _write_requests(name: str, texts: list[str]) -> Requests:
    bodies = WORK / "bodies.jsonl"
    bodies.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Requests(f"/v1/models/{name}/predict", "application/json", bodies)


def _measure(server: Server, requests: Requests, args: argparse.Namespace) -> Measured:
    """Load a server as much as it takes, and half of that."""
    apply_load(server, requests, args.clients, args.seconds / 5)  # warm-up
    full = apply_load(server, requests, args.clients, args.seconds)
    rate = full.rate / 2
    half = apply_load(server, requests, args.clients, args.seconds, rate)
    return Measured(full, half, server.start_seconds)


def soak(server: Server, requests: Requests, args: argparse.Namespace) -> str:
    """Go on under full load; say how memory grows in the second half, by a line through it."""
    seen: list[tuple[float, float]] = []
    ended = Event()

    def look() -> None:
        while not ended.wait(0.5):
            seen.append((time.perf_counter(), server.resident_bytes() / 2**20))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            n, rate = _go_on(server, requests, args)
        finally:
            ended.set()
        looking.result()
    seconds, sizes = np.array(seen[len(seen) // 2 :]).T
    slope = np.polyfit(seconds - seconds[0], sizes, 1)[0]
    return (
        f"{n:,} more requests; memory stood at {sizes[-1]:.1f} MiB, in their second half it grew "
        f"by {sizes[-1] - sizes[0]:+.2f} MiB: {3600 * slope:+.2f} MiB an hour, "
        f"{1e6 * slope / rate:+.2f} MiB a million requests"
    )


def _go_on(server: Server, requests: Requests, args: argparse.Namespace) -> tuple[int, float]:
    """Apply full load for as long, and as often, as is wanted; return how often, and its rate."""
    n, began, seconds = 0, time.perf_counter(), args.soak or ROUND
    while True:
        n += apply_load(server, requests, args.clients, seconds).n
        passed = time.perf_counter() - began
        if n >= args.requests and passed >= args.soak:
            return n, n / passed
        seconds = min(ROUND, 1 + (args.requests - n) * passed / max(1, n))


def measure_predict(path: Path, texts: list[str]) -> list[list[str]]:
    """Return rows for predict in this process, with one thread: 64 together, and one by one."""
    set_threads(1)
    model = longtail.load_model(path)
    model.predict(texts[:64])
    rows = []
    for what, size, n in (("predict, 64 together", 64, 2048), ("predict, one", 1, 500)):
        times, cpu, began = [], time.process_time(), time.perf_counter()
        for start in range(0, min(n, len(texts)), size):
            at = time.perf_counter()
            model.predict(texts[start : start + size]).to_list()
            times.append(1e3 * (time.perf_counter() - at))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        p50, p90, p99 = np.percentile(times, [50, 90, 99])
        rows.append(Load(min(n, len(texts)), seconds, p50, p90, p99, 0, cpu, 0).row(what))
    return rows


def _measure_overhead(server: Server, requests: Requests, path: Path, texts: list[str]) -> str:
    """Say how much longer one client waits for an answer than for predict, the same text each."""
    set_threads(1)
    model = longtail.load_model(path)
    bodies = requests.bodies.read_bytes().splitlines()
    alone, asked = [], []
    with closing(HTTPConnection("127.0.0.1", server.port)) as link:
        for text, body in list(zip(texts, bodies, strict=True))[:400]:
            at = time.perf_counter()
            model.predict([text]).to_list()
            between = time.perf_counter()
            link.request("POST", requests.path, body, {"Content-Type": requests.content_type})
            link.getresponse().read()
            alone.append(between - at)
            asked.append(time.perf_counter() - between)
    here, there = 1e3 * np.median(alone), 1e3 * np.median(asked)
    return f"one client waits {there:.2f} ms, predict takes {here:.2f} ms: {there - here:+.2f} ms"


def _compare(ours: Measured, theirs: Measured) -> str:
    """Return ours ÷ theirs."""
    rate = ours.full.rate / theirs.full.rate
    cpu = theirs.full.cpu_each / ours.full.cpu_each
    p50, p99 = theirs.half.p50 / ours.half.p50, theirs.half.p99 / ours.half.p99
    return (
        f"ours to Annif's: {rate:.1f} times the documents a second, 1/{cpu:.1f} of the CPU for "
        f"each; each at half of its own load, 1/{p50:.1f} of the p50 and 1/{p99:.1f} of the p99"
    )


if __name__ == "__main__":
    main()
