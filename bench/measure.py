"""The common protocol of all runners: train, save, load, predict, each step measured alike.

A runner is called as `python -m bench.run_NAME ROWS OUT THREADS SETTING [--drop-empty]`: ROWS holds
`train_X.npz`, `train_Y.npz` and `test_X.npz` (no runner ever sees the test labels), SETTING is a
JSON object. It leaves `measured.json` and `top.npz` (labels, scores) in OUT. This file needs numpy
and scipy only, because it runs inside every peer's own environment.
"""

import argparse
import json
import os
import resource
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

K = 5
N_SINGLE = 1000
N_WARM = 50


class Method(ABC):
    """One way to learn labels, wrapped so that all can be measured alike."""

    def __init__(self, setting: dict[str, Any], threads: int, folder: Path) -> None:
        """Remember the setting; `folder` is where the saved model goes."""
        self.setting = setting
        self.threads = threads
        self.folder = folder

    def warm_up(self) -> None:  # noqa: B027 (most methods have nothing to do)
        """Do what has to be done once for each process, such as compiling."""

    def take_data(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> Any:
        """Return the training data in the form that `train` wants; not part of training time."""
        return X, Y

    @abstractmethod
    def train(self, data: Any) -> None:
        """Learn from what `take_data` returned."""

    @abstractmethod
    def save(self) -> None:
        """Write the model into `folder`."""

    @abstractmethod
    def load(self) -> None:
        """Read the model back from `folder`, ready to predict."""

    def rows(self, X: sp.csr_matrix) -> Any:
        """Return rows in the form that `predict` wants; not part of prediction time."""
        return X

    @abstractmethod
    def predict(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels and scores (n, K), best first; label -1 where there are fewer."""


def run(method_class: type[Method]) -> None:
    """Measure one method as the command line asks."""
    args = _arguments()
    _pin(args.threads)
    folder = args.out / "model"
    folder.mkdir(parents=True)
    measured: dict[str, float] = {}
    method = method_class(json.loads(args.setting), args.threads, folder)
    with _Watch(measured, "warm_up"):
        method.warm_up()
    _train(method, args.rows, args.drop_empty, measured)
    measured["model_mb"] = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6
    labels, scores = _predict(method, args.rows, measured)
    np.savez(args.out / "top.npz", labels=labels, scores=scores)
    (args.out / "measured.json").write_text(json.dumps(measured, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure one method on one data set.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("setting")
    parser.add_argument("--drop-empty", action="store_true")
    return parser.parse_args()


def _pin(threads: int) -> None:
    """Keep the process on as many cores as it may have threads, whatever its library starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _train(method: Method, rows: Path, drop_empty: bool, measured: dict[str, float]) -> None:
    X, Y = _read(rows / "train_X.npz"), _read(rows / "train_Y.npz")
    if drop_empty:
        kept = np.diff(X.indptr) > 0
        X, Y = X[kept], Y[kept]
    data = method.take_data(X, Y)
    del X, Y
    loaded = _reset_peak()
    with _Watch(measured, "train"):
        method.train(data)
    measured["train_peak_mb"] = _memory("VmHWM")
    measured["train_above_data_mb"] = measured["train_peak_mb"] - loaded
    with _Watch(measured, "save"):
        method.save()


def _predict(
    method: Method, rows: Path, measured: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    with _Watch(measured, "load"):
        method.load()
    X = _read(rows / "test_X.npz")
    batch = method.rows(X)
    method.predict(method.rows(X[:N_WARM]))
    with _Watch(measured, "predict"):
        top = method.predict(batch)
    measured["documents_per_second"] = X.shape[0] / measured["predict_seconds"]
    singles = [method.rows(X[i : i + 1]) for i in range(min(N_SINGLE, X.shape[0]))]
    for single in singles[:N_WARM]:
        method.predict(single)
    milliseconds = np.array([_time(method, single) for single in singles]) * 1e3
    measured["single_p50_ms"] = float(np.percentile(milliseconds, 50))
    measured["single_p99_ms"] = float(np.percentile(milliseconds, 99))
    return top


def _read(path: Path) -> Any:
    return sp.csr_matrix(sp.load_npz(path))


def _time(method: Method, single: Any) -> float:
    start = time.perf_counter()
    method.predict(single)
    return time.perf_counter() - start


class _Watch:
    """Measures wall and CPU seconds (user and system, all threads and children) of a block."""

    def __init__(self, measured: dict[str, float], name: str) -> None:
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
    """Forget the peak so far and return the memory in use, in MB."""
    # ru_maxrss cannot be reset and even starts from the size of the process that started us
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith(field + ":"))
    return int(kib) * 1024 / 1e6


def pad(label_lists: list[list[tuple[int, float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Turn lists of (label, score) into the arrays that `predict` returns."""
    labels = np.full((len(label_lists), K), -1, dtype=np.int32)
    scores = np.zeros((len(label_lists), K), dtype=np.float32)
    for row, pairs in enumerate(label_lists):
        for column, (label, score) in enumerate(pairs[:K]):
            labels[row, column], scores[row, column] = label, score
    return labels, scores
