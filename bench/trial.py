"""One method on one data set: a process of its own, then the metrics by our one code."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.environments import PeerError, python_of
from bench.rows import Rows
from longtail.compare.process import THREAD_VARIABLES, shorten
from longtail.data.dataset import Dataset
from longtail.evaluation.metrics import evaluate
from longtail.peers import Contender
from longtail.topk import TopK

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Place:
    """Where and under which limits a process runs."""

    environments: Path
    folder: Path
    threads: int
    timeout: float

    @property
    def rows(self) -> Path:
        """The folder that the runners read."""
        return self.folder / "rows"

    @property
    def out(self) -> Path:
        """The folder that a runner writes; empty again after each."""
        return self.folder / "out"


def run_all(
    methods: list[Contender], rows: Rows, work: Path, *, threads: int, repeat: int, timeout: float
) -> Iterator[list[dict[str, Any]]]:
    """Run every method `repeat` times in turn; yield after each run the results so far."""
    work.mkdir(parents=True, exist_ok=True)
    trials: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=work) as folder:
        place = Place(work / "envs", Path(folder), threads, timeout)
        rows.write(place.rows)
        for _ in range(repeat):
            for method in methods:
                for result in _attempt(method, rows, place):
                    trials.setdefault(result["method"], []).append(result)
                yield [_median(results) for results in trials.values()]


def _attempt(method: Contender, rows: Rows, place: Place) -> list[dict[str, Any]]:
    """Run a method; where it fails and rows without features may be why, also without them."""
    first = _trial(method, rows, place, drop_empty=False)
    if "error" not in first or not rows.n_empty or "cannot be installed" in first["error"]:
        return [first]
    return [first, _trial(method, rows, place, drop_empty=True)]


def _trial(method: Contender, rows: Rows, place: Place, *, drop_empty: bool) -> dict[str, Any]:
    name = f"{method.name} (without empty rows)" if drop_empty else method.name
    result: dict[str, Any] = {"method": name, "ours": method.ours, "setting": method.setting}
    try:
        result |= call(method, place, drop_empty=drop_empty)
        result |= measure_top(place, rows.test, rows.train)
        print(f"{rows.name}: {name}: {result['train_seconds']:.1f} s", flush=True)
    except PeerError as error:
        result["error"] = str(error)
        print(f"{rows.name}: {name}: {error}", flush=True)
    finally:
        shutil.rmtree(place.out, ignore_errors=True)
    return result


def call(method: Contender, place: Place, *, drop_empty: bool = False) -> dict[str, float]:
    """Run a method on the rows at `place` in its own process and return what it measured."""
    python = python_of(method.package, place.environments)
    command = [str(python), "-m", method.module, str(place.rows), str(place.out)]
    command += [str(place.threads), json.dumps(method.setting)]
    command += ["--drop-empty"] if drop_empty else []
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(place.threads))
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=place.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"stopped after {place.timeout:.0f} s") from None
    if done.returncode:
        raise PeerError(shorten(done.stderr + done.stdout).replace(f"{ROOT}/", ""))
    measured: dict[str, float] = json.loads((place.out / "measured.json").read_text())
    return measured | {"milliseconds_each": 1e3 / measured["documents_per_second"]}


def measure_top(place: Place, test: Dataset, train: Dataset) -> dict[str, float]:
    """Return the metrics of what the method at `place` predicted."""
    found = np.load(place.out / "top.npz")
    return evaluate(TopK(found["labels"], found["scores"]), test, train=train)


def _median(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first result with every measure replaced by its median over the repeats."""
    done = [result for result in results if "error" not in result]
    if not done:
        return results[0]
    measures = [key for key, value in done[0].items() if isinstance(value, float)]
    medians = {key: statistics.median(result[key] for result in done) for key in measures}
    return done[0] | medians | {"runs": len(done)}
