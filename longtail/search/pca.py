"""PCA with re-ranking: an index that scores projected vectors first, then the best in full.

Embeddings of labels and documents lie mostly along few directions. Vectors and queries are
projected to a sixteenth, an eighth or a quarter of the dimensions, along their principal
components: for one query, reading the projected vectors takes as much less time. The first step
ranks all vectors by their quantized projections, the second re-ranks the best of them and finds
exactly the k best among these. How many candidates the recall wanted takes is measured when the
index is built, on queries of their own; of the numbers of directions, the one that reads the
least is taken.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from longtail.progress import SILENT, Progress
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.quantized import QuantizedRows, multiply_row, padded
from longtail.runtime.schema import Schema, Value, floats, look_up, whole
from longtail.runtime.store import Files
from longtail.search.gpu import VectorsOnDevice, multiply_transposed
from longtail.search.index import (
    LARGEST_EXACT,
    LARGEST_VALUE,
    Found,
    Index,
    build_index,
    build_on,
    index_bytes,
)
from longtail.search.inverted import count_enough
from longtail.search.kernels import (
    BLOCK,
    NOTHING,
    Best,
    Floats,
    Ids,
    multiply_quantized,
    offer,
    round_query,
    slack_of,
    sort_best,
)

SMALLEST = 1 << 22  # bytes of int8 vectors; fewer are read in full in no time
SHARES = (16, 8, 4)  # one in so many dimensions is kept
MOST_KEPT = min(SHARES)
WORTH_A_THREAD = 1 << 23  # bytes of projected vectors; a second thread takes as long to wake up
WORTH_LISTS = 1 << 22  # bytes; who reads more may gain by inverted lists
SCATTERED = 6  # times as long as it takes to read vectors in a row, it takes for candidates
LARGEST_COST = 0.75  # of reading all vectors, which is simpler
LARGEST_SCORES = 1 << 24  # scores of several queries at once, which then share what is read
FEWEST_SAMPLED, MOST_SAMPLED = 128, 1024  # scores that tell where about the best ones begin


class PCAIndex(Index):
    """Finds the vectors with the highest inner product among the best of their projections.

    Attributes:
        basis: (dim, r) the principal directions.
        projected: (n, r) the vectors along these.
        n_candidates: how many vectors are re-ranked where `recall_at` are wanted.
    """

    def __init__(
        self,
        rows: QuantizedRows,
        basis: Floats,
        projected: QuantizedRows,
        n_candidates: int,
        *,
        recall: float,
        recall_at: int,
        device: str = "cpu",
    ) -> None:
        self.basis, self.projected, self.n_candidates = basis, projected, n_candidates
        super().__init__(
            rows, len(basis), "inner", recall=recall, recall_at=recall_at, device=device
        )

    @property
    def exact(self) -> bool:
        """Whether every search looks at all vectors in full."""
        return False

    @property
    def cost(self) -> float:
        """Bytes that it takes as long to read in a row as a search for one query takes."""
        candidates = self.n_candidates * padded(self.dim)
        return float(self.projected.codes.nbytes + SCATTERED * candidates)

    def __repr__(self) -> str:
        """Say in one line what is searched, and how."""
        measured = f"recall@{self.recall_at} {self.recall:.3f}"
        how = f"{self.basis.shape[1]} directions, {self.n_candidates} candidates, {measured}"
        return f"PCAIndex({len(self):,} vectors of {self.dim}, {self.device}: {how})"

    def _copy_to(self, device: str) -> VectorsOnDevice:
        on_device = super()._copy_to(device)
        on_device.add_projected(self.projected, self.basis.shape[1])
        return on_device

    def _count_candidates(self, k: int) -> int:
        """Return how many vectors are re-ranked where `k` are wanted."""
        return min(len(self), max(k, self.n_candidates * -(-k // self.recall_at)))

    def select(
        self, on_device: VectorsOnDevice, queries: Floats, k: int, n_probes: int
    ) -> Any | None:
        """Return which vectors (m, n) a search on a GPU re-ranks."""
        return on_device.best_projected(project_all(queries, self.basis), self._count_candidates(k))

    def search_cpu(self, queries: Floats, k: int, n_probes: int) -> Found:
        """Score the projections, then re-rank the best; there are no lists to probe."""
        wanted, n = self._count_candidates(k), len(queries)
        n_pieces = self.projected.codes.nbytes // WORTH_A_THREAD
        if n < n_threads() and n_pieces > 1:
            projected = project(queries, self.basis)
            scores = self._score_together(projected, min(n_threads(), n_pieces))
            return rerank(self.rows, queries, scores, wanted, k)
        chunk = max(1, min(-(-n // n_threads()), LARGEST_SCORES // len(self)))
        shared = (self.rows, self.projected, self.basis)
        tasks = [(*shared, queries[a : a + chunk], wanted, k) for a in range(0, n, chunk)]
        found = in_threads(search_projected, tasks)
        if len(found) == 1:
            return found[0]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def _score_together(self, projected: Floats, n_pieces: int) -> Floats:
        """Score all projections, with all threads for the same few queries."""
        scores = np.empty((len(projected), len(self)), np.float32)
        pieces = pairwise(cut(len(self), n_pieces))
        in_threads(score_projected, [(self.projected, projected, a, b, scores) for a, b in pieces])
        return scores

    def rank(self, queries: Floats, wanted: Ids) -> Ids:
        """Return the rank (m, k), from 0, of each query's `wanted` vectors by their projections."""
        projected = project_all(queries, self.basis)
        if self._on_device is not None:
            return self._on_device.rank_projected(projected, wanted)
        chunk = max(1, LARGEST_SCORES // len(self))
        tasks = [
            (self.projected, projected[a : a + chunk], wanted[a : a + chunk])
            for a in range(0, len(queries), chunk)
        ]
        return np.concatenate(in_threads(rank_projected, tasks))

    def add_to_files(self, files: Files, name: str = "index") -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        super().add_to_files(files, name)
        files.config[name] |= {"type": "pca", "n_candidates": self.n_candidates}
        files.arrays[f"{name}.basis"] = self.basis
        self.projected.add_to_files(files, f"{name}.projected")


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
    r = f"{name}.n_directions"
    basis = Schema({name: facts}, {f"{name}.basis": floats(dim, r)})
    projected = QuantizedRows.describe(f"{name}.projected", n, r, most=LARGEST_VALUE)
    return plain | basis | projected


def open_index(files: Files, name: str) -> Index:
    """Take back an index with or without PCA."""
    index = Index.from_files(files, name)
    if files.config[name]["type"] != "pca":
        return index
    return PCAIndex(
        index.rows,
        files.arrays[f"{name}.basis"],
        QuantizedRows.from_files(files, f"{name}.projected"),
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
    return build_on(
        device, lambda where: _build(vectors, queries, where, progress, options), progress
    )


def _build(
    vectors: Floats, queries: Floats, device: str, progress: Progress, options: dict[str, Any]
) -> Index:
    """Return the index that reads the least: by PCA, by inverted lists, or of all vectors."""
    n, dim = vectors.shape
    best: Index | None = None
    if worth_searching(n, dim) and len(queries) >= 2:
        progress.stage("PCA of the labels", 1)
        best = _build_pca(vectors, queries, options["recall"], options["recall_at"], device)
        progress.advance(1)
    if n * dim > LARGEST_EXACT and (best is None or best.cost > WORTH_LISTS):
        index = build_index(vectors, queries=queries, device=device, progress=progress, **options)
        if not index.exact and (best is None or index.cost < best.cost):
            return index
    return best or build_index(vectors, method="exact", device=device)


def worth_searching(n: int, dim: int) -> bool:
    """Whether so many labels are worth a search that does not look at all of them in full."""
    return n * dim > SMALLEST and dim >= 2 * max(SHARES)


def label_index_bytes(n: int, dim: int, n_queries: int) -> int:
    """Return about what `build_label_index` takes beside the vectors themselves."""
    if not worth_searching(n, dim):
        return index_bytes(n, dim)
    with_lists = index_bytes(n, dim) + n * padded(dim // MOST_KEPT)  # beside what PCA has made
    at_once = max(1, min(-(-n_queries // 2 // n_threads()), LARGEST_SCORES // n))
    projected = n * (8 * (dim // MOST_KEPT) + padded(dim // MOST_KEPT))
    with_pca = 2 * n * (padded(dim) + 8) + projected + 4 * n_threads() * n * at_once
    return max(with_lists, with_pca)


def _build_pca(
    vectors: Floats, queries: Floats, recall: float, recall_at: int, device: str
) -> PCAIndex | None:
    """Return the index that reads the least for the recall; None if reading all is as good."""
    n, dim = vectors.shape
    learned, trials = queries[::2], queries[1::2]
    basis = find_directions(vectors, learned, dim // MOST_KEPT, device)
    exact = build_index(vectors, method="exact", device=device)
    truth, _ = exact.search(trials, recall_at)
    projected = project_all(vectors, basis)
    best, least = None, LARGEST_COST * n * padded(dim)
    for r in (dim // share for share in SHARES):
        if n * padded(r) >= least:
            break
        index = PCAIndex(
            exact.rows,
            np.ascontiguousarray(basis[:, :r]),
            QuantizedRows.of(projected[:, :r]),
            1,
            recall=1.0,
            recall_at=recall_at,
            device=device,
        )
        ranks = index.rank(trials, truth)
        index.n_candidates = max(count_enough(ranks, recall), min(n, recall_at))
        index.recall = float((ranks < index.n_candidates).mean())
        if index.cost < least:
            best, least = index, index.cost
    return best


def find_directions(vectors: Floats, queries: Floats, n: int, device: str = "cpu") -> Floats:
    """Return the `n` directions (dim, n) along which vectors and queries extend the most."""
    products = vectors.T @ vectors if device == "cpu" else multiply_transposed(device, vectors)
    spread = products / len(vectors) + queries.T @ queries / len(queries)
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


def project_all(vectors: Floats, basis: Floats) -> Floats:
    """Return vectors·basis, by all threads."""
    cuts = pairwise(cut(len(vectors), 4 * n_threads()))
    return np.concatenate(in_threads(project, [(vectors[a:b], basis) for a, b in cuts]))


@njit(nogil=True, cache=True)
def score_projected(
    vectors: QuantizedRows, queries: Floats, first: int, last: int, scores: Floats
) -> None:
    """Write the products of each query and the vectors first ≤ i < last, to some scale."""
    n = len(queries)
    rounded = np.zeros((n, vectors.codes.shape[1]), np.int16)
    products = np.empty(BLOCK, np.int32)
    for q in range(n):
        round_query(queries[q], rounded[q])
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        for q in range(n):
            multiply_quantized(vectors.codes[begin:end], rounded[q], products)
            for i in range(begin, end):
                scores[q, i] = products[i - begin] * vectors.scale[i]


@njit(nogil=True, cache=True)
def rank_projected(vectors: QuantizedRows, queries: Floats, wanted: Ids) -> Ids:
    """Return how many vectors have a higher product than each of a query's `wanted` ones."""
    ranks = np.zeros(wanted.shape, np.int32)
    scores = np.empty((len(queries), len(vectors.codes)), np.float32)
    score_projected(vectors, queries, 0, len(vectors.codes), scores)
    for q in range(len(queries)):
        for place in range(wanted.shape[1]):
            own = scores[q, wanted[q, place]]
            higher = 0
            for score in scores[q]:
                higher += score > own
            ranks[q, place] = higher
    return ranks


@njit(nogil=True, cache=True)
def pick(scores: Floats, wanted: int) -> Ids:
    """Return the places of the `wanted` highest scores, and of those equal to the last of them."""
    n = len(scores)
    if wanted >= n:
        return np.arange(n, dtype=np.int32)
    n_sampled = min(max(FEWEST_SAMPLED, n // 100), MOST_SAMPLED)  # to sort more takes longer
    probed = np.sort(scores[:: n // n_sampled | 1])  # odd, as round ids may be special labels
    place = len(probed) - 1 - (3 * wanted * len(probed) // (2 * n) + 8)
    found = np.flatnonzero(scores >= probed[max(0, place)])
    if len(found) < wanted:
        found = np.arange(n)
    least = np.partition(scores[found], len(found) - wanted)[len(found) - wanted]
    picked: Ids = found[scores[found] >= least].astype(np.int32)
    return picked


@njit(nogil=True, cache=True)
def rerank(
    vectors: QuantizedRows, queries: Floats, scores: Floats, wanted: int, k: int
) -> tuple[Ids, Floats]:
    """Return exactly the k best of the `wanted` candidates with the highest scores."""
    ids = np.full((len(queries), k), NOTHING, np.int32)
    best_scores = np.full((len(queries), k), np.float32(-np.inf))
    rounded = np.zeros(vectors.codes.shape[1], np.int16)
    product = np.empty(1, np.int32)
    for q in range(len(queries)):
        query, best = round_query(queries[q], rounded), Best(ids[q], best_scores[q])
        candidates = pick(scores[q], wanted)
        most = query.length * slack_of(len(query.values))
        near, far = np.empty(len(candidates)), np.empty(len(candidates))
        for place, i in enumerate(candidates):
            multiply_quantized(vectors.codes[i : i + 1], rounded, product)
            about = product[0] * query.scale * vectors.scale[i]
            slack = most * vectors.scale[i] + 2e-45
            near[place], far[place] = about + slack, about - slack
        kth = np.partition(far, len(far) - k)[len(far) - k]  # k products are at least as high
        for place, i in enumerate(candidates):
            if near[place] >= kth:
                offer(best, i, multiply_row(vectors, i, query.values))
        sort_best(best)
    return ids, best_scores


@njit(nogil=True, cache=True)
def search_projected(
    vectors: QuantizedRows,
    projected: QuantizedRows,
    basis: Floats,
    queries: Floats,
    wanted: int,
    k: int,
) -> tuple[Ids, Floats]:
    """Do both steps for some queries."""
    n = len(vectors.scale)
    scores = np.empty((len(queries), n), np.float32)
    score_projected(projected, project(queries, basis), 0, n, scores)
    return rerank(vectors, queries, scores, wanted, k)
