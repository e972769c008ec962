"""Index: the vectors with the highest inner product or cosine, exactly or nearly so.

How a search goes. Every vector is kept twice: as float32, and as one byte a dimension with a scale
(a quarter of the memory traffic). The query is rounded to 16 bits, so a product of both is a sum
of whole numbers, to which `slack` × the query's length is added: by Cauchy and Schwarz no vector's
true product can lie above that bound. Only vectors whose bound reaches the worst of the k best so
far are multiplied in float32. What is found is therefore exactly the k best of all vectors that
were looked at, whatever the rounding. An exact index looks at all; an approximate one divides the
vectors into cells by k-means and looks at the `n_probed` cells whose centres suit the query best.

Why results never depend on the batch. Sums of whole numbers have no order, the final products are
summed in float64 in one fixed order, and each query is treated by itself. No BLAS takes part, whose
rounding varies with the shapes of its matrices and the number of threads. On a GPU the candidates
come from a matrix product, with a margin for its rounding, and the same final products on the CPU
decide; so the GPU, too, returns the very same ids and scores as an exact search on the CPU.

Equal scores are ordered by the lower id.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast, get_args

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from longtail.errors import DataError, MissingExtraError, ParameterError
from longtail.parallel import n_threads
from longtail.progress import SILENT, Progress
from longtail.store import Files
from longtail.topk import NO_LABEL, TopK

Metric = Literal["inner", "cosine"]
Method = Literal["auto", "exact", "approximate"]
Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Found = tuple[Ids, Floats]
Result = TypeVar("Result")

LARGEST_EXACT = 1 << 25  # bytes of codes; more are divided into cells by method="auto"
LARGEST_SHARE = 0.5  # of the vectors; where cells must open more for the recall, all are searched
LARGEST_VALUE = 1e15  # beyond it, products leave the range of float32
RECALL_AT = 10
N_TRIALS = 1000  # queries by which the number of cells to open is chosen

BLOCK = 256  # codes multiplied at a stretch; with 512 dimensions they fit the L2 cache twice
GROUP = 64  # queries that pass over a block together
WIDTH = 32  # codes are padded with zeros to a multiple of this, so that vector code has no rest
WORTH_A_THREAD = 1 << 21  # bytes of codes; a second thread costs about as much as reading these
LARGEST_PRODUCT = 1 << 26  # scores at once on a GPU
GPU_ROUNDING = 2.0**-10  # of a product, if its matrices are rounded to TF32
GPU_SPARE = 64  # candidates beyond k

ROUNDS = 10  # of k-means
VECTORS_A_CELL = 64  # that k-means learns from

_NOTHING = np.int32(np.iinfo(np.int32).max)  # an id worse than all others


class Codes(NamedTuple):
    """Vectors rounded to one byte a dimension.

    Attributes:
        values: (n, d) whole numbers from -127 to 127, d padded to a multiple of `WIDTH`.
        scale: (n,) what a row of `values` is multiplied by to come near the vector.
        slack: (n,) how far a product can lie above that of the rounded vectors, at most, for
            a query of length 1.
    """

    values: NDArray[np.int8]
    scale: Floats
    slack: Floats


class Cells(NamedTuple):
    """Vectors divided by where they point; an exact index has one cell for all.

    Attributes:
        centres: the codes of the cells' mean directions.
        start: (n_cells + 1,) where the vectors of each cell begin in `order`.
        order: (n,) the vectors' ids, cell by cell.
    """

    centres: Codes
    start: NDArray[np.int64]
    order: Ids


# ------------------------------------------------------------------------------------ the index


class Index:
    """Finds the nearest of many vectors; made by `build_index` or `from_files`.

    Attributes:
        vectors: (n, dim) the vectors, of length 1 if the metric is the cosine.
        metric: "inner" or "cosine".
        n_probed: how many cells are opened for a query.
        recall: share of the `RECALL_AT` best that are found, measured when it was built.
        device: "cpu", or the GPU that searches.
    """

    def __init__(
        self,
        vectors: Floats,
        metric: Metric,
        *,
        centres: Floats | None = None,
        start: NDArray[np.int64] | None = None,
        order: Ids | None = None,
        n_probed: int = 1,
        recall: float = 1.0,
        device: str = "cpu",
    ) -> None:
        n, dim = vectors.shape
        self.vectors = vectors
        self.metric: Metric = metric
        self.n_probed = n_probed
        self.recall = recall
        self.centres = np.zeros((1, dim), np.float32) if centres is None else centres
        start = np.array([0, n], np.int64) if start is None else start
        order = np.arange(n, dtype=np.int32) if order is None else order
        self.cells = Cells(encode(self.centres), start, order)
        self._codes: Codes | None = None
        self._on_device: Any = None
        self.to(device)

    @property
    def n_cells(self) -> int:
        """Into how many cells the vectors are divided; 1 if the index is exact."""
        return len(self.cells.start) - 1

    @property
    def exact(self) -> bool:
        """Whether every search looks at all vectors."""
        return self.n_probed == self.n_cells or self.device != "cpu"

    @property
    def codes(self) -> Codes:
        """The vectors' codes in the order of the cells, made when they are first needed."""
        if self._codes is None:
            self._codes = encode(self.vectors, self.cells.order)
        return self._codes

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self.vectors)

    def __repr__(self) -> str:
        """Say in one line what is searched, and how."""
        how = "exact"
        if not self.exact:
            how = f"{self.n_probed} of {self.n_cells} cells, recall@{RECALL_AT} {self.recall:.3f}"
        n, dim = self.vectors.shape
        return f"Index({n:,} vectors of {dim}, {self.metric}, {self.device}: {how})"

    def to(self, device: str) -> Self:
        """Search on `device` from now on: "cpu", or "cuda" (always exact, as that is quick)."""
        self.device = device
        self._on_device = None if device == "cpu" else _copy_to(device, self.vectors)
        return self

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Return ids and scores (n, k) of the `k` best vectors for each query, best first.

        Args:
            queries: (n, dim); with the cosine they need not have length 1.
            k: how many are wanted; where there are fewer vectors, all are returned.
        """
        if k < 1:
            raise ParameterError(f"k must be at least 1. Got {k} instead.")
        checked = _check_matrix(queries, "queries")
        if checked.shape[1] != self.vectors.shape[1]:
            raise DataError(
                f"the queries have {checked.shape[1]} dimensions, "
                f"but the index holds vectors of {self.vectors.shape[1]}"
            )
        if self.metric == "cosine":
            checked = to_unit(checked)
        k = min(k, len(self))
        if len(checked) == 0:
            return np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        if self.device != "cpu":
            return self._search_device(checked, k)
        return self._search_cells(checked, k, self.n_probed)

    def _search_cells(self, queries: Floats, k: int, n_probed: int) -> Found:
        """Search on the CPU: one thread for some of the queries, or for some of the vectors."""
        work = (self.vectors, self.codes, self.cells)
        n, n_workers = len(queries), n_threads()
        if n >= n_workers:
            chunk = min(GROUP, -(-n // n_workers))
            tasks = [
                (*work, queries[first : first + chunk], k, n_probed, 0, 1)
                for first in range(0, n, chunk)
            ]
            found = _in_threads(_search, tasks)
            return np.concatenate([ids for ids, _ in found]), np.concatenate(
                [scores for _, scores in found]
            )
        size = self.codes.values.nbytes // self.n_cells * n_probed
        n_pieces = max(1, min(n_workers, size // WORTH_A_THREAD))
        pieces = [(*work, queries, k, n_probed, piece, n_pieces) for piece in range(n_pieces)]
        found = _in_threads(_search, pieces)
        if len(found) == 1:
            return found[0]
        return _merge(
            np.hstack([ids for ids, _ in found]), np.hstack([scores for _, scores in found]), k
        )

    def _search_device(self, queries: Floats, k: int) -> Found:
        """Find candidates by a matrix product on the GPU; decide among them on the CPU."""
        rows = max(1, LARGEST_PRODUCT // len(self))
        width = min(len(self), k + GPU_SPARE)
        ids = np.empty((len(queries), k), np.int32)
        scores = np.empty((len(queries), k), np.float32)
        for first in range(0, len(queries), rows):
            block = queries[first : first + rows]
            candidates, whole = self._on_device.candidates(block, k, width)
            cuts = _cuts(len(block), n_threads())
            tasks = [(self.vectors, block[a:b], candidates[a:b], k) for a, b in pairwise(cuts)]
            found = _in_threads(_decide, tasks)
            ids[first : first + rows] = np.concatenate([part for part, _ in found])
            scores[first : first + rows] = np.concatenate([part for _, part in found])
            if not whole.all():  # so many nearly equal scores that the width did not hold them
                torn = np.flatnonzero(~whole)
                ids[first + torn], scores[first + torn] = self._search_cells(
                    block[torn], k, self.n_cells
                )
        return ids, scores

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files, name: str = "index") -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        files.config[name] = {
            "metric": self.metric,
            "n_cells": self.n_cells,
            "n_probed": self.n_probed,
            "recall": self.recall,
        }
        files.arrays[f"{name}.vectors"] = self.vectors
        if self.n_cells > 1:
            files.arrays[f"{name}.centres"] = self.centres
            files.arrays[f"{name}.start"] = self.cells.start
            files.arrays[f"{name}.order"] = self.cells.order

    @classmethod
    def from_files(cls, files: Files, name: str = "index", *, device: str = "cpu") -> Self:
        """Take back what `add_to_files` wrote; raises ValueError for what cannot be an index."""
        config = files.config[name]
        arrays = {
            part: np.require(files.arrays[f"{name}.{part}"], requirements=["C", "A", "W"])
            for part in ("vectors", "centres", "start", "order")
            if part == "vectors" or config["n_cells"] != 1
        }
        _check_parts(arrays, config)
        return cls(
            **cast(dict[str, Any], arrays),
            metric=config["metric"],
            n_probed=config["n_probed"],
            recall=config["recall"],
            device=device,
        )


def _check_parts(arrays: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
    """Raise ValueError unless all parts fit together; compiled code does not check again."""
    n_cells, n_probed, recall = config["n_cells"], config["n_probed"], config["recall"]
    if config["metric"] not in get_args(Metric):
        raise ValueError(f"there is no metric {config['metric']!r}")
    if type(n_cells) is not int or type(n_probed) is not int or not 1 <= n_probed <= n_cells:
        raise ValueError(f"{n_probed!r} of {n_cells!r} cells cannot be opened")
    if not isinstance(recall, float | int) or not 0 <= recall <= 1:
        raise ValueError(f"{recall!r} is no recall")
    vectors = arrays["vectors"]
    _check_floats("vectors", vectors)
    if n_cells == 1:
        return
    centres, start, order = arrays["centres"], arrays["start"], arrays["order"]
    _check_floats("centres", centres)
    if centres.shape != (n_cells, vectors.shape[1]):
        raise ValueError(f"centres have the shape {centres.shape}")
    if start.dtype != np.int64 or start.shape != (n_cells + 1,):
        raise ValueError("start is not one row of int64, one entry more than cells")
    if start[0] != 0 or start[-1] != len(vectors) or (start[1:] < start[:-1]).any():
        raise ValueError("start does not divide the vectors")
    if order.dtype != np.int32 or order.shape != (len(vectors),):
        raise ValueError("order is not one row of int32, one entry a vector")
    if (order < 0).any() or (np.bincount(order, minlength=len(order)) != 1).any():
        raise ValueError("order does not hold every vector once")


def _check_floats(name: str, array: NDArray[Any]) -> None:
    if array.dtype != np.float32 or array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} is not a matrix of float32")
    if not _bounded(array):
        raise ValueError(f"{name} holds values that are not finite or too large")


def _bounded(matrix: NDArray[Any]) -> bool:
    return bool(matrix.min() >= -LARGEST_VALUE and matrix.max() <= LARGEST_VALUE)


def _check_matrix(matrix: NDArray[Any], name: str) -> Floats:
    """Return `matrix` as the float32 matrix that compiled code expects, or say what is wrong."""
    checked = np.require(matrix, np.float32, ["C", "A", "W"])
    if checked.ndim != 2:
        raise DataError(f"the {name} must be a matrix; got an array of shape {checked.shape}")
    if checked.size and not _bounded(checked):
        raise DataError(
            f"the {name} hold values that are not finite or beyond ±{LARGEST_VALUE:g}; "
            "nothing is near or far from these"
        )
    return cast(Floats, checked)


# ------------------------------------------------------------------------------------- building


def build_index(
    vectors: NDArray[Any],
    *,
    metric: Metric = "inner",
    method: Method = "auto",
    queries: NDArray[Any] | None = None,
    recall: float = 0.99,
    n_cells: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = SILENT,
) -> Index:
    """Prepare `vectors` (n, dim) for searching.

    Args:
        vectors: float32 is not copied, unless for the cosine; do not change it afterwards.
        metric: "inner" for the highest inner product, "cosine" for the highest cosine.
        method: "auto" is exact while that is quick, and where cells would not help.
        queries: (m, dim) examples of what will be searched for, to measure the recall by;
            without them, the vectors themselves, half drowned in noise, are taken.
        recall: share of the nearest that an approximate search has to find.
        n_cells: how many cells to make; about 2√n by default.
        device: "cpu", or "cuda" to search there, always exactly; the cells are made all the
            same, for a CPU that the index may be loaded on later.
        seed: fixes the cells and the examples.
        progress: told about the rounds of k-means.
    """
    _check_choice("metric", metric, get_args(Metric))
    _check_choice("method", method, get_args(Method))
    if not 0 < recall <= 1:
        raise ParameterError(f"The 'recall' of an index must be in (0, 1]. Got {recall!r} instead.")
    if n_cells is not None and n_cells < 2:
        raise ParameterError(
            f"The 'n_cells' of an index must be at least 2. Got {n_cells} instead."
        )
    checked = _check_matrix(vectors, "vectors")
    if 0 in checked.shape:
        raise DataError(f"there is nothing to search in vectors of shape {checked.shape}")
    if metric == "cosine":
        checked = to_unit(checked)
    small = len(checked) * _padded(checked.shape[1]) <= LARGEST_EXACT
    if method == "exact" or (method == "auto" and small) or len(checked) < 4:
        return Index(checked, metric, device=device)
    rng = np.random.default_rng(seed)
    wanted = n_cells or round(2 * len(checked) ** 0.5)
    trials = _trials(checked, queries, rng)
    index = _cluster(checked, metric, min(wanted, len(checked) // 2), rng, progress)
    _choose_probes(index, to_unit(trials) if metric == "cosine" else trials, recall)
    if method == "auto" and index.n_probed > LARGEST_SHARE * index.n_cells:
        return Index(checked, metric, device=device)
    return index.to(device)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ParameterError(
            f"The '{name}' of an index must be {' or '.join(map(repr, known))}. "
            f"Got {value!r} instead."
        )


def _trials(vectors: Floats, queries: NDArray[Any] | None, rng: np.random.Generator) -> Floats:
    """Return queries to measure the recall by: some of those given, or vectors with noise."""
    if queries is not None and len(queries) > 1:
        given = _check_matrix(queries, "queries")
        if given.shape[1] != vectors.shape[1]:
            raise DataError(
                f"the queries have {given.shape[1]} dimensions, but the vectors {vectors.shape[1]}"
            )
        return given[np.sort(rng.choice(len(given), min(N_TRIALS, len(given)), replace=False))]
    chosen = vectors[np.sort(rng.choice(len(vectors), min(N_TRIALS, len(vectors)), replace=False))]
    noise = rng.standard_normal(chosen.shape, dtype=np.float32)
    noise *= np.sqrt((chosen**2).mean(axis=1, keepdims=True))
    return np.asarray(chosen + noise, np.float32)


def _cluster(
    vectors: Floats, metric: Metric, n_cells: int, rng: np.random.Generator, progress: Progress
) -> Index:
    """Divide the vectors into cells by spherical k-means on a part of them."""
    n = len(vectors)
    sample = vectors[np.sort(rng.choice(n, min(n, VECTORS_A_CELL * n_cells), replace=False))]
    sample = to_unit(sample)
    centres = sample[np.sort(rng.choice(len(sample), n_cells, replace=False))]
    progress.stage("index", ROUNDS * len(sample) + n)
    for _ in range(ROUNDS):
        cell = _nearest(sample, centres)
        sums, counts = _sum_by_cell(sample, cell, n_cells)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty))]
        centres = to_unit(sums)
        progress.advance(len(sample))
    cell = _nearest(vectors, centres)
    counts = np.bincount(cell, minlength=n_cells)
    progress.advance(n)
    return Index(
        vectors,
        metric,
        centres=centres[counts > 0],
        start=np.concatenate(([0], np.cumsum(counts[counts > 0]))).astype(np.int64),
        order=np.argsort(cell, kind="stable").astype(np.int32),
    )


def _nearest(vectors: Floats, centres: Floats) -> Ids:
    """Return for each vector the centre with the highest product."""
    codes = encode(centres)
    tasks = [(vectors[a:b], codes) for a, b in pairwise(_cuts(len(vectors), 4 * n_threads()))]
    return np.concatenate(_in_threads(_find_centres, tasks))


def _choose_probes(index: Index, trials: Floats, recall: float) -> None:
    """Open so many cells that each half of the trials reaches `recall`; measure by a search.

    A neighbour is found if its cell is opened, so the ranks of the neighbours' cells say at once
    how many are enough.
    """
    k = min(RECALL_AT, len(index))
    truth, _ = index._search_cells(trials, k, index.n_cells)
    cell_of = np.empty(len(index), np.int32)
    cell_of[index.cells.order] = np.repeat(
        np.arange(index.n_cells, dtype=np.int32), np.diff(index.cells.start)
    )
    cuts = _cuts(len(trials), n_threads())
    tasks = [(index.cells, trials[a:b], cell_of[truth[a:b]]) for a, b in pairwise(cuts)]
    ranks = np.concatenate(_in_threads(_rank_cells, tasks))
    halves = [np.sort(half, axis=None) for half in (ranks[::2], ranks[1::2]) if half.size]
    index.n_probed = 1 + max(int(half[int(np.ceil(recall * half.size)) - 1]) for half in halves)
    found, _ = index._search_cells(trials, k, index.n_probed)
    hits = (found[:, :, None] == truth[:, None, :]).any(axis=1)
    index.recall = float(hits.mean())


# ------------------------------------------------------------------------------------- threads

_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # a child has the pool, but none of its threads
    os.register_at_fork(after_in_child=_pools.clear)


def _in_threads(function: Callable[..., Result], tasks: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Call compiled code for each task; the pool stays, as starting one would cost a search."""
    if len(tasks) == 1 or n_threads() == 1:
        return [function(*task) for task in tasks]
    pool = _pools.get(n_threads()) or _pools.setdefault(
        n_threads(), ThreadPoolExecutor(n_threads())
    )
    others = [pool.submit(function, *task) for task in tasks[1:]]
    return [function(*tasks[0]), *(future.result() for future in others)]


def _cuts(n: int, n_parts: int) -> list[int]:
    """Return the borders of at most `n_parts` equal parts of n."""
    return sorted({n * part // n_parts for part in range(n_parts + 1)})


# ---------------------------------------------------------------------------------------- codes


def _padded(dim: int) -> int:
    return -(-dim // WIDTH) * WIDTH


def encode(vectors: Floats, order: Ids | None = None) -> Codes:
    """Round vectors to bytes, in the given order of rows."""
    n, dim = vectors.shape
    order = np.arange(n, dtype=np.int32) if order is None else order
    codes = Codes(
        np.zeros((n, _padded(dim)), np.int8), np.empty(n, np.float32), np.empty(n, np.float32)
    )
    # How far a query's own rounding can move a product, and some float32 roundings on top.
    rounding = dim**0.5 / (2 * largest_query_value(dim)) + 4e-6
    tasks = [
        (vectors, order, a, b, rounding, codes) for a, b in pairwise(_cuts(n, 4 * n_threads()))
    ]
    _in_threads(_encode, tasks)
    return codes


@njit(nogil=True, cache=True)
def largest_query_value(dim: int) -> int:
    """Return the largest value of a rounded query for which no product exceeds 32 bits."""
    return min(32767, (2**31 - 1) // (127 * dim))


@njit(nogil=True, cache=True)
def _encode(
    vectors: Floats, order: Ids, first: int, last: int, rounding: float, codes: Codes
) -> None:
    dim = vectors.shape[1]
    for i in range(first, last):
        row, own = vectors[order[i]], codes.values[i]
        largest = np.float32(0)
        for j in range(dim):
            largest = max(largest, abs(row[j]))
        scale = np.float32(largest / 127)
        length, error = 0.0, 0.0
        for j in range(dim):
            value = np.float64(row[j])
            code = 0.0
            if scale > 0:
                code = min(max(np.rint(value / scale), -127.0), 127.0)
            own[j] = np.int8(code)
            length += value * value
            error += (value - code * scale) ** 2
        codes.scale[i] = scale
        error = np.sqrt(error)
        codes.slack[i] = (error + rounding * (np.sqrt(length) + error)) * (1 + 1e-6)


@njit(nogil=True, cache=True)
def _round_query(query: Floats, rounded: NDArray[np.int16]) -> tuple[np.float32, np.float32]:
    """Round a query to 16 bits; return its scale and its length."""
    largest = np.float32(0)
    length = 0.0
    for j in range(len(query)):
        largest = max(largest, abs(query[j]))
        length += np.float64(query[j]) ** 2
    scale = np.float64(largest) / largest_query_value(len(query))
    for j in range(len(query)):
        rounded[j] = np.int16(np.rint(query[j] / scale)) if scale > 0 else 0
    return np.float32(scale), np.float32(np.sqrt(length))


@njit(nogil=True, cache=True)
def to_unit(matrix: Floats) -> Floats:
    """Return the rows with length 1; rows of zeros stay so."""
    unit = np.zeros_like(matrix)
    for i in range(matrix.shape[0]):
        squares = 0.0
        for j in range(matrix.shape[1]):
            squares += np.float64(matrix[i, j]) ** 2
        if squares > 0:
            scale = 1 / np.sqrt(squares)
            for j in range(matrix.shape[1]):
                unit[i, j] = np.float32(matrix[i, j] * scale)
    return unit


# -------------------------------------------------------------------------------- compiled search


@njit(nogil=True, cache=True)
def _multiply(
    values: NDArray[np.int8], query: NDArray[np.int16], products: NDArray[np.int32]
) -> None:
    """Multiply rows of codes with a rounded query; compiles to 16-bit multiply-and-add."""
    for i in range(len(values)):
        row = values[i]
        total = np.int32(0)
        for j in range(len(query)):
            total = np.int32(total + np.int32(np.int32(row[j]) * np.int32(query[j])))
        products[i] = total


@njit(nogil=True, cache=True)
def _product(a: Floats, b: Floats) -> np.float32:
    """Return the inner product, summed in float64 in an order that depends on the length only."""
    n = len(a)
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0
    for j in range(0, n - 7, 8):
        s0 += np.float64(a[j]) * np.float64(b[j])
        s1 += np.float64(a[j + 1]) * np.float64(b[j + 1])
        s2 += np.float64(a[j + 2]) * np.float64(b[j + 2])
        s3 += np.float64(a[j + 3]) * np.float64(b[j + 3])
        s4 += np.float64(a[j + 4]) * np.float64(b[j + 4])
        s5 += np.float64(a[j + 5]) * np.float64(b[j + 5])
        s6 += np.float64(a[j + 6]) * np.float64(b[j + 6])
        s7 += np.float64(a[j + 7]) * np.float64(b[j + 7])
    for j in range(n - n % 8, n):
        s0 += np.float64(a[j]) * np.float64(b[j])
    return np.float32(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))


@njit(nogil=True, cache=True)
def _put(ids: Ids, scores: Floats, new: np.int32, score: np.float32, size: int) -> None:
    """Replace the root of the heap, which holds the worst of the best on top."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            scores[other] < scores[child]
            or (scores[other] == scores[child] and ids[other] > ids[child])
        ):
            child = other
        if score < scores[child] or (score == scores[child] and new > ids[child]):
            break
        ids[place], scores[place] = ids[child], scores[child]
        place = child
    ids[place], scores[place] = new, score


@njit(nogil=True, cache=True)
def _offer(ids: Ids, scores: Floats, new: np.int32, score: np.float32) -> None:
    """Put `new` among the best if it is better than the worst of them."""
    if score > scores[0] or (score == scores[0] and new < ids[0]):
        _put(ids, scores, new, score, len(ids))


@njit(nogil=True, cache=True)
def _sort_best_first(ids: Ids, scores: Floats) -> None:
    """Empty the heap from its end, which leaves the best in front."""
    for size in range(len(ids) - 1, 0, -1):
        worst, score = ids[0], scores[0]
        _put(ids, scores, ids[size], scores[size], size)
        ids[size], scores[size] = worst, score


@njit(nogil=True, cache=True)
def _new_heaps(n: int, k: int) -> tuple[Ids, Floats]:
    return np.full((n, k), _NOTHING, np.int32), np.full((n, k), np.float32(-np.inf))


@njit(nogil=True, cache=True)
def _scan(
    vectors: Floats,
    codes: Codes,
    order: Ids,
    first: int,
    last: int,
    query: Floats,
    rounded: NDArray[np.int16],
    scale: np.float32,
    length: np.float32,
    ids: Ids,
    scores: Floats,
    products: NDArray[np.int32],
) -> None:
    """Offer the vectors at the places first ≤ i < last to one query's heap."""
    _multiply(codes.values[first:last], rounded, products)
    tiny = np.float32(1e-42)  # for products that float32 can hardly hold
    for i in range(first, last):
        bound = np.float32(products[i - first]) * codes.scale[i] * scale + (
            length * codes.slack[i] + tiny
        )
        if bound >= scores[0]:
            _offer(ids, scores, order[i], _product(vectors[order[i]], query))


@njit(nogil=True, cache=True)
def _open_cells(
    cells: Cells, rounded: NDArray[np.int16], n_probed: int, products: NDArray[np.int32]
) -> Ids:
    """Return the `n_probed` cells whose centres have the highest products, best first."""
    n_cells = len(cells.start) - 1
    best, scores = np.full(n_probed, _NOTHING, np.int32), np.full(n_probed, np.float32(-np.inf))
    for first in range(0, n_cells, BLOCK):
        last = min(first + BLOCK, n_cells)
        _multiply(cells.centres.values[first:last], rounded, products)
        for cell in range(first, last):
            score = np.float32(products[cell - first]) * cells.centres.scale[cell]
            _offer(best, scores, np.int32(cell), score)
    _sort_best_first(best, scores)
    return best


@njit(nogil=True, cache=True)
def _count_opened(cells: Cells, opened: Ids) -> int:
    total = 0
    for cell in opened:
        total += cells.start[cell + 1] - cells.start[cell]
    return total


@njit(nogil=True, cache=True)
def _search(
    vectors: Floats,
    codes: Codes,
    cells: Cells,
    queries: Floats,
    k: int,
    n_probed: int,
    piece: int,
    n_pieces: int,
) -> tuple[Ids, Floats]:
    """Return the k best for each query among one of `n_pieces` parts of the vectors looked at."""
    n, n_cells = len(queries), len(cells.start) - 1
    ids, scores = _new_heaps(n, k)
    rounded = np.zeros((n, codes.values.shape[1]), np.int16)
    scale, length = np.empty(n, np.float32), np.empty(n, np.float32)
    products = np.empty(BLOCK, np.int32)
    for q in range(n):
        scale[q], length[q] = _round_query(queries[q], rounded[q])
        if length[q] == 0 and piece == 0:  # all products are 0, so the lowest ids win
            for place in range(k):
                _offer(ids[q], scores[q], np.int32(place), np.float32(0))
    if n_probed == n_cells:  # block by block, so that all queries use it while it is in the cache
        begin, end = len(vectors) * piece // n_pieces, len(vectors) * (piece + 1) // n_pieces
        for first in range(begin, end, BLOCK):
            last = min(first + BLOCK, end)
            for q in range(n):
                if length[q] > 0:
                    _scan(
                        vectors, codes, cells.order, first, last, queries[q], rounded[q],
                        scale[q], length[q], ids[q], scores[q], products,
                    )  # fmt: skip
    else:
        for q in range(n):
            if length[q] > 0:
                _search_opened(
                    vectors, codes, cells, queries[q], rounded[q], scale[q], length[q],
                    n_probed, piece, n_pieces, ids[q], scores[q], products,
                )  # fmt: skip
    for q in range(n):
        _sort_best_first(ids[q], scores[q])
    return ids, scores


@njit(nogil=True, cache=True)
def _search_opened(
    vectors: Floats,
    codes: Codes,
    cells: Cells,
    query: Floats,
    rounded: NDArray[np.int16],
    scale: np.float32,
    length: np.float32,
    n_probed: int,
    piece: int,
    n_pieces: int,
    ids: Ids,
    scores: Floats,
    products: NDArray[np.int32],
) -> None:
    """Offer one piece of the vectors in the best cells, of which enough are opened to find k."""
    opened = _open_cells(cells, rounded, n_probed, products)
    total = _count_opened(cells, opened)
    if total < len(ids):
        opened = _open_cells(cells, rounded, len(cells.start) - 1, products)
        total, n_opened = 0, 0
        while n_opened < n_probed or total < len(ids):
            total += cells.start[opened[n_opened] + 1] - cells.start[opened[n_opened]]
            n_opened += 1
        opened = opened[:n_opened]
    begin, end = total * piece // n_pieces, total * (piece + 1) // n_pieces
    before = 0
    for cell in opened:
        size = cells.start[cell + 1] - cells.start[cell]
        offset = cells.start[cell] - before
        stop = min(before + size, end) + offset
        for first in range(max(before, begin) + offset, stop, BLOCK):
            _scan(
                vectors, codes, cells.order, first, min(first + BLOCK, stop), query, rounded,
                scale, length, ids, scores, products,
            )  # fmt: skip
        before += size


@njit(nogil=True, cache=True)
def _merge(ids: Ids, scores: Floats, k: int) -> tuple[Ids, Floats]:
    """Return the k best of each row."""
    best, best_scores = _new_heaps(len(ids), k)
    for q in range(len(ids)):
        for place in range(ids.shape[1]):
            _offer(best[q], best_scores[q], ids[q, place], scores[q, place])
        _sort_best_first(best[q], best_scores[q])
    return best, best_scores


@njit(nogil=True, cache=True)
def _decide(vectors: Floats, queries: Floats, candidates: Ids, k: int) -> tuple[Ids, Floats]:
    """Return the k best of each query's candidates; -1 is none."""
    ids, scores = _new_heaps(len(queries), k)
    for q in range(len(queries)):
        for candidate in candidates[q]:
            if candidate >= 0:
                score = _product(vectors[candidate], queries[q])
                _offer(ids[q], scores[q], candidate, score)
        _sort_best_first(ids[q], scores[q])
    return ids, scores


@njit(nogil=True, cache=True)
def _find_centres(vectors: Floats, centres: Codes) -> Ids:
    """Return for each vector the centre with the highest product, the first of equals."""
    n, n_cells = len(vectors), len(centres.values)
    nearest, best = np.zeros(n, np.int32), np.full(n, np.float32(-np.inf))
    products = np.empty(BLOCK, np.int32)
    rounded = np.zeros((GROUP, centres.values.shape[1]), np.int16)
    for begin in range(0, n, GROUP):
        end = min(begin + GROUP, n)
        for i in range(begin, end):
            _round_query(vectors[i], rounded[i - begin])
        for first in range(0, n_cells, BLOCK):
            last = min(first + BLOCK, n_cells)
            for i in range(begin, end):
                _multiply(centres.values[first:last], rounded[i - begin], products)
                for cell in range(first, last):
                    score = np.float32(products[cell - first]) * centres.scale[cell]
                    if score > best[i]:
                        best[i], nearest[i] = score, cell
    return nearest


@njit(nogil=True, cache=True)
def _sum_by_cell(vectors: Floats, cell: Ids, n_cells: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the sum of the vectors of each cell, and how many they are."""
    sums = np.zeros((n_cells, vectors.shape[1]), np.float32)
    counts = np.zeros(n_cells, np.int64)
    for i in range(len(vectors)):
        counts[cell[i]] += 1
        total, row = sums[cell[i]], vectors[i]
        for j in range(len(row)):
            total[j] += row[j]
    return sums, counts


@njit(nogil=True, cache=True)
def _rank_cells(cells: Cells, queries: Floats, wanted: Ids) -> Ids:
    """Return as the how many-th, from 0, each of a query's `wanted` cells would be opened."""
    n_cells = len(cells.start) - 1
    ranks = np.empty(wanted.shape, np.int32)
    rank = np.empty(n_cells, np.int32)
    products = np.empty(BLOCK, np.int32)
    rounded = np.zeros(cells.centres.values.shape[1], np.int16)
    for q in range(len(queries)):
        _round_query(queries[q], rounded)
        opened = _open_cells(cells, rounded, n_cells, products)
        for place in range(n_cells):
            rank[opened[place]] = place
        for place in range(wanted.shape[1]):
            ranks[q, place] = rank[wanted[q, place]]
    return ranks


# ----------------------------------------------------------------------------------------- GPU


class _OnDevice:
    """The vectors as a tensor, with a bound for the rounding of their products."""

    def __init__(self, torch: Any, device: str, vectors: Floats) -> None:
        self.torch = torch
        self.vectors = torch.from_numpy(vectors).to(device)
        rounding = GPU_ROUNDING + vectors.shape[1] * 2.0**-23
        self.slack = torch.linalg.vector_norm(self.vectors, dim=1) * rounding  # (n,)

    def candidates(self, queries: Floats, k: int, width: int) -> tuple[Ids, NDArray[np.bool_]]:
        """Return (m, width) ids, -1 for none, and for which queries no others can be better."""
        torch, device = self.torch, self.vectors.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            rows = torch.from_numpy(queries).to(device)
            products = rows @ self.vectors.T  # (m, n)
            slack = torch.linalg.vector_norm(rows, dim=1)[:, None] * self.slack
            low, _ = torch.topk(products - slack, k, dim=1)
            high, ids = torch.topk(products + slack, width, dim=1)
            possible = high >= low[:, -1:]
            whole = ~possible[:, -1] if width < len(self.vectors) else possible[:, 0]
            ids = torch.where(possible, ids, -1)
        return ids.to(torch.int32).cpu().numpy(), whole.cpu().numpy()


def _copy_to(device: str, vectors: Floats) -> _OnDevice:
    """Copy the vectors to a GPU, or say why that cannot be."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            f"Searching on the device '{device}' needs torch, which is not installed; "
            "install it with: pip install 'longtail[deep]'"
        ) from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ParameterError(f"There is no GPU to search on. Got the device {device!r}; use 'cpu'.")
    return _OnDevice(torch, device, vectors)


# --------------------------------------------------------------------------- labels of neighbours


def aggregate(ids: Ids, similarities: NDArray[Any], Y: sp.csr_matrix, k: int) -> TopK:
    """Rank labels by the share of a document's neighbours that carry them.

    A neighbour counts by its similarity, a negative one and the id -1 not at all; so the scores
    lie between 0 and 1, and a document without any similar neighbour gets no labels.

    Args:
        ids: (n, m) the neighbours of n documents: rows of `Y`.
        similarities: (n, m) how much each neighbour counts.
        Y: (n_neighbours, n_labels) the labels of the neighbours.
        k: how many labels to keep for each document; where there are fewer, all.
    """
    if k < 1:
        raise ParameterError(f"k must be at least 1. Got {k} instead.")
    ids = np.require(ids, np.int32, ["C", "A", "W"])
    weights = np.require(similarities, np.float32, ["C", "A", "W"])
    if ids.ndim != 2 or ids.shape != weights.shape:
        raise DataError(f"{ids.shape} neighbours have {weights.shape} similarities")
    if ids.size and (ids.min() < -1 or ids.max() >= Y.shape[0]):
        raise DataError(
            f"neighbours are numbered from {ids.min()} to {ids.max()}, "
            f"but labels are known of {Y.shape[0]}"
        )
    if not np.isfinite(weights).all():
        raise DataError("the similarities hold values that are not finite")
    labels = Y.indices.astype(np.int32, copy=False)
    start = Y.indptr.astype(np.int64, copy=False)
    k = min(k, Y.shape[1])
    tasks = [
        (ids[a:b], weights[a:b], start, labels, Y.shape[1], k)
        for a, b in pairwise(_cuts(len(ids), n_threads()))
    ]
    if not tasks:
        return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
    found = _in_threads(_aggregate, tasks)
    return TopK(
        np.concatenate([best for best, _ in found]), np.concatenate([part for _, part in found])
    )


@njit(nogil=True, cache=True)
def _aggregate(
    ids: Ids, weights: Floats, start: NDArray[np.int64], labels: Ids, n_labels: int, k: int
) -> tuple[Ids, Floats]:
    best, scores = _new_heaps(len(ids), k)
    sums = np.zeros(n_labels, np.float64)
    for i in range(len(ids)):
        total = 0.0
        for place in range(ids.shape[1]):
            neighbour, weight = ids[i, place], np.float64(weights[i, place])
            if neighbour < 0 or weight <= 0:
                continue
            total += weight
            if not 0 <= start[neighbour] <= start[neighbour + 1] <= len(labels):
                raise ValueError("Y is damaged: its rows lie outside of its cells")
            for cell in range(start[neighbour], start[neighbour + 1]):
                if not 0 <= labels[cell] < n_labels:
                    raise ValueError("Y is damaged: it holds a label that does not exist")
                sums[labels[cell]] += weight
        for place in range(ids.shape[1]):
            if ids[i, place] < 0 or weights[i, place] <= 0:
                continue
            for cell in range(start[ids[i, place]], start[ids[i, place] + 1]):
                label = labels[cell]
                if sums[label] > 0:  # and not offered yet
                    _offer(best[i], scores[i], label, np.float32(min(1.0, sums[label] / total)))
                    sums[label] = 0
        _sort_best_first(best[i], scores[i])
        for place in range(k):
            if best[i, place] == _NOTHING:
                best[i, place], scores[i, place] = NO_LABEL, 0
    return best, scores
