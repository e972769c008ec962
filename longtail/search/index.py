"""Index: the vectors with the highest inner product or cosine, exactly or nearly so.

An exact index looks at all vectors. An approximate one divides them into cells by k-means and looks
at the `n_probed` cells whose centres suit the query best; how many are needed for the recall wanted
is measured when it is built. On a CPU the compiled code of `nearest` searches, which finds exactly
the k best of all vectors that it looks at. On a GPU a matrix product finds candidates, with a
margin for its rounding, and the same compiled code decides among them.

Results never depend on the batch: each query is treated by itself, and no BLAS takes part in a
decision, whose rounding varies with the shapes of its matrices and the number of threads. So a
batch gives the very bits of one by one, and a GPU those of an exact search on a CPU. Equal scores
are ordered by the lower id.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, MissingExtraError, ParameterError
from longtail.progress import SILENT, Progress
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.store import Files
from longtail.search.kernels import (
    GROUP,
    Cells,
    Codes,
    Floats,
    Ids,
    Searched,
    decide,
    encode_rows,
    find_centres,
    merge,
    rank_cells,
    search,
    sum_by_cell,
    to_unit,
)

Metric = Literal["inner", "cosine"]
Method = Literal["auto", "exact", "approximate"]
Found = tuple[Ids, Floats]

LARGEST_EXACT = 1 << 24  # bytes of codes; more are divided into cells by method="auto"
LARGEST_SHARE = 0.5  # of the vectors; where cells must open more for the recall, all are searched
LARGEST_VALUE = 1e15  # beyond it, products leave the range of float32
N_TRIALS = 1000  # queries by which the number of cells to open is chosen
SURE = 1.645  # standard errors: the recall is reached with a probability of 95 %

WIDTH = 32  # codes are padded with zeros to a multiple of this, so that vector code has no rest
WORTH_A_THREAD = 1 << 21  # bytes of codes; a second thread costs about as much as reading these
LARGEST_PRODUCT = 1 << 26  # scores at once on a GPU
GPU_ROUNDING = 2.0**-10  # of a product, if its matrices are rounded to TF32
GPU_SPARE = 64  # candidates beyond k

ROUNDS = 10  # of k-means
VECTORS_A_CELL = 64  # that k-means learns from


# ------------------------------------------------------------------------------------ the index


class Index:
    """Finds the nearest of many vectors; made by `build_index` or `from_files`.

    Attributes:
        vectors: (n, dim) the vectors, of length 1 if the metric is the cosine.
        metric: "inner" or "cosine".
        n_probed: how many cells are opened for a query.
        recall: share of the `recall_at` best that are found, measured when it was built.
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
        recall_at: int = 10,
        device: str = "cpu",
    ) -> None:
        n, dim = vectors.shape
        self.vectors = vectors
        self.metric: Metric = metric
        self.n_probed = n_probed
        self.recall = recall
        self.recall_at = recall_at
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
        """The vectors' codes in the order of the cells; a GPU seldom needs them."""
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
            measured = f"recall@{self.recall_at} {self.recall:.3f}"
            how = f"{self.n_probed} of {self.n_cells} cells, {measured}"
        n, dim = self.vectors.shape
        return f"Index({n:,} vectors of {dim}, {self.metric}, {self.device}: {how})"

    def to(self, device: str) -> Self:
        """Search on `device` from now on: "cpu", or "cuda" (always exact, as that is quick)."""
        self.device = device
        self._on_device = None
        if device != "cpu":
            self._on_device = copy_to(device, self.vectors)
        elif self._codes is None:
            self._codes = encode(self.vectors, self.cells.order)
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
        return self.search_cpu(checked, k)

    def search_cpu(self, queries: Floats, k: int) -> Found:
        """Search among the vectors of the cells that suit each query best."""
        return self._search_cells(queries, k, self.n_probed)

    def _search_cells(self, queries: Floats, k: int, n_probed: int) -> Found:
        """Search on the CPU: one thread for some of the queries, or for some of the vectors."""
        searched = Searched(self.vectors, self.codes, self.cells)
        n, n_workers = len(queries), n_threads()
        if n >= n_workers:
            chunk = min(GROUP, -(-n // n_workers))
            tasks = [
                (searched, queries[first : first + chunk], k, n_probed, 0, 1)
                for first in range(0, n, chunk)
            ]
            found = in_threads(search, tasks)
            return np.concatenate([ids for ids, _ in found]), np.concatenate(
                [scores for _, scores in found]
            )
        size = self.codes.values.nbytes // self.n_cells * n_probed
        n_pieces = max(1, min(n_workers, size // WORTH_A_THREAD))
        pieces = [(searched, queries, k, n_probed, piece, n_pieces) for piece in range(n_pieces)]
        found = in_threads(search, pieces)
        if len(found) == 1:
            return found[0]
        return merge(
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
            cuts = cut(len(block), n_threads())
            tasks = [(self.vectors, block[a:b], candidates[a:b], k) for a, b in pairwise(cuts)]
            found = in_threads(decide, tasks)
            ids[first : first + rows] = np.concatenate([part for part, _ in found])
            scores[first : first + rows] = np.concatenate([part for _, part in found])
            if not whole.all():  # so many nearly equal scores that the width did not hold them
                torn = np.flatnonzero(~whole)
                ids[first + torn], scores[first + torn] = self._search_cells(
                    block[torn], k, self.n_cells
                )
        return ids, scores

    # -- changing ---------------------------------------------------------------------------

    def set_probes(self, n_probed: int, queries: Floats, k: int) -> None:
        """Open `n_probed` cells from now on, and measure which share of the k nearest it finds."""
        self.n_probed = self.n_cells
        truth, _ = self.search(queries, k)
        self.n_probed = n_probed
        found, _ = self.search(queries, k)
        hits = [np.isin(one, other).mean() for one, other in zip(truth, found, strict=True)]
        self.recall = float(np.mean(hits))

    def extend(self, new: Floats) -> "Index":
        """Return an index that holds `new` too, each in the cell whose centre is nearest."""
        vectors = np.concatenate([self.vectors, new])
        if self.n_cells == 1:
            return Index(vectors, self.metric)
        cell = np.zeros(len(vectors), np.int32)
        cell[self.cells.order] = np.repeat(np.arange(self.n_cells), np.diff(self.cells.start))
        # A view of the last entries, which the compiled code fills.
        find_centres(new, 0, len(new), encode(to_unit(self.centres)), cell[len(self) :])
        counts = np.bincount(cell, minlength=self.n_cells)
        return Index(
            vectors,
            self.metric,
            centres=self.centres,
            start=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            order=np.argsort(cell, kind="stable").astype(np.int32),
            n_probed=self.n_probed,
            recall=self.recall,
            recall_at=self.recall_at,
        )

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files, name: str = "index") -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        files.config[name] = {
            "type": "dense",
            "metric": self.metric,
            "n_cells": self.n_cells,
            "n_probed": self.n_probed,
            "recall": self.recall,
            "recall_at": self.recall_at,
        }
        with np.errstate(over="ignore"):
            half = self.vectors.astype(np.float16)
        loses_nothing = np.array_equal(half, self.vectors)
        files.arrays[f"{name}.vectors"] = half if loses_nothing else self.vectors
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
        if arrays["vectors"].dtype == np.float16:
            arrays["vectors"] = arrays["vectors"].astype(np.float32)
        _check_parts(arrays, config)
        return cls(
            **cast(dict[str, Any], arrays),
            metric=config["metric"],
            n_probed=config["n_probed"],
            recall=config["recall"],
            recall_at=config["recall_at"],
            device=device,
        )


def _check_parts(arrays: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
    """Raise ValueError unless all parts fit together; compiled code does not check again."""
    n_cells, n_probed = config["n_cells"], config["n_probed"]
    recall, recall_at = config["recall"], config["recall_at"]
    if config["metric"] not in get_args(Metric):
        raise ValueError(f"there is no metric {config['metric']!r}")
    if type(n_cells) is not int or type(n_probed) is not int or not 1 <= n_probed <= n_cells:
        raise ValueError(f"{n_probed!r} of {n_cells!r} cells cannot be opened")
    if not isinstance(recall, float | int) or not 0 <= recall <= 1 or type(recall_at) is not int:
        raise ValueError(f"{recall!r} is no recall at {recall_at!r}")
    vectors = arrays["vectors"]
    check_floats("vectors", vectors)
    if n_cells == 1:
        return
    centres, start, order = arrays["centres"], arrays["start"], arrays["order"]
    check_floats("centres", centres)
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


def check_floats(name: str, array: NDArray[Any]) -> None:
    """Raise ValueError unless the array is a matrix that compiled code can trust."""
    if array.dtype != np.float32 or array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} is not a matrix of float32")
    if not _bounded(array):
        raise ValueError(f"{name} holds values that are not finite or too large")


def _bounded(matrix: NDArray[Any]) -> bool:
    return bool(matrix.min() >= -LARGEST_VALUE and matrix.max() <= LARGEST_VALUE)


def _check_matrix(matrix: NDArray[Any], name: str) -> Floats:
    """Return `matrix` as the float32 matrix that compiled code expects, or say what is wrong."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
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
    recall_at: int = 10,
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
        recall: share of the `recall_at` nearest that an approximate search has to find.
        recall_at: how many of the nearest the recall is about.
        n_cells: how many cells to make; about 2√n by default.
        device: "cpu", or "cuda" to search there, always exactly; the cells are made all the
            same, for a CPU that the index may be loaded on later.
        seed: fixes the cells and the examples.
        progress: told about the rounds of k-means and the measuring of the recall.
    """
    _check_choice("metric", metric, get_args(Metric))
    _check_choice("method", method, get_args(Method))
    if not 0 < recall <= 1:
        raise ParameterError(f"The 'recall' of an index must be in (0, 1]. Got {recall!r} instead.")
    for name, value, least in (
        ("recall_at", recall_at, 1),
        ("n_cells", 2 if n_cells is None else n_cells, 2),
    ):
        if value < least:
            raise ParameterError(
                f"The '{name}' of an index must be at least {least}. Got {value} instead."
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
    progress.stage("recall of the index", 1)
    index.recall_at = recall_at
    _choose_probes(index, to_unit(trials) if metric == "cosine" else trials, recall)
    progress.advance(1)
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
    if queries is not None:
        given = _check_matrix(queries, "queries")
        if given.shape[1] != vectors.shape[1]:
            raise DataError(
                f"the queries have {given.shape[1]} dimensions, but the vectors {vectors.shape[1]}"
            )
        given = given[given.any(axis=1)]  # to a query of zeros, all cells are equal
        if len(given):
            return _some(given, N_TRIALS, rng)
    chosen = _some(vectors, N_TRIALS, rng)
    noise = rng.standard_normal(chosen.shape, dtype=np.float32)
    noise *= np.sqrt((chosen**2).mean(axis=1, keepdims=True))
    return np.asarray(chosen + noise, np.float32)


def _some(rows: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Return `n` rows, or all if there are fewer, in their order."""
    return rows[np.sort(rng.choice(len(rows), min(n, len(rows)), replace=False))]


def _cluster(
    vectors: Floats, metric: Metric, n_cells: int, rng: np.random.Generator, progress: Progress
) -> Index:
    """Divide the vectors into cells by spherical k-means on a part of them."""
    n = len(vectors)
    sample = to_unit(_some(vectors, VECTORS_A_CELL * n_cells, rng))
    centres = _some(sample, n_cells, rng)
    progress.stage("cells of the index", ROUNDS * len(sample) + n)
    for _ in range(ROUNDS):
        cell = _nearest(sample, centres)
        sums, counts = sum_by_cell(sample, cell, n_cells)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty))]
        centres = to_unit(sums)
        progress.advance(len(sample))
    cell = _nearest(vectors, centres)
    counts = np.bincount(cell, minlength=n_cells)
    squares = np.bincount(cell, np.einsum("ij,ij->i", vectors, vectors), minlength=n_cells)
    # As long as its vectors are on the whole, so that cells of long ones are opened earlier.
    centres *= np.sqrt(squares / np.maximum(counts, 1)).astype(np.float32)[:, None]
    used = counts > 0
    progress.advance(n)
    return Index(
        vectors,
        metric,
        centres=centres[used],
        start=np.concatenate(([0], np.cumsum(counts[used]))).astype(np.int64),
        order=np.argsort(cell, kind="stable").astype(np.int32),
    )


def _nearest(vectors: Floats, centres: Floats) -> Ids:
    """Return for each vector the centre with the highest product."""
    codes, nearest = encode(centres), np.zeros(len(vectors), np.int32)
    cuts = cut(len(vectors), 4 * n_threads())
    in_threads(find_centres, [(vectors, a, b, codes, nearest) for a, b in pairwise(cuts)])
    return nearest


def _choose_probes(index: Index, trials: Floats, recall: float) -> None:
    """Open so many cells that queries like the trials reach `recall`; measure it by a search."""
    k = min(index.recall_at, len(index))
    truth, _ = index._search_cells(trials, k, index.n_cells)
    cell_of = np.empty(len(index), np.int32)
    cell_of[index.cells.order] = np.repeat(
        np.arange(index.n_cells, dtype=np.int32), np.diff(index.cells.start)
    )
    cuts = cut(len(trials), n_threads())
    tasks = [(index.cells, trials[a:b], cell_of[truth[a:b]]) for a, b in pairwise(cuts)]
    ranks = np.concatenate(in_threads(rank_cells, tasks))
    index.n_probed = _count_enough(ranks, recall)
    found, _ = index._search_cells(trials, k, index.n_probed)
    hits = (found[:, :, None] == truth[:, None, :]).any(axis=1)
    index.recall = float(hits.mean())


def _count_enough(ranks: Ids, recall: float) -> int:
    """Return how many cells to open so that other queries, too, reach `recall`.

    A neighbour is found if its cell is opened, that is if its rank (m, k) is below this number.
    The mean over few trials may be lucky, so it has to lie above `recall` by as much as makes
    that unlikely.
    """
    low, high = 1, int(ranks.max()) + 1
    while low < high:
        middle = (low + high) // 2
        found = (ranks < middle).mean(axis=1)  # the recall of each trial
        if found.mean() - SURE * found.std() / len(found) ** 0.5 >= recall:
            high = middle
        else:
            low = middle + 1
    return low


# ---------------------------------------------------------------------------------------- codes


def _padded(dim: int) -> int:
    return -(-dim // WIDTH) * WIDTH


def encode(vectors: Floats, order: Ids | None = None) -> Codes:
    """Round vectors to bytes, in the given order of rows."""
    n, dim = vectors.shape
    order = np.arange(n, dtype=np.int32) if order is None else order
    values = np.zeros((n, _padded(dim)), np.int8)
    codes = Codes(values, np.empty(n, np.float32), np.empty(n, np.float32))
    in_threads(
        encode_rows,
        [(vectors, order, a, b, codes) for a, b in pairwise(cut(n, 4 * n_threads()))],
    )
    return codes


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


def copy_to(device: str, vectors: Floats) -> _OnDevice:
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
