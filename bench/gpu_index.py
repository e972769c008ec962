"""`python -m bench.gpu_index`: an index built and searched on a GPU against one of a CPU.

For an exact index, one of inverted lists and one by PCA it shows how long building and a batch of
queries take on both, and which share of the answers is the same in every bit. Lists are built the
same; the directions of PCA may differ in their last bits, so there the one built on the GPU is
searched on both.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from bench.index_latency import make_up
from bench.table import markdown
from longtail.runtime.quantized import QuantizedRows
from longtail.search.index import Index, build_index
from longtail.search.pca import PCAIndex, find_directions, project_all

K = 10
HEADINGS = ["index", "device", "build s", "queries/s", "equal answers"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every kind of index on both devices, then print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_index", description=__doc__)
    parser.add_argument("--size", default="25000x1024")
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(arguments)
    n, dim = map(int, args.size.split("x"))
    vectors, queries = make_up(n, dim, args.queries, spread=False)
    rows = []
    for kind in ("exact", "approximate", "PCA"):
        answers = []
        for device in ("cpu", args.device):
            began = time.perf_counter()
            index = build(kind, vectors, queries[:500], device)
            seconds = time.perf_counter() - began
            index.search(queries[:50], K)
            began = time.perf_counter()
            answers.append(index.search(queries, K))
            rate = len(queries) / (time.perf_counter() - began)
            rows.append([kind, device, f"{seconds:.1f}", f"{rate:,.0f}", ""])
        if kind == "PCA":
            answers[0] = index.to("cpu").search(queries, K)
        same = [a == b for a, b in zip(*answers, strict=True)]
        rows[-1][-1] = f"{np.logical_and(*same).mean():.4f}"
    print(f"{n:,} vectors of {dim}, {len(queries):,} queries\n")
    print(markdown(HEADINGS, rows))


def build(kind: str, vectors: np.ndarray, examples: np.ndarray, device: str) -> Index:
    """Return an index of a kind, built on a device and left there."""
    if kind == "PCA":
        basis = find_directions(vectors, examples, vectors.shape[1] // 4, device)
        rows, projected = QuantizedRows.of(vectors), QuantizedRows.of(project_all(vectors, basis))
        return PCAIndex(rows, basis, projected, 500, recall=1.0, recall_at=K, device=device)
    method = "exact" if kind == "exact" else "approximate"
    return build_index(vectors, method=method, queries=examples, device=device)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
