"""Compiled search for the sparse rows with the highest inner products.

Every feature has a list of the documents that hold it. Values are bytes, in units of their
document. A feature that many documents hold has instead a column with a byte for each document,
zeros included: vector instructions add such a column to all sums in less time than its list takes.

Documents are taken in windows, so that the sums of one window stay in a near cache. At first, lists
and columns are added up for all documents of some windows, and the n-th best of them says what is
not enough. Once the query's columns together could not lift a document above that, only documents
in the lists of its rarer features come into question, and columns are looked up for those that are
near enough.

No document is left out that could be among the best. The products are sums of float32 in an order
that the rows alone decide, so they are the same in every batch and on every number of threads; of
equal ones the lower id wins.
"""

from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.mapped import build_csr, cut_sizes, room_for
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.rows import (
    Rows,
    add_matrix,
    code_values,
    describe_matrix,
    take_matrix,
    view_rows,
)
from longtail.runtime.schema import Schema, Value, size
from longtail.runtime.store import Files
from longtail.search.kernels import Floats, Ids

Codes = NDArray[np.uint8]
Keys = NDArray[np.int64]  # of a document and its score; the best document has the lowest

QUERIES_A_TASK = 64
AT_ONCE = 1 << 22  # values that are rounded together
WINDOW = 16384  # documents whose sums stay in a near cache
SPAN = 4 * WINDOW  # documents that are added up in full before any is left out
GROUP = 64  # documents of which at first only the best is looked at
MANY = 16  # a feature that one in so many documents holds has a column
ROUNDING = 1e-3  # what bounds are raised by, far more than sums of float32 can be off
HIGHEST = np.int64(np.iinfo(np.int32).max)


class Lists(NamedTuple):
    """For each feature the documents that hold it.

    Attributes:
        unit: (n,) what the bytes of each document are multiplied by.
        start: (n_features + 1,) where the list of each feature begins.
        documents: the lists, each in rising order.
        codes: for each entry of the lists its value, in units of the document.
        column: (n_features,) which column a feature has; -1 for those that have a list.
        columns: (n_columns, n) the values of all documents, in units of each.
        largest: (n_columns,) the largest value of each column.
    """

    unit: Floats
    start: NDArray[np.int64]
    documents: Ids
    codes: Codes
    column: Ids
    columns: Codes
    largest: Floats


class Query(NamedTuple):
    """A query, divided into features that have columns and features that have lists.

    Attributes:
        columns: the columns.
        column_values: the query's values of their features.
        place: how far each list was read.
        end: where each list ends.
        list_values: the query's values of their features.
        most: what all columns together can give a document.
    """

    columns: Ids
    column_values: Floats
    place: NDArray[np.int64]
    end: NDArray[np.int64]
    list_values: Floats
    most: float


class Scratch(NamedTuple):
    """What a search needs besides; `sums` holds zeros before and after.

    Attributes:
        sums: (SPAN,) what the features give to each document.
        tops: (SPAN / GROUP,) the highest score of each group of documents.
        met: (WINDOW + 1,) documents that were found in lists, in front.
        keys: (n + 1,) of documents that may be among the best, in front.
    """

    sums: Floats
    tops: Floats
    met: Ids
    keys: Keys


class Noted(NamedTuple):
    """How many documents may be among the best, and a score that is too low for that."""

    n: int
    too_low: np.float32


class SparseIndex:
    """Finds the nearest of many sparse rows, exactly.

    Attributes:
        vectors: (n, n_features) the rows.
    """

    def __init__(self, X: sp.csr_matrix, unit: Floats) -> None:
        """Take rows of which each holds whole multiples, up to 127, of its unit."""
        self.vectors = X
        self.lists = list_documents(X, np.array(unit, np.float32))
        self._spare: list[Scratch] = []  # one for each thread at a time

    @classmethod
    def of(cls, X: sp.csr_matrix) -> Self:
        """Take rows without negative values, which are rounded to a byte each.

        Of rows that lie in a file, all that is large does so, too.
        """
        rows, counts = view_rows(X), np.diff(X.indptr)
        values, units = room_for(X, np.float32), np.zeros(X.shape[0], np.float32)
        for first, last in cut_sizes(counts, AT_ONCE):
            start = rows.start[first : last + 1]
            cells = slice(int(start[0]), int(start[-1]))
            some = Rows(start - start[0], rows.columns[cells], rows.values[cells])
            codes, units[first:last] = code_values(some)
            values[cells] = codes * np.repeat(units[first:last], counts[first:last])
        return cls(build_csr(values, rows.columns, rows.start, X.shape), units)

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
            scratch = Scratch(
                np.zeros(SPAN, np.float32),
                np.empty(SPAN // GROUP, np.float32),
                np.empty(WINDOW + 1, np.int32),
                np.empty(len(self) + 1, np.int64),
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
        X = take_matrix(files, name, facts["n"], facts["n_features"])
        return cls(X, files.arrays[f"{name}.unit"])


def list_documents(X: sp.csr_matrix, unit: Floats) -> Lists:
    """Return the rows with a list or a column for each feature; zeros are in no list."""
    rows, n = view_rows(X), X.shape[0]
    start, column = _count_documents(rows, n, X.shape[1])
    n_columns = int(column.max(initial=-1)) + 1
    documents, codes = (room_for(X, kind, int(start[-1])) for kind in (np.int32, np.uint8))
    columns = room_for(X, np.uint8, n_columns * n).reshape(n_columns, n)
    largest = _list_into(rows, unit, start, column, documents, codes, columns)
    return Lists(unit, start, documents, codes, column, columns, largest)


@njit(nogil=True, cache=True)
def _count_documents(rows: Rows, n: int, n_features: int) -> tuple[NDArray[np.int64], Ids]:
    """Return where the list of each feature begins, and which column it has instead."""
    counts = np.zeros(n_features, np.int64)
    for cell in range(len(rows.columns)):
        counts[rows.columns[cell]] += rows.values[cell] > 0
    start, column = np.zeros(n_features + 1, np.int64), np.full(n_features, -1, np.int32)
    frequent = np.flatnonzero(counts * MANY > n)
    column[frequent] = np.arange(len(frequent))
    counts[frequent] = 0
    start[1:] = np.cumsum(counts)
    return start, column


@njit(nogil=True, cache=True)
def _list_into(
    rows: Rows,
    unit: Floats,
    start: NDArray[np.int64],
    column: Ids,
    documents: Ids,
    codes: Codes,
    columns: Codes,
) -> Floats:
    """Fill lists and columns; return the largest value of each column."""
    place = start[:-1].copy()
    for i in range(len(unit)):
        for cell in range(rows.start[i], rows.start[i + 1]):
            feature, value = rows.columns[cell], rows.values[cell]
            if value > 0:
                code = np.uint8(value / unit[i] + 0.5)
                if column[feature] >= 0:
                    columns[column[feature], i] = code
                else:
                    documents[place[feature]], codes[place[feature]] = i, code
                    place[feature] += 1
    largest = np.zeros(len(columns), np.float32)
    for j in range(len(columns)):
        largest[j] = (columns[j] * unit).max()
    return largest


# -- one search -----------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def search(
    held: Lists, queries: Rows, first: int, last: int, n: int, scratch: Scratch
) -> tuple[Ids, Floats]:
    """Search for the queries first ≤ i < last."""
    ids = np.full((last - first, n), -1, np.int32)
    products = np.zeros((last - first, n), np.float32)
    for i in range(first, last):
        begin, end = queries.start[i], queries.start[i + 1]
        query = _divide(held, queries.columns[begin:end], queries.values[begin:end])
        best = _search_one(held, query, n, scratch)
        for place in range(len(best)):
            ids[i - first, place], products[i - first, place] = _open_key(best[place])
    return ids, products


@njit(nogil=True, cache=True)
def _divide(held: Lists, features: Ids, values: Floats) -> Query:
    """Find the columns and the lists of a query."""
    features, values = features[values > 0], values[values > 0]
    columns = held.column[features]
    frequent, rare = columns >= 0, columns < 0
    columns, column_values, listed = columns[frequent], values[frequent], features[rare]
    most = 0.0
    for j in range(len(columns)):
        most += column_values[j] * held.largest[columns[j]]
    most *= 1 + ROUNDING
    start, end = held.start[listed], held.start[listed + 1]
    return Query(columns, column_values, start, end, values[rare], most)


@njit(nogil=True, cache=True)
def _search_one(held: Lists, query: Query, wanted: int, scratch: Scratch) -> Keys:
    """Return the keys of the best, the best first."""
    n, first, noted = len(held.unit), 0, Noted(0, np.float32(0))
    while first < n:
        if noted.too_low > query.most:  # no document is among the best by columns alone
            last = min(first + WINDOW, n)
            noted = _look_at_listed(held, query, first, last, wanted, scratch, noted)
        else:
            last = min(first + SPAN, n)
            noted = _look_at_all(held, query, first, last, wanted, scratch, noted)
        first = last
    noted = _drop(scratch.keys, wanted, noted)
    return np.sort(scratch.keys[: noted.n])


@njit(nogil=True, cache=True)
def _look_at_all(
    held: Lists, query: Query, begin: int, end: int, wanted: int, scratch: Scratch, noted: Noted
) -> Noted:
    """Add up lists and columns for all documents from begin to end; note the best."""
    for first in range(begin, end, WINDOW):
        last = min(first + WINDOW, end)
        sums = scratch.sums[first - begin : last - begin]
        _add_lists(held, query, first, last, sums)
        _add_columns(held.columns[:, first:last], query, sums)
        _find_tops(
            sums, held.unit[first:last], _groups_of(scratch.tops, first - begin, last - begin)
        )
    n, too_low = noted.n, _find_too_low(_groups_of(scratch.tops, 0, end - begin), wanted, noted)
    for first in range(0, end - begin, WINDOW):
        last = min(first + WINDOW, end - begin)
        tops = _groups_of(scratch.tops, first, last)
        for group in range(len(tops)):
            if tops[group] > too_low:
                for i in range(first + group, last, len(tops)):
                    if scratch.sums[i] > too_low:
                        scratch.keys[n] = _make_key(begin + i, scratch.sums[i])
                        n += 1
    scratch.sums[: end - begin] = 0
    return _drop(scratch.keys, wanted, Noted(n, too_low))


@njit(nogil=True, cache=True)
def _groups_of(tops: Floats, first: int, last: int) -> Floats:
    """Return the tops of a span's documents; each window but the last has whole groups."""
    return tops[first // GROUP : -(-last // GROUP)]


@njit(nogil=True, cache=True)
def _find_tops(sums: Floats, unit: Floats, tops: Floats) -> None:
    """Make scores of a window's sums, and find the highest of each group.

    A group is every m-th document, so that vector instructions find the highest of many at once.
    """
    m = len(tops)
    tops[:] = 0
    for begin in range(0, len(sums), m):
        scores, units = sums[begin : begin + m], unit[begin : begin + m]
        for j in range(len(scores)):
            scores[j] *= units[j]
            tops[j] = max(tops[j], scores[j])


@njit(nogil=True, cache=True)
def _find_too_low(tops: Floats, wanted: int, noted: Noted) -> np.float32:
    """Return a score that so many documents, the best of their groups, exceed."""
    above = tops[tops > noted.too_low]
    if len(above) <= wanted:
        return noted.too_low
    worst = np.partition(above, len(above) - wanted)[len(above) - wanted]
    return np.float32(np.nextafter(worst, np.float32(0)))


@njit(nogil=True, cache=True)
def _look_at_listed(
    held: Lists, query: Query, first: int, last: int, wanted: int, scratch: Scratch, noted: Noted
) -> Noted:
    """Add up the lists of a window; note the best, with what columns give them."""
    sums, n, too_low = scratch.sums, noted.n, noted.too_low
    least = (too_low - query.most) * (1 - ROUNDING)
    for document in scratch.met[: _meet(held, query, first, last, sums, scratch.met)]:
        unit = held.unit[first + document]
        if sums[document] * unit > least:
            score = _add_own(held.columns, query, first + document, sums[document]) * unit
            if score > too_low:
                scratch.keys[n] = _make_key(first + document, score)
                n += 1
        sums[document] = 0
    if n > 2 * wanted:
        return _drop(scratch.keys, wanted, Noted(n, too_low))
    return Noted(n, too_low)


# -- sums -----------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _add_lists(held: Lists, query: Query, first: int, last: int, sums: Floats) -> None:
    """Add what features with a list give the documents of a window."""
    documents, codes = held.documents, held.codes
    for j in range(len(query.place)):
        cell, end, value = query.place[j], query.end[j], query.list_values[j]
        while cell < end and documents[cell] < last:
            sums[np.uint32(documents[cell] - first)] += value * np.float32(codes[cell])
            cell += 1
        query.place[j] = cell


@njit(nogil=True, cache=True)
def _meet(held: Lists, query: Query, first: int, last: int, sums: Floats, met: Ids) -> int:
    """Do what `_add_lists` does; return how many documents were met, which are put into `met`."""
    documents, codes, n_met = held.documents, held.codes, 0
    for j in range(len(query.place)):
        cell, end, value = query.place[j], query.end[j], query.list_values[j]
        while cell < end and documents[cell] < last:
            document = np.uint32(documents[cell] - first)
            met[n_met] = document
            n_met += sums[document] == 0  # no branch, as none could foretell this
            sums[document] += value * np.float32(codes[cell])
            cell += 1
        query.place[j] = cell
    return n_met


@njit(nogil=True, cache=True)
def _add_columns(columns: Codes, query: Query, sums: Floats) -> None:
    """Add what features with a column give the documents of a window."""
    which, values = query.columns, query.column_values
    n_in_fours = len(which) // 4 * 4
    for j in range(0, n_in_fours, 4):
        a, b, c, d = (
            columns[which[j]],
            columns[which[j + 1]],
            columns[which[j + 2]],
            columns[which[j + 3]],
        )
        _add_four(a, b, c, d, values[j : j + 4], sums)
    for j in range(n_in_fours, len(which)):
        codes, value = columns[which[j]], values[j]
        for i in range(len(sums)):
            sums[i] += value * np.float32(codes[i])


@njit(nogil=True, cache=True)
def _add_four(a: Codes, b: Codes, c: Codes, d: Codes, values: Floats, sums: Floats) -> None:
    """Add four columns, one after the other, to sums that are read and written once."""
    va, vb, vc, vd = values
    for i in range(len(sums)):
        total = sums[i] + va * np.float32(a[i])
        total += vb * np.float32(b[i])
        total += vc * np.float32(c[i])
        sums[i] = total + vd * np.float32(d[i])


@njit(nogil=True, cache=True)
def _add_own(columns: Codes, query: Query, document: int, total: np.float32) -> np.float32:
    """Return one document's sum with what columns give it, in the order of `_add_columns`."""
    for j in range(len(query.columns)):
        total += query.column_values[j] * np.float32(columns[query.columns[j], document])
    return total


# -- the best -------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _make_key(document: int, score: np.float32) -> np.int64:
    """Return a number that is the lower, the higher the score; of equal ones, the lower the id."""
    return np.int64((HIGHEST - np.float32(score).view(np.int32)) << 32 | document)


@njit(nogil=True, cache=True)
def _open_key(key: np.int64) -> tuple[np.int32, np.float32]:
    """Return the document and the score of a key."""
    return np.int32(key & HIGHEST), np.int32(HIGHEST - (key >> 32)).view(np.float32)


@njit(nogil=True, cache=True)
def _drop(keys: Keys, wanted: int, noted: Noted) -> Noted:
    """Keep the best of the documents that were noted."""
    if noted.n <= wanted:
        return noted
    keys[: noted.n] = np.partition(keys[: noted.n], wanted - 1)
    return Noted(wanted, np.nextafter(_open_key(keys[wanted - 1])[1], np.float32(0)))
