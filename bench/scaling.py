"""`python -m bench.scaling`: the same made-up documents with ever more labels.

Each size runs in a process of its own, so that memory is its own.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from bench.environments import PeerError
from bench.made_up import make_up
from bench.methods import METHODS
from bench.table import markdown
from bench.trial import Place, call, measure_top
from longtail.data.dataset import Dataset
from longtail.peers import Contender


def main() -> None:
    """Train and predict at every size, then print how time and memory grow."""
    args = _arguments()
    method = next(m for m in METHODS if m.name == args.method)
    results = []
    for n_labels in args.labels:
        result = run_size(method, args.documents, n_labels, args.threads, args.timeout)
        print(json.dumps(result), flush=True)
        results.append(result)
    print(f"\n{args.documents:,} made-up documents, {method.name}, {args.threads} threads\n")
    print(growth_table(results))


def run_size(
    method: Contender, n_documents: int, n_labels: int, threads: int, timeout: float
) -> dict[str, Any]:
    """Return what the runner measured for one number of labels."""
    made = make_up(n_documents=n_documents, n_labels=n_labels)
    result: dict[str, Any] = {"labels": n_labels}
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), Path(folder), threads, timeout)
        place.rows.mkdir()
        matrices = {"train_X": made.X, "train_Y": made.Y, "test_X": made.test_X}
        for name, matrix in matrices.items():
            sp.save_npz(place.rows / f"{name}.npz", matrix, compressed=False)
        try:
            result |= call(method, place)
        except PeerError as error:
            return result | {"error": str(error)}
        names = [str(label) for label in range(n_labels)]
        test = Dataset(made.test_Y, names, X=made.test_X)
        return result | measure_top(place, test, Dataset(made.Y, names, X=made.X))


def growth_table(results: list[dict[str, Any]]) -> str:
    """Return one row a size, with the growth against the size before it in brackets."""
    done = [result for result in results if "error" not in result]
    rows = []
    for before, now in zip([None, *done], done, strict=False):
        cells = [f"{now['labels']:,}"]
        for key, digits in _SHOWN:
            grown = f" (x{now[key] / before[key]:.2f})" if before and before[key] else ""
            cells.append(f"{now[key]:,.{digits}f}{grown}")
        rows.append(cells)
    rows += [[f"{r['labels']:,}", "failed", *[""] * 6] for r in results if "error" in r]
    return markdown(_HEADINGS, rows)


_SHOWN = [
    ("train_seconds", 1),
    ("train_cpu_seconds", 1),
    ("train_above_data_mb", 0),
    ("model_mb", 0),
    ("milliseconds_each", 3),
    ("single_p50_ms", 3),
    ("P@1", 1),
]
_HEADINGS = ["labels", "train s", "train CPU s", "above data MB", "model MB"]
_HEADINGS += ["batch ms a document", "one p50 ms", "P@1"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--labels", type=_sizes, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--method", default="longtail linear fast")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=3600)
    return parser.parse_args()


def _sizes(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
