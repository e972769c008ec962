"""`python -m bench.dxml_graph`: how long the graph of many labels takes, and how much memory.

Documents are made up: each label follows others of its own region with a probability that falls
with distance, and frequencies have a long tail. Builds the co-occurrence graph, walks it, and makes
vectors of the walks as `dxml` does by default; prints seconds and the peak memory after each step.
"""

import argparse
import resource
import time
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from bench.table import markdown
from longtail.labels.graph import Walks, build_graph, learn_vectors
from longtail.progress import SILENT
from longtail.runtime.parallel import n_threads, set_threads

HEADINGS = ["step", "seconds", "CPU s", "peak MB", "what"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure every step, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.dxml_graph", description=__doc__)
    parser.add_argument("--labels", type=int, default=100_000)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--labels-each", type=float, default=5.0)
    parser.add_argument("--weighted", action="store_true")
    parser.add_argument("--walks", type=int, default=4)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--threads", type=int, default=n_threads())
    args = parser.parse_args(arguments)
    set_threads(args.threads)
    print(markdown(HEADINGS, measure(args)))


def make_up_labels(
    n_documents: int, n_labels: int, labels_each: float, seed: int = 0
) -> sp.csr_matrix:
    """Return Y: about `labels_each` labels a document, near a first one that is often frequent."""
    rng = np.random.default_rng(seed)
    counts = 1 + rng.poisson(labels_each - 1, n_documents)
    first = (n_labels * rng.random(n_documents) ** 3).astype(np.int64)
    start = np.concatenate(([0], np.cumsum(counts)))
    steps = np.rint(rng.laplace(scale=n_labels / 2000 + 2, size=start[-1])).astype(np.int64)
    steps[start[:-1]] = 0
    labels = (np.repeat(first, counts) + steps) % n_labels
    ones = np.ones(len(labels), np.float32)
    Y = sp.csr_matrix((ones, labels.astype(np.int32), start), shape=(n_documents, n_labels))
    Y.sum_duplicates()
    Y.data.fill(1)
    return Y


def measure(args: argparse.Namespace) -> list[list[str]]:
    """Return a row for each step."""
    clock = _Clock()
    Y = make_up_labels(args.documents, args.labels, args.labels_each)
    clock.note("documents", f"{Y.shape[0]:,} × {Y.nnz / Y.shape[0]:.1f} labels")
    build_graph(Y[:100])  # compiled before it is timed
    clock.note("compiling", "")
    graph = build_graph(Y, weighted=args.weighted)
    clock.note("graph", f"{graph.n_labels:,} labels, {len(graph.ends) // 2:,} edges")
    walks = Walks(graph, args.walks, args.length, seed=0)
    clock.note("walks", f"{int(walks.count().sum()):,} steps")
    vectors = learn_vectors(walks, args.dim, args.window, 0, SILENT)
    clock.note("vectors", f"{len(vectors):,} of {args.dim}, window {args.window}")
    return clock.rows


class _Clock:
    """Notes the time since the last note, and the most memory there ever was."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.began = time.perf_counter(), time.process_time()

    def note(self, step: str, what: str) -> None:
        now = time.perf_counter(), time.process_time()
        seconds = [f"{b - a:.1f}" for a, b in zip(self.began, now, strict=True)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.rows.append([step, *seconds, f"{peak:,.0f}", what])
        print(" ".join(self.rows[-1]), flush=True)
        self.began = time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
