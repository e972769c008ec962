"""Index: the vectors with the highest inner product or cosine, exactly or nearly so.

Vectors are kept as int8 (`runtime.quantized`); products are those of the quantized vectors.
An exact index looks at all vectors. An approximate one divides them into inverted lists (IVF) and
looks at the `n_probes` lists whose centres are nearest to the query; how many are needed for the
recall wanted is measured when it is built. On a CPU the compiled code of `kernels` searches, which
finds exactly the k best of all vectors that it looks at. On a GPU (`gpu`) matrix products find
candidates, with a margin for their rounding, and the same compiled code decides among them; a few
queries are answered on the CPU all the same, which is sooner.

Results never depend on the batch: each query is treated by itself, and no BLAS takes part in a
decision, whose rounding varies with the shapes of its matrices and the number of threads. So a
batch gives the very bits of one by one, and a GPU those of a CPU. Equal scores are ordered by the
lower id.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, ParameterError
from longtail.progress import SILENT, Progress
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.quantized import QuantizedRows, padded
from longtail.runtime.schema import (
    Schema,
    Value,
    floats,
    look_up,
    number,
    permutation,
    size,
    starts,
    whole,
)
from longtail.runtime.store import Files
from longtail.search.gpu import VectorsOnDevice, copy_to, gpu_is_there, is_out_of_memory
from longtail.search.inverted import (
    VECTORS_A_LIST,
    Division,
    count_probes,
    divide,
    extend_division,
    find_list_of,
    some_rows,
)
from longtail.search.kernels import (
    GROUP,
    TOGETHER,
    Floats,
    Ids,
    InvertedLists,
    Searched,
    decide,
    merge,
    multiply_candidates,
    search,
    to_unit,
)

Metric = Literal["inner", "cosine"]
Method = Literal["auto", "exact", "approximate"]
Found = tuple[Ids, Floats]

LARGEST_EXACT = 1 << 21  # bytes of int8 vectors; more are divided into lists by method="auto"
LARGEST_THOROUGH = 1 << 24  # bytes; up to so many, method="auto" finds nearly all of the nearest
THOROUGH = 0.99  # of the nearest
LARGEST_SHARE = 0.5  # of the lists; where more must be probed for the recall, all are searched
LARGEST_VALUE = 1e15  # beyond it, products leave the range of float32
N_TRIALS = 1000  # queries by which the number of lists to probe is chosen

WORTH_A_THREAD = 1 << 21  # bytes of int8 vectors, read in the time that a second thread costs
LARGEST_PRODUCT = 1 << 26  # scores at once on a GPU
GPU_SPARE = 64  # candidates beyond k
FEW_QUERIES = 4  # fewer are answered sooner by a CPU
WORTH_A_GPU = 1 << 37  # multiplications, which take a CPU longer than torch's import and a copy


# ------------------------------------------------------------------------------------ the index


class Index:
    """Finds the nearest of many vectors; made by `build_index` or `from_files`.

    Attributes:
        rows: (n, dim) the vectors, of length 1 if the metric is the cosine, list by list.
        dim: how many dimensions they have.
        metric: "inner" or "cosine".
        n_probes: how many lists are searched for a query.
        recall: share of the `recall_at` best that are found, measured when it was built.
        device: "cpu", or the GPU that searches.
    """

    def __init__(
        self,
        rows: QuantizedRows,
        dim: int,
        metric: Metric,
        *,
        centres: Floats | None = None,
        start: NDArray[np.int64] | None = None,
        order: Ids | None = None,
        n_probes: int = 1,
        recall: float = 1.0,
        recall_at: int = 10,
        device: str = "cpu",
    ) -> None:
        n = len(rows.scale)
        self.rows, self.dim = rows, dim
        self.metric: Metric = metric
        self.n_probes = n_probes
        self.recall = recall
        self.recall_at = recall_at
        self.centres = np.zeros((1, dim), np.float32) if centres is None else centres
        start = np.array([0, n], np.int64) if start is None else start
        order = np.arange(n, dtype=np.int32) if order is None else order
        self.lists = InvertedLists(QuantizedRows.of(self.centres), start, order)
        self._on_device: VectorsOnDevice | None = None
        self.to(device)

    @property
    def n_lists(self) -> int:
        """Into how many lists the vectors are divided; 1 if the index is exact."""
        return len(self.lists.start) - 1

    @property
    def exact(self) -> bool:
        """Whether every search looks at all vectors."""
        return self.n_probes == self.n_lists

    @property
    def cost(self) -> float:
        """Bytes that a search for one query reads, about."""
        width = padded(self.dim)
        centres = self.n_lists * width if self.n_lists > 1 else 0
        return float(len(self) * width * self.n_probes / self.n_lists + centres)

    @cached_property
    def place(self) -> Ids:
        """Where among the rows each vector lies, by its id."""
        if self.n_lists == 1:
            return self.lists.order
        place = np.empty(len(self), np.int32)
        place[self.lists.order] = np.arange(len(self), dtype=np.int32)
        return place

    @property
    def vectors(self) -> Floats:
        """The vectors (n, dim) by id, copied to float32."""
        return self.take(np.arange(len(self)))

    def take(self, ids: NDArray[Any]) -> Floats:
        """Return the vectors (m, dim) of these ids."""
        return self.rows.take(self.place[ids], self.dim)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self.rows.scale)

    def __repr__(self) -> str:
        """Say in one line what is searched, and how."""
        how = "exact"
        if not self.exact:
            measured = f"recall@{self.recall_at} {self.recall:.3f}"
            how = f"{self.n_probes} of {self.n_lists} lists, {measured}"
        return f"Index({len(self):,} vectors of {self.dim}, {self.metric}, {self.device}: {how})"

    def to(self, device: str) -> Self:
        """Search on `device` from now on: "cpu", or "cuda"; the results are the same."""
        self.device = device
        self._on_device = None if device == "cpu" else self._copy_to(device)
        return self

    def _copy_to(self, device: str) -> VectorsOnDevice:
        on_device = copy_to(device, self.rows.select(self.place), self.dim)
        if self.n_lists > 1:
            on_device.add_lists(self.lists, find_list_of(self.lists.start, self.lists.order))
        return on_device

    def for_batch(self, n_queries: int) -> Self:
        """Move to a GPU if there is one and so many queries are worth it; return self."""
        worth = n_queries * len(self) * self.dim >= WORTH_A_GPU
        if self.device == "cpu" and worth and gpu_is_there():
            try:
                self.to("cuda")
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.to("cpu")
        return self

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Return ids and scores (n, k) of the `k` best vectors for each query, best first.

        Args:
            queries: (n, dim); with the cosine they need not have length 1.
            k: how many are wanted; where there are fewer vectors, all are returned.
        """
        if k < 1:
            raise ParameterError(f"k must be at least 1. Got {k} instead.")
        checked = self._check_queries(queries)
        k = min(k, len(self))
        if len(checked) == 0:
            return np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        return self.search_probes(checked, k, self.n_probes)

    def _check_queries(self, queries: NDArray[Any]) -> Floats:
        """Return the queries as they are searched for."""
        checked = _check_matrix(queries, "queries")
        if checked.shape[1] != self.dim:
            raise DataError(
                f"the queries have {checked.shape[1]} dimensions, "
                f"but the index holds vectors of {self.dim}"
            )
        return to_unit(checked) if self.metric == "cosine" else checked

    def score(self, queries: NDArray[Any], candidates: Ids) -> Floats:
        """Return what `search` would give the candidates (n, c) of each query, found by it or not.

        A candidate of -1 is none and gets 0.
        """
        checked = self._check_queries(queries)
        cuts = cut(len(checked), n_threads())
        held = (self.rows, self.place)
        tasks = [(*held, checked[a:b], candidates[a:b]) for a, b in pairwise(cuts)]
        found = in_threads(multiply_candidates, tasks)
        return np.concatenate(found) if found else np.zeros(candidates.shape, np.float32)

    def search_probes(self, queries: Floats, k: int, n_probes: int) -> Found:
        """Search `n_probes` lists where the index is, or nearer."""
        if self._on_device is not None and len(queries) >= FEW_QUERIES:
            try:
                return self._search_device(self._on_device, queries, k, n_probes)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.to("cpu")
        return self.search_cpu(queries, k, n_probes)

    def search_cpu(self, queries: Floats, k: int, n_probes: int) -> Found:
        """Search among the vectors of the lists that are nearest to each query."""
        return self._search_lists(queries, k, n_probes)

    def _search_lists(self, queries: Floats, k: int, n_probes: int) -> Found:
        """Search on the CPU: one thread for some of the queries, or for some of the vectors."""
        searched = Searched(self.rows, self.lists)
        n, n_workers = len(queries), n_threads()
        if n >= n_workers:
            at_once = GROUP if n_probes >= self.n_lists else TOGETHER
            chunk = min(at_once, -(-n // n_workers))
            tasks = [
                (searched, queries[first : first + chunk], k, n_probes, 0, 1)
                for first in range(0, n, chunk)
            ]
            found = in_threads(search, tasks)
            return np.concatenate([ids for ids, _ in found]), np.concatenate(
                [scores for _, scores in found]
            )
        size = self.rows.codes.nbytes // self.n_lists * n_probes
        n_pieces = max(1, min(n_workers, size // WORTH_A_THREAD))
        pieces = [(searched, queries, k, n_probes, piece, n_pieces) for piece in range(n_pieces)]
        found = in_threads(search, pieces)
        if len(found) == 1:
            return found[0]
        return merge(
            np.hstack([ids for ids, _ in found]), np.hstack([scores for _, scores in found]), k
        )

    def select(
        self, on_device: VectorsOnDevice, queries: Floats, k: int, n_probes: int
    ) -> Any | None:
        """Return which vectors (m, n) a search on a GPU looks at; None if at all of them."""
        return None if n_probes >= self.n_lists else on_device.in_lists(queries, n_probes)

    def _search_device(
        self, on_device: VectorsOnDevice, queries: Floats, k: int, n_probes: int
    ) -> Found:
        """Find candidates by matrix products on the GPU; decide among them on the CPU."""
        rows = max(1, LARGEST_PRODUCT // len(self))
        width = min(len(self), k + GPU_SPARE)
        ids = np.empty((len(queries), k), np.int32)
        scores = np.empty((len(queries), k), np.float32)
        for first in range(0, len(queries), rows):
            block = queries[first : first + rows]
            allowed = self.select(on_device, block, k, n_probes)
            candidates, whole = on_device.candidates(block, k, width, allowed)
            cuts = cut(len(block), n_threads())
            held = (self.rows, self.place)
            tasks = [(*held, block[a:b], candidates[a:b], k) for a, b in pairwise(cuts)]
            found = in_threads(decide, tasks)
            ids[first : first + rows] = np.concatenate([part for part, _ in found])
            scores[first : first + rows] = np.concatenate([part for _, part in found])
            # Too few vectors in the lists, or so many nearly equal scores that the width did not
            # hold them.
            torn = np.flatnonzero(~whole)
            if len(torn):
                found_here = self.search_cpu(block[torn], k, n_probes)
                ids[first + torn], scores[first + torn] = found_here
        return ids, scores

    # -- changing ---------------------------------------------------------------------------

    def set_probes(self, n_probes: int, queries: Floats, k: int) -> None:
        """Search `n_probes` lists from now on, and measure the recall at k that this gives."""
        self.n_probes = self.n_lists
        truth, _ = self.search(queries, k)
        self.n_probes = n_probes
        found, _ = self.search(queries, k)
        hits = [np.isin(one, other).mean() for one, other in zip(truth, found, strict=True)]
        self.recall = float(np.mean(hits))

    def extend(self, new: Floats) -> "Index":
        """Return an index that holds `new` too, each in the list whose centre is nearest."""
        added, own = QuantizedRows.of(new), self.rows.select(self.place)
        rows = own.join(added)
        if self.n_lists == 1:
            return Index(rows, self.dim, self.metric)
        old = Division(self.centres, self.lists.start, self.lists.order)
        division = extend_division(old, new)
        return Index(
            rows.select(division.order),
            self.dim,
            self.metric,
            **division._asdict(),
            n_probes=self.n_probes,
            recall=self.recall,
            recall_at=self.recall_at,
        )

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files, name: str = "index") -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        files.config[name] = {
            "type": "dense",
            "dim": self.dim,
            "metric": self.metric,
            "n_lists": self.n_lists,
            "n_probes": self.n_probes,
            "recall": self.recall,
            "recall_at": self.recall_at,
        }
        self.rows.add_to_files(files, f"{name}.vectors")
        if self.n_lists > 1:
            files.arrays[f"{name}.centres"] = self.centres
            files.arrays[f"{name}.start"] = self.lists.start
            files.arrays[f"{name}.order"] = self.lists.order

    @classmethod
    def describe(cls, files: Files, name: str, n: str, dim: str) -> Schema:
        """Return the schema of what `add_to_files` adds, with the sizes of its vectors."""
        facts = {
            "type": Value(Literal["dense"]),
            "dim": size(dim),
            "metric": Value(Metric),
            "n_lists": size(f"{name}.n_lists"),
            "n_probes": whole(at_most=f"{name}.n_lists"),
            "recall": number(0, 1),
            "recall_at": whole(),
        }
        vectors = QuantizedRows.describe(f"{name}.vectors", n, dim, most=LARGEST_VALUE)
        if look_up(files.config, name, "n_lists") == 1:
            return Schema({name: facts}) | vectors
        arrays = {
            f"{name}.centres": floats(f"{name}.n_lists", dim, most=LARGEST_VALUE),
            f"{name}.start": starts(f"{name}.n_lists", of=n),
            f"{name}.order": permutation(n),
        }
        return Schema({name: facts}, arrays) | vectors

    @classmethod
    def from_files(cls, files: Files, name: str = "index", *, device: str = "cpu") -> Self:
        """Take back what `add_to_files` wrote."""
        config = files.config[name]
        return cls(
            QuantizedRows.from_files(files, f"{name}.vectors"),
            config["dim"],
            centres=files.arrays.get(f"{name}.centres"),
            start=files.arrays.get(f"{name}.start"),
            order=files.arrays.get(f"{name}.order"),
            metric=config["metric"],
            n_probes=config["n_probes"],
            recall=config["recall"],
            recall_at=config["recall_at"],
            device=device,
        )


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
    n_lists: int | None = None,
    sampled: bool = True,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = SILENT,
) -> Index:
    """Prepare `vectors` (n, dim) for searching.

    Args:
        vectors: what to search; the index keeps them as int8.
        metric: "inner" for the highest inner product, "cosine" for the highest cosine.
        method: "auto" is exact while that is quick, and where lists would not help.
        queries: (m, dim) examples of what will be searched for, to measure the recall by;
            without them, the vectors themselves are taken, with as much noise added.
        recall: share of the `recall_at` nearest that an approximate search has to find; by "auto"
            0.99 at least where that is quick.
        recall_at: how many of the nearest the recall is about.
        n_lists: how many lists to make; about 2√n by default.
        sampled: whether k-means learns the lists from a sample, or else from all vectors.
        device: "cpu", or "cuda" to build the index and to search there.
        seed: fixes the lists and the examples.
        progress: shows the rounds of k-means and the measuring of the recall.
    """
    _check_choice("metric", metric, get_args(Metric))
    _check_choice("method", method, get_args(Method))
    if not 0 < recall <= 1:
        raise ParameterError(f"The 'recall' of an index must be in (0, 1]. Got {recall!r} instead.")
    for name, value, least in (
        ("recall_at", recall_at, 1),
        ("n_lists", 2 if n_lists is None else n_lists, 2),
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
    n_bytes = len(checked) * padded(checked.shape[1])
    small = method == "auto" and n_bytes <= LARGEST_EXACT
    if method == "exact" or small or len(checked) < 4:
        return _exact(checked, metric, device)
    if method == "auto" and n_bytes <= LARGEST_THOROUGH:
        recall = max(recall, THOROUGH)
    rng = np.random.default_rng(seed)
    wanted = n_lists or round(2 * len(checked) ** 0.5)
    trials = _trials(checked, queries, rng)
    division = divide(
        checked, min(wanted, len(checked) // 2), rng, progress, device, sampled=sampled
    )
    index = Index(
        QuantizedRows.of(checked, division.order),
        checked.shape[1],
        metric,
        **division._asdict(),
        recall_at=recall_at,
        device=device,
    )
    progress.stage("recall of the index", 1)
    _choose_probes(index, to_unit(trials) if metric == "cosine" else trials, recall)
    progress.advance(1)
    if method == "auto" and index.n_probes > LARGEST_SHARE * index.n_lists:
        return _exact(checked, metric, device)
    return index


def build_on(device: str, build: Callable[[str], Index], progress: Progress) -> Index:
    """Return what `build` makes on a device, or on a CPU where a GPU has too little memory."""
    try:
        return build(device)
    except RuntimeError as error:
        if device == "cpu" or not is_out_of_memory(error):
            raise
        progress.say("Note: the GPU has too little memory for the index; a CPU builds it")
        return build("cpu")


def _exact(vectors: Floats, metric: Metric, device: str) -> Index:
    return Index(QuantizedRows.of(vectors), vectors.shape[1], metric, device=device)


def index_bytes(n: int, dim: int) -> int:
    """Return about what `build_index` takes beside the vectors themselves."""
    quantized: int = n * (padded(dim) + 8)
    if n * padded(dim) <= LARGEST_EXACT:
        return quantized
    sample: int = min(n, round(2 * VECTORS_A_LIST * n**0.5))
    return 2 * quantized + 8 * dim * sample  # the second in case that lists do not help


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
        given = given[given.any(axis=1)]  # to a query of zeros, all lists are equal
        if len(given):
            return some_rows(given, N_TRIALS, rng)
    chosen = some_rows(vectors, N_TRIALS, rng)
    noise = rng.standard_normal(chosen.shape, dtype=np.float32)
    noise *= np.sqrt((chosen**2).mean(axis=1, keepdims=True))
    return np.asarray(chosen + noise, np.float32)


def _choose_probes(index: Index, queries: Floats, recall: float) -> None:
    """Probe so many lists that queries like these reach `recall`; measure it by a search."""
    k = min(index.recall_at, len(index))
    nearest, _ = index.search_probes(queries, k, index.n_lists)
    index.n_probes = count_probes(index.lists, queries, nearest, recall)
    found, _ = index.search_probes(queries, k, index.n_probes)
    hits = (found[:, :, None] == nearest[:, None, :]).any(axis=1)
    index.recall = float(hits.mean())
