"""Sketches: an index that looks at a few directions of every vector, then at the best ones whole.

Embeddings of labels and documents lie mostly along few directions. A quarter of them, found by the
principal components of vectors and queries, tells which vectors are worth a closer look: for one
query, reading that quarter of all vectors takes a quarter of the time. The first look ranks by the
codes alone, the second finds exactly the best of its candidates. How many candidates are needed for
the recall wanted is measured when the index is built, on queries of their own.
"""

from itertools import pairwise
from typing import Any, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

from longtail.progress import SILENT, Progress
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.store import Files
from longtail.search.index import (
    LARGEST_EXACT,
    WORTH_A_THREAD,
    Found,
    Index,
    build_index,
    check_floats,
    copy_to,
    encode,
)
from longtail.search.kernels import (
    BLOCK,
    NOTHING,
    Best,
    Codes,
    Floats,
    Ids,
    multiply_codes,
    multiply_exactly,
    offer,
    round_query,
    sort_best,
)

SMALLEST = 1 << 22  # bytes of codes; fewer are read whole in no time
SHARE = 4  # of the directions, one in so many is looked at
CANDIDATES = (2, 5, 10, 20, 40, 80, 160)  # times as many as are wanted
N_GLANCED = 1 << 24  # scores of several queries at once, which then share what is read
N_PROBED = 1024  # scores that tell where about the best ones begin
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
        cuts = cut(len(vectors), 4 * n_threads())
        parts = in_threads(project, [(vectors[a:b], basis) for a, b in pairwise(cuts)])
        self._sketch = encode(np.concatenate(parts))
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
        projected, n = project(queries, self.basis), len(queries)
        wanted = min(len(self), max(k, self.n_candidates * -(-k // self.recall_at)))
        if n < n_threads():
            scores = self._glance_together(projected)
            return look_again(self.vectors, self.codes, queries, scores, wanted, k)
        chunk = max(1, min(-(-n // n_threads()), N_GLANCED // len(self)))
        tasks = [
            (
                self.vectors,
                self.codes,
                self._sketch,
                queries[a : a + chunk],
                projected[a : a + chunk],
            )
            for a in range(0, n, chunk)
        ]
        found = in_threads(look_twice, [(*task, wanted, k) for task in tasks])
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def _glance_together(self, projected: Floats) -> Floats:
        """Look at all sketches, with all threads for the same few queries."""
        scores = np.empty((len(projected), len(self)), np.float32)
        n_pieces = max(1, min(n_threads(), self._sketch.values.nbytes // WORTH_A_THREAD))
        pieces = pairwise(cut(len(self), n_pieces))
        in_threads(glance, [(self._sketch, projected, a, b, scores) for a, b in pieces])
        return scores

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
    vectors: Floats,
    queries: Floats,
    *,
    recall: float = 0.99,
    recall_at: int = 10,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Index:
    """Prepare label vectors for the highest inner products, in the way that reads the least.

    Args:
        vectors: (n, dim) the labels.
        queries: (m, dim) documents, of which half decide the directions and half the recall.
        recall: share of the `recall_at` nearest that have to be found.
        recall_at: how many of the nearest the recall is about.
        seed: fixes what is random where there are cells.
        progress: told about what takes long with many labels.
    """
    n, dim = vectors.shape
    n_sketched = n * (dim // SHARE)
    if n_sketched > LARGEST_EXACT:  # then cells read less, if vectors can be divided into cells
        options: dict[str, Any] = {"recall": recall, "recall_at": recall_at, "seed": seed}
        index = build_index(vectors, queries=queries, progress=progress, **options)
        if not index.exact:
            return index
    if n * dim > SMALLEST and dim >= 2 * SHARE and len(queries) >= 2:
        progress.stage("sketches of the labels", 1)
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
def glance(sketch: Codes, queries: Floats, first: int, last: int, scores: Floats) -> None:
    """Write how each query ranks the sketches first ≤ i < last: products, to some scale."""
    n = len(queries)
    rounded = np.zeros((n, sketch.values.shape[1]), np.int16)
    products = np.empty(BLOCK, np.int32)
    for q in range(n):
        round_query(queries[q], rounded[q])
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        for q in range(n):
            multiply_codes(sketch.values[begin:end], rounded[q], products)
            for i in range(begin, end):
                scores[q, i] = products[i - begin] * sketch.scale[i]


@njit(nogil=True, cache=True)
def pick(scores: Floats, wanted: int) -> Ids:
    """Return the places of the `wanted` highest scores, and of those equal to the last of them."""
    n = len(scores)
    if wanted >= n:
        return np.arange(n, dtype=np.int32)
    probed = np.sort(scores[:: max(1, n // N_PROBED)])
    place = len(probed) - 1 - (3 * wanted * len(probed) // (2 * n) + 8)
    found = np.flatnonzero(scores >= probed[max(0, place)])
    if len(found) < wanted:
        found = np.arange(n)
    least = np.partition(scores[found], len(found) - wanted)[len(found) - wanted]
    picked: Ids = found[scores[found] >= least].astype(np.int32)
    return picked


@njit(nogil=True, cache=True)
def look_again(
    vectors: Floats, codes: Codes, queries: Floats, scores: Floats, wanted: int, k: int
) -> tuple[Ids, Floats]:
    """Return exactly the k best of the `wanted` candidates that a first look gave."""
    ids = np.full((len(queries), k), NOTHING, np.int32)
    best_scores = np.full((len(queries), k), np.float32(-np.inf))
    rounded = np.zeros(codes.values.shape[1], np.int16)
    product = np.empty(1, np.int32)
    for q in range(len(queries)):
        query, best = round_query(queries[q], rounded), Best(ids[q], best_scores[q])
        candidates = pick(scores[q], wanted)
        near, far = np.empty(len(candidates)), np.empty(len(candidates))
        for place, i in enumerate(candidates):
            multiply_codes(codes.values[i : i + 1], rounded, product)
            about = product[0] * (codes.scale[i] * query.scale)
            slack = query.length * codes.slack[i] + 2e-45
            near[place], far[place] = about + slack, about - slack
        kth = np.partition(far, len(far) - k)[len(far) - k]  # k products are at least as high
        for place, i in enumerate(candidates):
            if near[place] >= kth:
                offer(best, i, multiply_exactly(vectors[i], query.values))
        sort_best(best)
    return ids, best_scores


@njit(nogil=True, cache=True)
def look_twice(
    vectors: Floats,
    codes: Codes,
    sketch: Codes,
    queries: Floats,
    projected: Floats,
    wanted: int,
    k: int,
) -> tuple[Ids, Floats]:
    """Do both looks for some queries."""
    scores = np.empty((len(queries), len(vectors)), np.float32)
    glance(sketch, projected, 0, len(vectors), scores)
    return look_again(vectors, codes, queries, scores, wanted, k)


@njit(nogil=True, cache=True)
def project(vectors: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors·basis (n, r), each row by itself, as BLAS would round by the batch."""
    projected = np.zeros((len(vectors), basis.shape[1]), np.float32)
    for i in range(len(vectors)):
        row = projected[i]
        for j in range(basis.shape[0]):
            row += vectors[i, j] * basis[j]
    return projected
