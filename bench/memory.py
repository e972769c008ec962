"""What training was planned to take in RAM, and what it took: every model on ten shapes of data.

    python -m bench.memory                                  # the whole table
    python -m bench.memory --models dxml --shapes "wide header"

Each cell is a process of its own: it makes the documents, trains the model on a few such documents,
so that imports and compiled code are there, and then notes by how much training raises the
process's peak (VmHWM, so on Linux only). One pass is trained, as more take no more memory.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.models import get_model_class
from longtail.runtime import memory

TOLERANCE = 0.2  # of the measured peak
NOISE = 64 << 20  # bytes: glibc may keep freed pieces of up to 32 MiB, here of two threads

# Sizes that make most cells large enough to measure and small enough for a table.
SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"max_passes": 2},
    "knn": {},
    "forest": {"n_trees": 4, "min_split": 16, "share": 0.03},
    "lexical": {},
    "glas": {"dim": 64, "epochs": 1},
    "mnn": {"dim": 64, "epochs": 1},
    "dxml": {"dim": 64, "epochs": 1, "walks": 1},
    "rank-ae": {"dim": 48, "word_dim": 48, "epochs": 1},
    "attention-xml": {"hidden": 16, "word_dim": 32, "head": 16, "epochs": 1, "batch_size": 512},
    "fusion": {"members": "linear,knn"},
}
# Where more documents would take minutes.
MOST_DOCUMENTS = {"attention-xml": 5_000, "glas": 20_000, "mnn": 20_000, "rank-ae": 10_000}
MOST_DOCUMENTS["dxml"] = 20_000


class Shape(NamedTuple):
    """How many documents there are, and what they are like.

    Attributes:
        n: documents.
        n_features: columns of the header.
        n_labels: of the header.
        length: features of a document.
        carried: labels of a document.
        occurring: labels that occur; None for all.
        texts: whether the documents are texts.
        extremes: so many documents carry so many labels.
    """

    n: int
    n_features: int
    n_labels: int
    length: int
    carried: int
    occurring: int | None = None
    texts: bool = False
    extremes: tuple[int, int] = (0, 0)


SHAPES = {
    "many documents": Shape(300_000, 20_000, 500, 20, 2),
    "few documents": Shape(200, 500_000, 200, 5_000, 3),
    "many labels": Shape(20_000, 20_000, 100_000, 20, 5),
    "wide header": Shape(30_000, 2_000_000, 1_000, 40, 3),
    "declared labels": Shape(10_000, 20_000, 400_000, 40, 3, occurring=5_000),
    "long documents": Shape(800, 100_000, 300, 4_000, 5),
    "10,000 labels": Shape(10_000, 50_000, 10_000, 40, 5, extremes=(1, 10_000)),
    "5 × 100,000 labels": Shape(5_000, 50_000, 100_000, 40, 5, extremes=(5, 100_000)),
    "short texts": Shape(200_000, 50_000, 1_000, 12, 2, texts=True),
    "long texts": Shape(3_000, 50_000, 300, 1_500, 3, texts=True),
}
FEW = {"n": 200, "n_labels": 50, "length": 20, "carried": 2, "occurring": None, "extremes": (0, 0)}


def make_documents(shape: Shape) -> Dataset:
    """Return random documents of this shape."""
    rng = np.random.default_rng(0)
    X = _draw(rng, shape.n, shape.n_features, shape.length)
    Y = _draw(rng, shape.n, shape.occurring or shape.n_labels, shape.carried)
    Y = sp.csr_matrix((np.ones_like(Y.data), Y.indices, Y.indptr), (shape.n, shape.n_labels))
    n_extreme, n_carried = shape.extremes
    if n_extreme:
        wide = sp.csr_matrix(np.ones((n_extreme, n_carried), np.float32))
        wide.resize(n_extreme, shape.n_labels)
        Y = sp.csr_matrix(sp.vstack([wide, Y[n_extreme:]], "csr"))
    names = [str(label) for label in range(shape.n_labels)]
    if not shape.texts:
        return Dataset(Y, names, X=X)
    words = np.array([f"word{word:05d}" for word in range(shape.n_features)], object)
    return Dataset(Y, names, texts=[" ".join(words[X[i].indices]) for i in range(shape.n)])


def _draw(rng: np.random.Generator, n: int, n_columns: int, each: int) -> sp.csr_matrix:
    """Return a matrix with about `each` cells a row, small columns the most frequent."""
    columns = (rng.random((n, each)) ** 2 * n_columns).astype(np.int32)
    values = rng.random(n * each, np.float32)
    matrix = sp.csr_matrix((values, columns.ravel(), np.arange(n + 1) * each), (n, n_columns))
    matrix.sum_duplicates()
    return matrix


# -- one cell ----------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A model on a shape: bytes planned and bytes taken."""

    model: str
    shape: str
    planned: int
    taken: int

    @property
    def holds(self) -> bool:
        """Whether the plan told the truth."""
        return abs(self.planned - self.taken) <= max(TOLERANCE * self.taken, NOISE)

    def describe(self) -> str:
        """Return the cell as a line of the table."""
        planned, taken = (f"{size / (1 << 20):,.0f}" for size in (self.planned, self.taken))
        verdict = f"{self.planned / self.taken:.2f}{'' if self.holds else ' !'}"
        return f"| {self.model} | {self.shape} | {planned} | {taken} | {verdict} |"


def measure(model_name: str, shape_name: str) -> Cell:
    """Train the model in a new process; return what was planned and what it took."""
    command = [sys.executable, "-m", "bench.memory", "--cell", model_name, shape_name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{model_name} on {shape_name}: {done.stderr[-2000:]}")
    return Cell(model_name, shape_name, *json.loads(done.stdout))


def measure_here(model_name: str, shape_name: str) -> tuple[int, int]:
    """Train the model in this process; return the bytes planned and taken."""
    model_class, shape = get_model_class(model_name), SHAPES[shape_name]
    shape = shape._replace(n=min(shape.n, MOST_DOCUMENTS.get(model_name, shape.n)))
    if "rows" not in model_class.reads:
        shape = shape._replace(texts=True)
    settings = SETTINGS[model_name]
    if model_class.has_parameter("device"):
        settings = {**settings, "device": "cpu"}
    dataset = make_documents(shape)
    model_class(**settings).fit(make_documents(shape._replace(**FEW)))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    with noted_plans() as planned:
        model_class(**settings).fit(dataset)
    return max(planned), read_memory("VmHWM") - before


@contextmanager
def noted_plans() -> Iterator[list[int]]:
    """Yield what will hold the bytes that each memory plan made inside asks for."""
    planned: list[int] = []
    plan = memory.plan_memory

    def note_plan(needs: memory.Needs, **options: Any) -> str:
        planned.append(memory.total_ram(needs))
        return plan(needs, **options)

    with patch.object(memory, "plan_memory", note_plan):
        yield planned


def read_memory(field: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not tell {field}")


# -- the table ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return how many plans were wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(SETTINGS), help="such as linear,knn")
    parser.add_argument("--shapes", default="; ".join(SHAPES), help="separated by semicolons")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "SHAPE"), help="measure one, here")
    args = parser.parse_args(arguments)
    if args.cell:
        print(json.dumps(measure_here(*args.cell)))
        return 0
    print("| model | shape | planned, MiB | taken, MiB | planned / taken |\n|---|---|---|---|---|")
    wrong = 0
    for model_name in args.models.split(","):
        for shape_name in args.shapes.split(";"):
            cell = measure(model_name.strip(), shape_name.strip())
            wrong += not cell.holds
            print(cell.describe(), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
