"""PCA with re-ranking: an index that scores projected vectors first, then the best in full.

Embeddings of labels and documents lie mostly along few directions. Vectors and queries are
projected to the quarter of the dimensions that their principal components give: for one query,
reading the projected vectors takes a quarter of the time. The first step ranks all vectors by their
quantized projections, the second re-ranks the best of them and finds exactly the k best among
these. How many candidates are needed for the recall wanted is measured when the index is built, on
queries of their own.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from longtail.progress import SILENT, Progress
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.schema import Schema, Value, floats, look_up, whole
from longtail.runtime.store import Files
from longtail.search.gpu import VectorsOnDevice, is_out_of_memory, multiply_transposed
from longtail.search.index import (
    LARGEST_EXACT,
    WORTH_A_THREAD,
    Found,
    Index,
    build_index,
    index_bytes,
)
from longtail.search.inverted import SURE
from longtail.search.kernels import (
    BLOCK,
    NOTHING,
    Best,
    Floats,
    Ids,
    Quantized,
    multiply_exactly,
    multiply_quantized,
    offer,
    padded,
    quantize,
    round_query,
    sort_best,
)

SMALLEST = 1 << 22  # bytes of int8 vectors; fewer are read in full in no time
SHARE = 4  # one in so many dimensions is kept
CANDIDATES = (2, 5, 10, 20, 40, 80, 160)  # times as many as are wanted
LARGEST_SCORES = 1 << 24  # scores of several queries at once, which then share what is read
N_SAMPLED = 1024  # scores that tell where about the best ones begin


class PCAIndex(Index):
    """Finds the vectors with the highest inner product among the best of their projections.

    Attributes:
        basis: (dim, r) the principal directions.
        n_candidates: how many vectors are re-ranked where `recall_at` are wanted.
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
        self._projected = quantize(np.concatenate(parts))
        super().__init__(vectors, "inner", recall=recall, recall_at=recall_at, device=device)

    @property
    def exact(self) -> bool:
        """Whether every search looks at all vectors in full."""
        return False

    def __repr__(self) -> str:
        """Say in one line what is searched, and how."""
        n, dim = self.vectors.shape
        measured = f"recall@{self.recall_at} {self.recall:.3f}"
        how = f"{self.basis.shape[1]} directions, {self.n_candidates} candidates, {measured}"
        return f"PCAIndex({n:,} vectors of {dim}, {self.device}: {how})"

    def _copy_to(self, device: str) -> VectorsOnDevice:
        on_device = super()._copy_to(device)
        on_device.add_projected(self._projected, self.basis.shape[1])
        return on_device

    def _count_candidates(self, k: int) -> int:
        """Return how many vectors are re-ranked where `k` are wanted."""
        return min(len(self), max(k, self.n_candidates * -(-k // self.recall_at)))

    def select(
        self, on_device: VectorsOnDevice, queries: Floats, k: int, n_probes: int
    ) -> Any | None:
        """Return which vectors (m, n) a search on a GPU re-ranks."""
        cuts = pairwise(cut(len(queries), n_threads()))
        parts = in_threads(project, [(queries[a:b], self.basis) for a, b in cuts])
        return on_device.best_projected(np.concatenate(parts), self._count_candidates(k))

    def search_cpu(self, queries: Floats, k: int, n_probes: int) -> Found:
        """Score the projections, then re-rank the best; there are no lists to probe."""
        projected, n = project(queries, self.basis), len(queries)
        wanted = self._count_candidates(k)
        if n < n_threads():
            scores = self._score_together(projected)
            return rerank(self.vectors, self.quantized, queries, scores, wanted, k)
        chunk = max(1, min(-(-n // n_threads()), LARGEST_SCORES // len(self)))
        tasks = [
            (
                self.vectors,
                self.quantized,
                self._projected,
                queries[a : a + chunk],
                projected[a : a + chunk],
            )
            for a in range(0, n, chunk)
        ]
        found = in_threads(search_projected, [(*task, wanted, k) for task in tasks])
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def _score_together(self, projected: Floats) -> Floats:
        """Score all projections, with all threads for the same few queries."""
        scores = np.empty((len(projected), len(self)), np.float32)
        n_pieces = max(1, min(n_threads(), self._projected.values.nbytes // WORTH_A_THREAD))
        pieces = pairwise(cut(len(self), n_pieces))
        in_threads(score_projected, [(self._projected, projected, a, b, scores) for a, b in pieces])
        return scores

    def add_to_files(self, files: Files, name: str = "index") -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        super().add_to_files(files, name)
        files.config[name] |= {"type": "pca", "n_candidates": self.n_candidates}
        files.arrays[f"{name}.basis"] = self.basis


def describe_index(files: Files, name: str, n: str, dim: str) -> Schema:
    """Return the schema of an index with or without PCA."""
    plain = Index.describe(files, name, n, dim)
    if look_up(files.config, name, "type") != "pca":
        return plain
    facts = {
        **cast(Mapping[str, Any], plain.config[name]),
        "type": Value(Literal["pca"]),
        "metric": Value(Literal["inner"]),
        "n_candidates": whole(at_most=n),
    }
    basis = floats(dim, f"{name}.n_directions")
    return plain | Schema({name: facts}, {f"{name}.basis": basis})


def open_index(files: Files, name: str) -> Index:
    """Take back an index with or without PCA."""
    index = Index.from_files(files, name)
    if files.config[name]["type"] != "pca":
        return index
    return PCAIndex(
        index.vectors,
        files.arrays[f"{name}.basis"],
        files.config[name]["n_candidates"],
        recall=index.recall,
        recall_at=index.recall_at,
    )


def build_label_index(
    vectors: Floats,
    queries: Floats,
    *,
    recall: float = 0.99,
    recall_at: int = 10,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Index:
    """Prepare label vectors for the highest inner products, in the way that reads the least.

    Args:
        vectors: (n, dim) the labels.
        queries: (m, dim) documents; half of them give the directions, half measure the recall.
        recall: share of the `recall_at` nearest that have to be found.
        recall_at: how many of the nearest the recall is about.
        seed: fixes what is random where there are inverted lists.
        device: "cpu", or "cuda" to build the index there and leave it there.
        progress: shows what takes long with many labels.
    """
    options: dict[str, Any] = {"recall": recall, "recall_at": recall_at, "seed": seed}
    try:
        return _build(vectors, queries, device, progress, options)
    except RuntimeError as error:
        if device == "cpu" or not is_out_of_memory(error):
            raise
        progress.say("Note: the GPU has too little memory for the label index; a CPU builds it")
        return _build(vectors, queries, "cpu", progress, options)


def _build(
    vectors: Floats, queries: Floats, device: str, progress: Progress, options: dict[str, Any]
) -> Index:
    """Try inverted lists where there are many vectors, then PCA, then read all."""
    n, dim = vectors.shape
    if n * (dim // SHARE) > LARGEST_EXACT:  # then inverted lists read less, if these help
        index = build_index(vectors, queries=queries, device=device, progress=progress, **options)
        if not index.exact:
            return index
    if n * dim > SMALLEST and dim >= 2 * SHARE and len(queries) >= 2:
        progress.stage("PCA of the labels", 1)
        projected = _build_pca(vectors, queries, options["recall"], options["recall_at"], device)
        if projected is not None:
            return projected
    return build_index(vectors, method="exact", device=device)


def label_index_bytes(n: int, dim: int, n_queries: int) -> int:
    """Return about what `build_label_index` takes beside the vectors themselves."""
    if n * dim <= SMALLEST or dim < 2 * SHARE:
        return index_bytes(n, dim)
    at_once = max(1, min(-(-n_queries // 2 // n_threads()), LARGEST_SCORES // n))
    projected = n * (8 * (dim // SHARE) + padded(dim // SHARE))
    return 2 * n * (padded(dim) + 12) + projected + 4 * n_threads() * n * at_once


def _build_pca(
    vectors: Floats, queries: Floats, recall: float, recall_at: int, device: str
) -> PCAIndex | None:
    """Return the index with the fewest candidates that reach the recall; None if too few do."""
    learned, trials = queries[::2], queries[1::2]
    basis = find_directions(vectors, learned, vectors.shape[1] // SHARE, device)
    truth, _ = build_index(vectors, method="exact", device=device).search(trials, recall_at)
    index = PCAIndex(vectors, basis, 1, recall=1.0, recall_at=recall_at, device=device)
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


def find_directions(vectors: Floats, queries: Floats, n: int, device: str = "cpu") -> Floats:
    """Return the `n` directions (dim, n) along which vectors and queries extend the most."""
    products = vectors.T @ vectors if device == "cpu" else multiply_transposed(device, vectors)
    spread = products / len(vectors) + queries.T @ queries / len(queries)
    _, directions = np.linalg.eigh(spread.astype(np.float64))  # the shortest first
    return np.ascontiguousarray(directions[:, : -n - 1 : -1], np.float32)


@njit(nogil=True, cache=True)
def score_projected(
    vectors: Quantized, queries: Floats, first: int, last: int, scores: Floats
) -> None:
    """Write the products of each query and the vectors first ≤ i < last, to some scale."""
    n = len(queries)
    rounded = np.zeros((n, vectors.values.shape[1]), np.int16)
    products = np.empty(BLOCK, np.int32)
    for q in range(n):
        round_query(queries[q], rounded[q])
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        for q in range(n):
            multiply_quantized(vectors.values[begin:end], rounded[q], products)
            for i in range(begin, end):
                scores[q, i] = products[i - begin] * vectors.scale[i]


@njit(nogil=True, cache=True)
def pick(scores: Floats, wanted: int) -> Ids:
    """Return the places of the `wanted` highest scores, and of those equal to the last of them."""
    n = len(scores)
    if wanted >= n:
        return np.arange(n, dtype=np.int32)
    probed = np.sort(scores[:: max(1, n // N_SAMPLED)])
    place = len(probed) - 1 - (3 * wanted * len(probed) // (2 * n) + 8)
    found = np.flatnonzero(scores >= probed[max(0, place)])
    if len(found) < wanted:
        found = np.arange(n)
    least = np.partition(scores[found], len(found) - wanted)[len(found) - wanted]
    picked: Ids = found[scores[found] >= least].astype(np.int32)
    return picked


@njit(nogil=True, cache=True)
def rerank(
    vectors: Floats, quantized: Quantized, queries: Floats, scores: Floats, wanted: int, k: int
) -> tuple[Ids, Floats]:
    """Return exactly the k best of the `wanted` candidates with the highest scores."""
    ids = np.full((len(queries), k), NOTHING, np.int32)
    best_scores = np.full((len(queries), k), np.float32(-np.inf))
    rounded = np.zeros(quantized.values.shape[1], np.int16)
    product = np.empty(1, np.int32)
    for q in range(len(queries)):
        query, best = round_query(queries[q], rounded), Best(ids[q], best_scores[q])
        candidates = pick(scores[q], wanted)
        near, far = np.empty(len(candidates)), np.empty(len(candidates))
        for place, i in enumerate(candidates):
            multiply_quantized(quantized.values[i : i + 1], rounded, product)
            about = product[0] * (quantized.scale[i] * query.scale)
            slack = query.length * quantized.slack[i] + 2e-45
            near[place], far[place] = about + slack, about - slack
        kth = np.partition(far, len(far) - k)[len(far) - k]  # k products are at least as high
        for place, i in enumerate(candidates):
            if near[place] >= kth:
                offer(best, i, multiply_exactly(vectors[i], query.values))
        sort_best(best)
    return ids, best_scores


@njit(nogil=True, cache=True)
def search_projected(
    vectors: Floats,
    quantized: Quantized,
    projected_vectors: Quantized,
    queries: Floats,
    projected: Floats,
    wanted: int,
    k: int,
) -> tuple[Ids, Floats]:
    """Do both steps for some queries."""
    scores = np.empty((len(queries), len(vectors)), np.float32)
    score_projected(projected_vectors, projected, 0, len(vectors), scores)
    return rerank(vectors, quantized, queries, scores, wanted, k)


@njit(nogil=True, cache=True)
def project(vectors: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors·basis (n, r), each row by itself, as BLAS would round by the batch."""
    projected = np.zeros((len(vectors), basis.shape[1]), np.float32)
    for i in range(len(vectors)):
        row = projected[i]
        for j in range(basis.shape[0]):
            row += vectors[i, j] * basis[j]
    return projected
