"""`python -m bench.index_latency`: how soon the index answers one query, and what it finds.

The vectors are made up: topics within fields, so that there is something to divide into lists. As
a document has several labels, a query is the sum of three vectors of three topics, and as much
noise. `--spread` takes the topics away, which leaves nothing that lists could follow.
"label index" is what the labels of GLaS are searched by: PCA with re-ranking, lists, or all.
Beside ours stand the plain numpy product and, where it is installed, faiss' IVF with as many lists
and the fewest of them probed that reach the same recall. Each size runs in a process of its own.
All cores build the indexes, or a GPU (`--device cuda`); `--threads` threads search, on the CPU.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.table import markdown
from longtail.runtime.parallel import n_threads, set_threads
from longtail.search.index import Index, build_index
from longtail.search.pca import PCAIndex, build_label_index

Floats = NDArray[np.float32]
Ids = NDArray[Any]
Search = Callable[[Floats], Ids]

K = 10
N_ROUNDS = 3
SIZES = "25000x512,100000x512,1000000x256,1000000x512"
HEADINGS = ["vectors", "method", "lists probed", "recall@10", "build s", "one p50 ms", "p99 ms"]
HEADINGS += ["batch queries/s", "peak MB"]


def main() -> None:
    """Measure every size, then print one table."""
    args = _arguments()
    if args.one:
        for row in measure(args):
            print(json.dumps(row), flush=True)
        return
    rows: list[list[str]] = []
    for size in args.sizes.split(","):
        command = [sys.executable, "-m", "bench.index_latency", *sys.argv[1:], "--one", size]
        run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        rows += [json.loads(line) for line in run.stdout.splitlines()]
        print(run.stdout, end="", flush=True)
    print(f"\n{args.threads} threads, k = {K}, {args.queries} queries\n")
    print(markdown(HEADINGS, rows))


def make_up(n: int, dim: int, n_queries: int, spread: bool, seed: int = 0) -> tuple[Floats, Floats]:
    """Return unit vectors and queries."""
    rng = np.random.default_rng(seed)
    n_topics, n_fields = max(2, n // 50), 200
    fields = _unit(rng, n_fields, dim)
    topics = fields[rng.integers(n_fields, size=n_topics)] + _unit(rng, n_topics, dim)
    topic_of = np.sort(rng.integers(n_topics, size=n))
    vectors = np.empty((n, dim), np.float32)
    for first in range(0, n, 50_000):
        block = _unit(rng, min(50_000, n - first), dim)
        if not spread:
            block += topics[topic_of[first : first + len(block)]]
        vectors[first : first + len(block)] = _scale(block)
    three = vectors[rng.integers(n, size=(n_queries, 3))].sum(axis=1)
    return vectors, _scale(_scale(three) + _unit(rng, n_queries, dim))


def measure(args: argparse.Namespace) -> list[list[str]]:
    """Return the table's rows of one size."""
    n, dim = map(int, args.one.split("x"))
    vectors, queries = make_up(n, dim, 2 * args.queries, args.spread)
    examples, queries = queries[: args.queries], queries[args.queries :]
    start = time.perf_counter()
    exact = build_index(vectors, method="exact", device=args.device)
    truth, _ = exact.search(queries, K)
    exact.to("cpu")
    seconds = time.perf_counter() - start
    rows = [_row(args, "exact", "all", seconds, _searcher(exact), queries, truth)]
    del exact
    start = time.perf_counter()
    index = build_index(
        vectors,
        method="approximate",
        queries=examples,
        recall=args.recall,
        recall_at=K,
        device=args.device,
    ).to("cpu")
    seconds = time.perf_counter() - start
    probed = f"{index.n_probes} of {index.n_lists}"
    rows.append(_row(args, "approximate", probed, seconds, _searcher(index), queries, truth))
    start = time.perf_counter()
    labels = build_label_index(
        vectors, examples, recall=args.recall, recall_at=K, device=args.device
    ).to("cpu")
    seconds = time.perf_counter() - start
    rows.append(_row(args, "label index", how(labels), seconds, _searcher(labels), queries, truth))
    del labels
    if args.faiss:
        rows.append(_faiss_row(args, index.n_lists, vectors, queries, truth))

    def plain(queries: Floats) -> Ids:
        return np.argpartition(-(queries @ vectors.T), K, axis=1)[:, :K]

    rows.append(_row(args, "numpy product", "all", 0, plain, queries[:20], truth[:20]))
    return rows


def how(index: Index) -> str:
    """Return by which way the labels of GLaS are searched, the one that reads the least."""
    if isinstance(index, PCAIndex):
        return f"PCA {index.basis.shape[1]}, {index.n_candidates} candidates"
    return "all" if index.exact else f"{index.n_probes} of {index.n_lists}"


def _searcher(index: Index) -> Search:
    return lambda queries: index.search(queries, K)[0]


def _faiss_row(
    args: argparse.Namespace, n_lists: int, vectors: Floats, queries: Floats, truth: Ids
) -> list[str]:
    import faiss

    faiss.omp_set_num_threads(args.threads)
    start = time.perf_counter()
    dim = vectors.shape[1]
    ivf = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, n_lists, faiss.METRIC_INNER_PRODUCT)
    ivf.cp.max_points_per_centroid = 64
    ivf.train(vectors)
    ivf.add(vectors)
    seconds = time.perf_counter() - start

    def find(queries: Floats) -> Ids:
        return ivf.search(queries, K)[1]

    low, high = 1, n_lists
    while low < high:
        ivf.nprobe = (low + high) // 2
        if recall_of(find(queries), truth) >= args.recall:
            high = ivf.nprobe
        else:
            low = ivf.nprobe + 1
    ivf.nprobe = low
    return _row(args, "faiss IVF", f"{low} of {n_lists}", seconds, find, queries, truth)


def recall_of(found: Ids, truth: Ids) -> float:
    """Return the share of the true neighbours that were found."""
    return float((found[:, :, None] == truth[:, None, :]).any(axis=1).mean())


def _row(
    args: argparse.Namespace,
    method: str,
    probed: str,
    build_seconds: float,
    search: Search,
    queries: Floats,
    truth: Ids,
) -> list[str]:
    """Measure one method: query by query, in the quickest of some rounds, then all at once."""
    set_threads(args.threads)
    search(queries[:1])
    search(queries[:4])
    rounds = []
    for _ in range(N_ROUNDS):
        seconds, found = [], []
        for query in queries:
            start = time.perf_counter()
            found.append(search(query[None]))
            seconds.append(time.perf_counter() - start)
        rounds.append(np.percentile(seconds, [50, 99]) * 1e3)
    recall = recall_of(np.concatenate(found), truth)
    start = time.perf_counter()
    search(queries)
    rate = len(queries) / (time.perf_counter() - start)
    set_threads(None)
    p50, p99 = min(rounds, key=lambda times: float(times[0]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = args.one.replace("x", " × ")
    row = [size, method, probed, f"{recall:.4f}", f"{build_seconds:.1f}"]
    return [*row, f"{p50:.3f}", f"{p99:.3f}", f"{rate:,.0f}", f"{peak:,.0f}"]


def _unit(rng: np.random.Generator, n: int, dim: int) -> Floats:
    return _scale(rng.standard_normal((n, dim), dtype=np.float32))


def _scale(rows: Floats) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.index_latency", description=__doc__)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--threads", type=int, default=n_threads())
    parser.add_argument("--device", default="cpu", help="where the indexes are built")
    parser.add_argument("--spread", action="store_true", help="vectors without any structure")
    parser.add_argument("--faiss", action="store_true", help="measure faiss too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
