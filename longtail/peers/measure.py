"""The common protocol of all methods: train, save, load, predict, each step measured alike.

A method runs in its own process: `python -m longtail.peers.NAME GIVEN OUT THREADS SETTING`.
GIVEN holds the documents of both splits and the labels of the training split; no method ever sees
the test labels. SETTING is a JSON object. The method writes `measured.json` and `top.npz` (labels,
scores) into OUT, or `failed.json` with the error.

If LONGTAIL_EVENTS names an open file descriptor, progress goes there, one JSON object a line, and
the process ends as soon as its standard input ends. This file needs only numpy and scipy, because
it runs inside the environment of every peer.
"""

import argparse
import json
import os
import resource
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.peers import EVENTS

N_SINGLE = 1000  # documents predicted one by one, unless that takes longer than:
MOST_SECONDS = 10.0
N_WARM = 50


class Method(ABC):
    """One method behind a common interface, so that all are measured alike."""

    def __init__(self, setting: dict[str, Any], threads: int, folder: Path, k: int) -> None:
        """Remember the setting; `folder` is where the saved model goes."""
        self.setting = setting
        self.threads = threads
        self.folder = folder
        self.k = k

    def warm_up(self) -> None:  # noqa: B027 (most methods have nothing to do)
        """Do what a process does only once, such as compiling."""

    def read(self, given: Path, split: str) -> Any:
        """Return the documents of the split "train" or "test"; those of peers are rows."""
        return read_matrix(given / f"{split}_X.npz")

    def take_data(self, documents: Any, Y: sp.csr_matrix) -> Any:
        """Return the training data in the form that `train` takes; not counted as training."""
        return documents, Y

    @abstractmethod
    def train(self, data: Any) -> None:
        """Learn from what `take_data` returned."""

    @abstractmethod
    def save(self) -> None:
        """Write the model into `folder`."""

    @abstractmethod
    def load(self) -> None:
        """Read the model back from `folder`, ready to predict."""

    def rows(self, documents: Any) -> Any:
        """Return documents in the form that `predict` takes; not counted as prediction."""
        return documents

    @abstractmethod
    def predict(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels and scores (n, k), best first; label -1 where there are fewer."""

    def add_facts(self, measured: dict[str, Any]) -> None:  # noqa: B027 (most have none)
        """Add results that only this method has, such as its training curve."""


def run(method_class: type[Method]) -> None:
    """Measure one method as the command line says."""
    args = _arguments()
    _pin(args.threads, args.place)
    _end_with_parent()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        _measure(method_class, args)
    except Exception as error:
        traceback.print_exc()
        reason = {"error": type(error).__name__, "message": str(error)}
        (args.out / "failed.json").write_text(json.dumps(reason))
        sys.exit(1)


def _measure(method_class: type[Method], args: argparse.Namespace) -> None:
    folder = args.out / "model"
    folder.mkdir(exist_ok=True)
    measured: dict[str, Any] = {}
    method = method_class(json.loads(args.setting), args.threads, folder, args.k)
    send_event(stage="warming up", total=0)
    with _Watch(measured, "warm_up"):
        method.warm_up()
    _train(method, args.given, args.drop_empty, measured)
    measured["model_mb"] = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6
    labels, scores = _predict(method, args.given, measured)
    method.add_facts(measured)
    np.savez_compressed(args.out / "top.npz", labels=labels, scores=scores)
    unfinished = args.out / "measured.json.new"
    unfinished.write_text(json.dumps(measured, indent=1))
    unfinished.replace(args.out / "measured.json")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure one method on one data set.")
    parser.add_argument("given", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("setting")
    parser.add_argument("--drop-empty", action="store_true")
    parser.add_argument("--place", type=int, default=0, help="among those that run at once")
    parser.add_argument("-k", type=int, default=5, help="labels predicted for each document")
    return parser.parse_args()


def _pin(threads: int, place: int) -> None:
    """Restrict the process to as many cores as threads, however many its library starts.

    Those that run at once have different cores, as long as there are enough.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, choose_cores(sorted(os.sched_getaffinity(0)), threads, place))


def choose_cores(cores: list[int], threads: int, place: int) -> list[int]:
    """Return the `threads` cores of one of several processes, from the first again after all."""
    begin = place * threads % len(cores)
    return (cores + cores)[begin : begin + min(threads, len(cores))]


# -------------------------------------------------------------------------------------- progress


def send_event(**event: Any) -> None:
    """Report an event to the process that started this one, such as a new stage."""
    if EVENTS in os.environ:
        os.write(int(os.environ[EVENTS]), (json.dumps(event) + "\n").encode())


def _end_with_parent() -> None:
    """End this process when the one that started it has ended."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would stop the interpreter from ending
            pass
        os._exit(1)

    if EVENTS in os.environ:
        threading.Thread(target=wait, daemon=True).start()


# ------------------------------------------------------------------------------------- the steps


def _train(method: Method, given: Path, drop_empty: bool, measured: dict[str, Any]) -> None:
    documents, Y = method.read(given, "train"), read_matrix(given / "train_Y.npz")
    if drop_empty:
        kept = np.diff(documents.indptr) > 0
        documents, Y = documents[kept], Y[kept]
    data = method.take_data(documents, Y)
    del documents, Y
    loaded = _reset_peak()
    send_event(stage="training", total=0)
    with _Watch(measured, "train"):
        method.train(data)
    measured["train_peak_mb"] = _peak()
    measured["train_above_data_mb"] = max(measured["train_peak_mb"] - loaded, 0.0)
    with _Watch(measured, "save"):
        method.save()


def _predict(
    method: Method, given: Path, measured: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    with _Watch(measured, "load"):
        method.load()
    documents = method.read(given, "test")
    n = count(documents)
    batch = method.rows(documents)
    method.predict(method.rows(documents[:N_WARM]))
    send_event(stage="labelling", total=0)
    with _Watch(measured, "predict"):
        top = method.predict(batch)
    measured["documents_per_second"] = n / max(measured["predict_seconds"], 1e-9)
    send_event(stage="labelling one by one", total=0)
    singles = [method.rows(documents[i : i + 1]) for i in range(min(N_SINGLE, n))]
    milliseconds = _time_singles(method, singles)
    measured["single_p50_ms"] = float(np.percentile(milliseconds, 50))
    measured["single_p99_ms"] = float(np.percentile(milliseconds, 99))
    measured["n_single"] = len(milliseconds)
    return top


def _time_singles(method: Method, singles: list[Any]) -> list[float]:
    began = time.perf_counter()
    for single in singles[:N_WARM]:
        method.predict(single)
        if time.perf_counter() - began > MOST_SECONDS / 5:
            break
    began, milliseconds = time.perf_counter(), []
    for single in singles:
        milliseconds.append(_time(method, single) * 1e3)
        if time.perf_counter() - began > MOST_SECONDS:
            break
    return milliseconds


def _time(method: Method, single: Any) -> float:
    start = time.perf_counter()
    method.predict(single)
    return time.perf_counter() - start


def count(documents: Any) -> int:
    """Return how many texts or rows there are."""
    return len(documents) if isinstance(documents, list) else int(documents.shape[0])


def read_matrix(path: Path) -> Any:
    """Read a sparse matrix."""
    return sp.csr_matrix(sp.load_npz(path))


class _Watch:
    """Measures wall and CPU seconds (user and system, all threads and children) of a block."""

    def __init__(self, measured: dict[str, Any], name: str) -> None:
        self.measured, self.name = measured, name

    def __enter__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), _cpu_seconds()

    def __exit__(self, *_: object) -> None:
        self.measured[f"{self.name}_seconds"] = time.perf_counter() - self.wall
        self.measured[f"{self.name}_cpu_seconds"] = _cpu_seconds() - self.cpu


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _reset_peak() -> float:
    """Forget the peak so far and return the memory in use, in MB; 0 outside of Linux."""
    # ru_maxrss cannot be reset and even starts from the size of the process that started us
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0.0
    return _memory("VmRSS")


def _peak() -> float:
    """Return the most memory that this process, or one that it started, had in use, in MB."""
    children = _max_memory(resource.RUSAGE_CHILDREN)
    try:
        return max(_memory("VmHWM"), children)
    except OSError:
        return max(_max_memory(resource.RUSAGE_SELF), children)


def _max_memory(who: int) -> float:
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
    return resource.getrusage(who).ru_maxrss * unit / 1e6


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith(field + ":"))
    return int(kib) * 1024 / 1e6


def pad(label_lists: list[list[tuple[int, float]]], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Turn lists of (label, score) into the arrays that `predict` returns."""
    labels = np.full((len(label_lists), k), -1, dtype=np.int32)
    scores = np.zeros((len(label_lists), k), dtype=np.float32)
    for row, pairs in enumerate(label_lists):
        for column, (label, score) in enumerate(pairs[:k]):
            labels[row, column], scores[row, column] = label, score
    return labels, scores
