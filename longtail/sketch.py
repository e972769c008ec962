"""Sketches: an index that looks at a few directions of every vector, then at the best ones whole.

Embeddings of labels and documents lie mostly along few directions. A quarter of them, found by the
principal components of vectors and queries, tells which vectors are worth a closer look: for one
query, reading that quarter of all vectors takes a quarter of the time. How many candidates are
needed for the recall wanted is measured when the index is built, on queries of their own.
"""

from itertools import pairwise
from typing import Any, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

from longtail.index import (
    LARGEST_EXACT,
    Found,
    Index,
    build_index,
    check_floats,
    copy_to,
    cut,
    in_threads,
)
from longtail.nearest import Floats, decide
from longtail.parallel import n_threads
from longtail.store import Files

SMALLEST = 1 << 22  # bytes of codes; fewer are read whole in no time
SHARE = 4  # of the directions, one in so many is looked at
CANDIDATES = (2, 5, 10, 20, 40)  # times as many as are wanted
SURE = 1.645  # standard errors: the recall is reached with a probability of 95 %


class SketchedIndex(Index):
    """Finds the vectors with the highest inner product by a look at few directions first.

    Attributes:
        basis: (dim, r) the directions.
        n_candidates: how many vectors are looked at whole where `recall_at` are wanted.
    """

    def __init__(
        self,
        vectors: Floats,
        basis: Floats,
        n_candidates: int,
        *,
        recall: float,
        recall_at: int,
        device: str = "cpu",
    ) -> None:
        self.basis, self.n_candidates = basis, n_candidates
        self._sketch = build_index(project(vectors, basis), method="exact")
        super().__init__(vectors, "inner", recall=recall, recall_at=recall_at, device=device)

    @property
    def exact(self) -> bool:
        """Whether every search looks at all of all vectors."""
        return self.device != "cpu"

    def __repr__(self) -> str:
        """Say in one line what is searched, and how."""
        n, dim = self.vectors.shape
        measured = f"recall@{self.recall_at} {self.recall:.3f}"
        how = f"{self.basis.shape[1]} directions, {self.n_candidates} candidates, {measured}"
        return f"SketchedIndex({n:,} vectors of {dim}, {self.device}: {how})"

    def to(self, device: str) -> Self:
        """Search on `device` from now on: "cpu", or "cuda" (always exact, as that is quick)."""
        self.device = device
        self._on_device = None if device == "cpu" else copy_to(device, self.vectors)
        return self

    def search_cpu(self, queries: Floats, k: int) -> Found:
        """Find candidates along the basis, then decide among them."""
        wanted = min(len(self), self.n_candidates * max(1, -(-k // self.recall_at)))
        candidates, _ = self._sketch.search(project(queries, self.basis), wanted)
        cuts = cut(len(queries), n_threads())
        tasks = [(self.vectors, queries[a:b], candidates[a:b], k) for a, b in pairwise(cuts)]
        found = in_threads(decide, tasks)
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def add_to_files(self, files: Files, name: str = "index") -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        super().add_to_files(files, name)
        files.config[name]["n_candidates"] = self.n_candidates
        files.arrays[f"{name}.basis"] = self.basis


def open_index(files: Files, name: str) -> Index:
    """Take back an index of either kind; raise ValueError for what cannot be one."""
    index = Index.from_files(files, name)
    if "n_candidates" not in files.config[name]:
        return index
    n_candidates = files.config[name]["n_candidates"]
    basis = np.require(files.arrays[f"{name}.basis"], requirements=["C", "A", "W"])
    check_floats("basis", basis)
    if type(n_candidates) is not int or not 1 <= n_candidates <= len(index):
        raise ValueError(f"{n_candidates!r} candidates of {len(index)} vectors")
    if len(basis) != index.vectors.shape[1] or index.metric != "inner":
        raise ValueError(f"a basis of shape {basis.shape} for vectors {index.vectors.shape}")
    return SketchedIndex(
        index.vectors, basis, n_candidates, recall=index.recall, recall_at=index.recall_at
    )


def build_label_index(
    vectors: Floats, queries: Floats, *, recall: float = 0.99, recall_at: int = 10, seed: int = 0
) -> Index:
    """Prepare label vectors for the highest inner products, in the way that reads the least.

    Args:
        vectors: (n, dim) the labels.
        queries: (m, dim) documents, of which half decide the directions and half the recall.
        recall: share of the `recall_at` nearest that have to be found.
        recall_at: how many of the nearest the recall is about.
        seed: fixes what is random where there are cells.
    """
    n, dim = vectors.shape
    n_sketched = n * (dim // SHARE)
    if n_sketched > LARGEST_EXACT:  # then cells read less, if vectors can be divided into cells
        options: dict[str, Any] = {"recall": recall, "recall_at": recall_at, "seed": seed}
        index = build_index(vectors, queries=queries, **options)
        if not index.exact:
            return index
    if n * dim > SMALLEST and dim >= 2 * SHARE and len(queries) >= 2:
        sketched = _build_sketch(vectors, queries, recall, recall_at)
        if sketched is not None:
            return sketched
    return build_index(vectors, method="exact")


def _build_sketch(
    vectors: Floats, queries: Floats, recall: float, recall_at: int
) -> SketchedIndex | None:
    """Return the index with the fewest candidates that reach the recall; None if too few do."""
    learned, trials = queries[::2], queries[1::2]
    basis = find_directions(vectors, learned, vectors.shape[1] // SHARE)
    truth, _ = build_index(vectors, method="exact").search(trials, recall_at)
    index = SketchedIndex(vectors, basis, 1, recall=1.0, recall_at=recall_at)
    for times in CANDIDATES:
        index.n_candidates = min(len(vectors), times * recall_at)
        found, _ = index.search(trials, recall_at)
        hits = np.array(
            [np.isin(one, other).mean() for one, other in zip(truth, found, strict=True)]
        )
        index.recall = float(hits.mean())
        if index.recall - SURE * hits.std() / np.sqrt(len(hits)) >= recall:
            return index
    return None


def find_directions(vectors: Floats, queries: Floats, n: int) -> Floats:
    """Return the `n` directions (dim, n) along which vectors and queries extend the most."""
    spread = vectors.T @ vectors / len(vectors) + queries.T @ queries / len(queries)
    _, directions = np.linalg.eigh(spread.astype(np.float64))  # the shortest first
    return np.ascontiguousarray(directions[:, : -n - 1 : -1], np.float32)


@njit(nogil=True, cache=True)
def project(vectors: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors·basis (n, r), each row by itself, as BLAS would round by the batch."""
    projected = np.zeros((len(vectors), basis.shape[1]), np.float32)
    for i in range(len(vectors)):
        row = projected[i]
        for j in range(basis.shape[0]):
            row += vectors[i, j] * basis[j]
    return projected
