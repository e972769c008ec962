"""Compiled, exact search for the sparse rows with the highest inner products.

Every feature has a list of the documents that hold it. A query's features are taken in order of
how much they can give a document at most, which puts rare words first, and what they give is
added up for the documents in their lists. Once all features left together could not lift a new
document among the n best, only documents met so far, and near enough, come into question. As soon
as these are so few that multiplying each with the query as a whole takes less time than reading
one more list, the other lists, long as those of frequent words are, stay closed.

So the result is the exact one, and it depends on nothing but the query and the rows: the products
that decide are summed in float64 in the order of the features, and of equal ones the lower id wins.
"""

from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.rows import Rows, add_matrix, describe_matrix, take_matrix, view_rows
from longtail.runtime.schema import Schema, Value, size
from longtail.runtime.store import Files
from longtail.search.kernels import NOTHING, Best, Floats, Ids, offer, sort_best

QUERIES_A_TASK = 64
ENTRIES_A_PRODUCT = 32  # entries of a list that are read in the time of one whole product
ROUNDING = 1e-5  # how far sums of float32 may be off, as a share and at least
TINY = np.float32(1e-30)  # of what a feature gives at least, so that no document is met twice


class Lists(NamedTuple):
    """The rows, and for each feature the documents that hold it.

    Attributes:
        rows: what each document holds, features in rising order.
        lists: the same by feature: `columns` are documents, in rising order.
        largest: (n_features,) the largest value of each feature in any document.
    """

    rows: Rows
    lists: Rows
    largest: Floats


class Scratch(NamedTuple):
    """What a search needs besides; `query` and `sums` hold zeros before and after.

    Attributes:
        query: (n_features,) the query.
        sums: (n,) what the features taken so far give to each document.
        met: (n,) the documents met, in front.
    """

    query: Floats
    sums: Floats
    met: Ids


class SparseIndex:
    """Finds the nearest of many sparse rows, exactly.

    Attributes:
        vectors: (n, n_features) the rows.
    """

    def __init__(self, X: sp.csr_matrix) -> None:
        """Take rows without negative values; the highest inner product is searched for.

        What is saved is what `round_values` leaves of them.
        """
        by_feature = X.T.tocsr()
        largest = np.zeros(X.shape[1], np.float32)
        held = np.flatnonzero(np.diff(by_feature.indptr))
        if len(held):
            largest[held] = np.maximum.reduceat(by_feature.data, by_feature.indptr[held])
        self.vectors = X
        self.lists = Lists(view_rows(X), view_rows(by_feature), largest)
        self._spare: list[Scratch] = []  # one for each thread at a time

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the scratch space, which must be written to."""
        return {**self.__dict__, "_spare": []}

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.vectors.shape[0])

    def take(self, ids: NDArray[Any]) -> sp.csr_matrix:
        """Return the rows of these ids."""
        return self.vectors[ids]

    def search(self, queries: sp.csr_matrix, n: int) -> tuple[Ids, Floats]:
        """Return ids and products (m, n) of the best rows for each query, best first.

        Where fewer than `n` rows have anything in common with a query, -1 and 0 stand for the rest.
        """
        rows, m, n = view_rows(queries), queries.shape[0], min(n, len(self))
        n_tasks = max(n_threads(), -(-m // QUERIES_A_TASK))
        found = in_threads(self._search, [(rows, a, b, n) for a, b in pairwise(cut(m, n_tasks))])
        if not found:
            return np.empty((0, n), np.int32), np.empty((0, n), np.float32)
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def _search(self, queries: Rows, first: int, last: int, n: int) -> tuple[Ids, Floats]:
        try:
            scratch = self._spare.pop()
        except IndexError:
            n_rows, n_features = self.vectors.shape
            scratch = Scratch(
                np.zeros(n_features, np.float32),
                np.zeros(n_rows, np.float32),
                np.empty(n_rows + 1, np.int32),
            )
        found = search(self.lists, queries, first, last, n, scratch)
        self._spare.append(scratch)
        return found

    def add_to_files(self, files: Files, name: str) -> None:
        """Add the index to a model's files, as `config[name]` and arrays `name.…`."""
        n, n_features = self.vectors.shape
        files.config[name] = {"type": "sparse", "n": n, "n_features": n_features}
        add_matrix(files, name, self.vectors, rounded=True)

    @classmethod
    def describe(cls, name: str, n: str, dim: str) -> Schema:
        """Return the schema of what `add_to_files` adds, with the sizes of its vectors."""
        facts = {"type": Value(Literal["sparse"]), "n": size(n), "n_features": size(dim)}
        return Schema(config={name: facts}) | describe_matrix(name, n, least=0, rounded=True)

    @classmethod
    def from_files(cls, files: Files, name: str) -> Self:
        """Take back what `add_to_files` wrote."""
        facts = files.config[name]
        return cls(take_matrix(files, name, facts["n"], facts["n_features"]))


@njit(nogil=True, cache=True)
def search(
    held: Lists, queries: Rows, first: int, last: int, n: int, scratch: Scratch
) -> tuple[Ids, Floats]:
    """Search for the queries first ≤ i < last."""
    ids = np.full((last - first, n), NOTHING, np.int32)
    products = np.full((last - first, n), np.float32(-np.inf))
    for i in range(first, last):
        begin, end = queries.start[i], queries.start[i + 1]
        columns, values = queries.columns[begin:end], queries.values[begin:end]
        best = Best(ids[i - first], products[i - first])
        scratch.query[columns] = values
        _search_one(held, columns, values, best, scratch)
        scratch.query[columns] = 0
        for place in range(n):
            if best.ids[place] == NOTHING:
                best.ids[place], best.scores[place] = -1, 0
    return ids, products


@njit(nogil=True, cache=True)
def _search_one(held: Lists, columns: Ids, values: Floats, best: Best, scratch: Scratch) -> None:
    query, sums, met = scratch
    most = values * held.largest[columns]
    order = np.argsort(-most, kind="mergesort")
    left = 0.0  # what all features not yet taken could give together
    for j in order:
        left += most[j]
    n_met, n_read, worst = 0, 0, 0.0
    for j in order:
        begin, end = held.lists.start[columns[j]], held.lists.start[columns[j] + 1]
        if worst <= left and n_read > n_met:  # so that looking costs no more than reading did
            worst, n_read = _worst_of_best(sums, met[:n_met], len(best.ids)), 0
        if left * (1 + ROUNDING) + ROUNDING < worst:
            enough, few = _enough(worst, left), (end - begin) // ENTRIES_A_PRODUCT
            if not _are_more(sums, met[:n_met], enough, few):
                break
        for cell in range(begin, end):
            document = held.lists.columns[cell]
            met[n_met] = document
            n_met += sums[document] == 0  # no branch, as none could foretell this
            sums[document] += max(values[j] * held.lists.values[cell], TINY)
        n_read += end - begin
        left -= most[j]
    else:
        left = 0.0
        worst = _worst_of_best(sums, met[:n_met], len(best.ids))
    enough = _enough(worst, left)
    for document in met[:n_met]:
        if sums[document] >= enough:
            offer(best, document, _multiply(held.rows, document, query))
        sums[document] = 0
    sort_best(best)


@njit(nogil=True, cache=True)
def _enough(worst: float, left: float) -> float:
    """Return the sum from which on a document may be among the best."""
    return worst * (1 - ROUNDING) - ROUNDING - left


@njit(nogil=True, cache=True)
def _are_more(sums: Floats, met: Ids, enough: float, few: int) -> bool:
    """Whether more than a few documents may be among the best."""
    n = 0
    for document in met:
        n += sums[document] >= enough
        if n > few:
            return True
    return False


@njit(nogil=True, cache=True)
def _worst_of_best(sums: Floats, met: Ids, n: int) -> float:
    """Return the n-th highest sum so far, 0 if fewer documents were met."""
    if len(met) < n:
        return 0.0
    best = Best(np.full(n, NOTHING, np.int32), np.full(n, np.float32(-np.inf)))
    for document in met:
        if sums[document] > best.scores[0]:  # equals would only change places
            offer(best, document, sums[document])
    return float(best.scores[0])


@njit(nogil=True, cache=True)
def _multiply(rows: Rows, document: int, query: Floats) -> np.float32:
    """Return the product of a row and a query; the zeros of features not shared change no bit."""
    total = 0.0
    for cell in range(rows.start[document], rows.start[document + 1]):
        total += np.float64(rows.values[cell]) * np.float64(query[rows.columns[cell]])
    return np.float32(total)
