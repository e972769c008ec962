"""The common protocol of all methods: train, save, load, predict, each step measured alike.

A method runs in a process of its own: `python -m longtail.peers.NAME GIVEN OUT THREADS SETTING`.
GIVEN holds the documents of both parts and the labels of the training part; no method ever sees the
test labels. SETTING is a JSON object. It leaves `measured.json` and `top.npz` (labels, scores) in
OUT, or `failed.json` with what went wrong.

Whoever started it may listen: what LONGTAIL_EVENTS names is an open file descriptor, and gets
a JSON object a line; a method that is listened to ends itself as soon as its standard input ends.
This file needs numpy and scipy only, because it runs inside every peer's own environment.
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

EVENTS = "LONGTAIL_EVENTS"
N_SINGLE = 1000  # documents predicted one by one, unless that takes longer than:
MOST_SECONDS = 10.0
N_WARM = 50


class Method(ABC):
    """One way to learn labels, wrapped so that all can be measured alike."""

    def __init__(self, setting: dict[str, Any], threads: int, folder: Path, k: int) -> None:
        """Remember the setting; `folder` is where the saved model goes."""
        self.setting = setting
        self.threads = threads
        self.folder = folder
        self.k = k

    def warm_up(self) -> None:  # noqa: B027 (most methods have nothing to do)
        """Do what has to be done once for each process, such as compiling."""

    def read(self, given: Path, part: str) -> Any:
        """Return the documents of the part "train" or "test"; those of peers are rows."""
        return read_matrix(given / f"{part}_X.npz")

    def take_data(self, documents: Any, Y: sp.csr_matrix) -> Any:
        """Return the training data in the form that `train` wants; not part of training time."""
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
        """Return documents in the form that `predict` wants; not part of prediction time."""
        return documents

    @abstractmethod
    def predict(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels and scores (n, k), best first; label -1 where there are fewer."""

    def add_facts(self, measured: dict[str, Any]) -> None:  # noqa: B027 (most have none)
        """Add what only this method knows, such as its training curve."""


def run(method_class: type[Method]) -> None:
    """Measure one method as the command line asks."""
    args = _arguments()
    _pin(args.threads)
    _end_with_parent()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        _measure(method_class, args)
    except Exception as error:
        traceback.print_exc()
        reason = {"kind": type(error).__name__, "message": str(error)}
        (args.out / "failed.json").write_text(json.dumps(reason))
        sys.exit(1)


def _measure(method_class: type[Method], args: argparse.Namespace) -> None:
    folder = args.out / "model"
    folder.mkdir(exist_ok=True)
    measured: dict[str, Any] = {}
    method = method_class(json.loads(args.setting), args.threads, folder, args.k)
    tell(stage="warming up", total=0)
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
    parser.add_argument("-k", type=int, default=5, help="labels predicted for each document")
    return parser.parse_args()


def _pin(threads: int) -> None:
    """Keep the process on as many cores as it may have threads, whatever its library starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


# ------------------------------------------------------------------------------------- listeners


def tell(**event: Any) -> None:
    """Report an event to whoever listens, such as the stage that begins now."""
    if EVENTS in os.environ:
        os.write(int(os.environ[EVENTS]), (json.dumps(event) + "\n").encode())


def _end_with_parent() -> None:
    """See to it that nothing goes on computing for somebody who was killed."""

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
    tell(stage="training", total=0)
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
    tell(stage="labelling", total=0)
    with _Watch(measured, "predict"):
        top = method.predict(batch)
    measured["documents_per_second"] = n / max(measured["predict_seconds"], 1e-9)
    tell(stage="labelling one by one", total=0)
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
    return sum(part.ru_utime + part.ru_stime for part in used)


def _reset_peak() -> float:
    """Forget the peak so far and return the memory in use, in MB; 0 where Linux is not."""
    # ru_maxrss cannot be reset and even starts from the size of the process that started us
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0.0
    return _memory("VmRSS")


def _peak() -> float:
    """Return the most memory that this process, or one it has started, had in use, in MB."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    try:
        return max(_memory("VmHWM"), children)
    except OSError:
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, children)


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
