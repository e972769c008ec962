"""Voters: documents whose labels are known vote for the labels of the documents near to them.

A neighbour with similarity s counts e^(s/T), the nearest 1. The score of a label is the share of
all counts that falls to the neighbours which carry it. `count_votes` counts, `choose_voting`
chooses how many neighbours vote and T, and `Voters` keeps what voting needs: knn, mnn and dxml
each hold one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError, ParameterError
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.rows import add_matrix, describe_matrix, take_matrix
from longtail.runtime.schema import Schema, look_up, number, whole
from longtail.runtime.store import Files
from longtail.search.index import Index
from longtail.search.kernels import NOTHING, Best, Floats, Ids, offer, sort_best
from longtail.search.sparse import SparseIndex
from longtail.topk import NO_LABEL, TopK

MOST_COMPARED = 20_000  # documents of a label, of which the nearest are looked for
COMPARED = 5  # documents that speak for or against a label


class Nearest(Protocol):
    """An index of documents: `Index` of dense vectors, or `SparseIndex` of sparse rows."""

    @property
    def vectors(self) -> Any:
        """All vectors, by id."""

    def take(self, ids: NDArray[Any]) -> Any:
        """Return the vectors of these ids."""

    def __len__(self) -> int:
        """Return how many vectors there are."""

    def search(self, queries: Any, k: int) -> tuple[Ids, Floats]:
        """Return ids and similarities (n, k) of the nearest, nearest first; -1 means none."""

    def add_to_files(self, files: Files, name: str) -> None:
        """Add the index to a model's files."""


class Voting(NamedTuple):
    """How many neighbours vote, at which temperature, and the score that this reached."""

    n_neighbours: int
    temperature: float
    score: float = 0.0


class Neighbours(NamedTuple):
    """The neighbours of n documents, nearest first.

    Attributes:
        ids: (n, m) which of the voters; -1 means none.
        weights: (n, m) how much each counts.
    """

    ids: Ids
    weights: Floats


class Carried(NamedTuple):
    """The labels that each voter carries, as compiled code takes them.

    Attributes:
        start: (n + 1,) where those of each voter begin.
        labels: the labels of all voters.
        n_labels: how many labels there are.
    """

    start: NDArray[np.int64]
    labels: Ids
    n_labels: int

    @classmethod
    def of(cls, Y: sp.csr_matrix) -> "Carried":
        """View a matrix (n, n_labels); copies what has another type."""
        start = Y.indptr.astype(np.int64, copy=False)
        return cls(start, Y.indices.astype(np.int32, copy=False), int(Y.shape[1]))


@dataclass(frozen=True, eq=False)
class Voters:
    """The documents that vote, and how they vote.

    Attributes:
        index: finds those of them that are nearest to a query.
        Y: (n, n_labels) their labels.
        n_neighbours: how many of them vote on one document.
        temperature: the lower, the more the nearest count; 0 counts all alike.
    """

    index: Nearest
    Y: sp.csr_matrix
    n_neighbours: int
    temperature: float

    @cached_property
    def frequent(self) -> Ids:
        """All labels, the most frequent first."""
        counts = np.bincount(self.Y.indices, minlength=self.Y.shape[1])
        return np.argsort(-counts, kind="stable").astype(np.int32)

    @cached_property
    def carried(self) -> Carried:
        """Their labels; to copy where they begin takes longer than to count a document's votes."""
        return Carried.of(self.Y)

    def search(self, queries: Any, at_least: int = 1) -> tuple[Ids, Floats]:
        """Return ids and similarities (n, m) of the neighbours that vote, or of more."""
        return self.index.search(queries, max(self.n_neighbours, at_least))

    def find(self, queries: Any) -> "Neighbours":
        """Return the neighbours that vote on each query, with what their votes count."""
        ids, similarities = self.search(queries)
        return Neighbours(ids, weigh_votes(similarities, self.temperature))

    def rank_labels(self, neighbours: "Neighbours", k: int, *, fill: bool = True) -> TopK:
        """Return the k labels with the most votes for each document.

        Args:
            neighbours: of the documents, from `find`.
            k: how many labels.
            fill: whether labels that no neighbour carries follow by frequency, with score 0.
        """
        top = count_votes(*neighbours, self.carried, k)
        return fill_labels(top, self.frequent) if fill else top

    def score_labels(self, neighbours: "Neighbours", candidates: Ids) -> Floats:
        """Return the share (n, c) of the votes that each of a document's candidates gets."""
        return count_votes_for(candidates, *neighbours, self.carried)

    def find_carriers(self, label: int) -> NDArray[np.int64]:
        """Return the numbers of the documents that carry a label."""
        return find_carriers(self.Y, label)

    def find_nearest(self, query: Any, label: int, n: int) -> list[tuple[int, float]]:
        """Return up to n documents that carry a label, the nearest first, with their cosines."""
        carriers = self.find_carriers(label)[:MOST_COMPARED]
        if not len(carriers):
            return []
        found = self.index.take(carriers) @ query.T
        cosines = np.asarray(found.todense() if isinstance(found, sp.csr_matrix) else found).ravel()
        best = np.argsort(-cosines, kind="stable")[:n]
        return [(int(carriers[i]), float(cosines[i])) for i in best if cosines[i] > 0]

    def find_sides(self, query: Floats, label: int) -> tuple[Floats, Floats]:
        """Return the nearest vectors that speak for a label, and those that speak against it."""
        own = [i for i, _ in self.find_nearest(query, label, COMPARED)]
        found = self.search(query, COMPARED)[0][0]
        others = found[(found >= 0) & ~np.isin(found, self.find_carriers(label))]
        return self.index.take(np.array(own, np.int64)), self.index.take(others[:COMPARED])

    def rank_companions(self, label: int, n: int) -> list[tuple[int, float]]:
        """Return up to n labels that are often on the same documents, by the cosine of that."""
        return rank_companions(self.Y, label, n)

    def join_labels(self, Y: sp.csr_matrix) -> sp.csr_matrix:
        """Return the labels of these documents and of more, which may have new labels."""
        return join_labels(self.Y, Y)

    def add_to_files(self, files: Files, name: str = "voters") -> None:
        """Add the documents' vectors and labels, and how they vote, to a model's files."""
        self.index.add_to_files(files, f"{name}.index")
        add_matrix(files, f"{name}.labels", self.Y)
        files.config[name] = {
            "n_neighbours": self.n_neighbours,
            "temperature": self.temperature,
        }

    @classmethod
    def describe(cls, files: Files, dim: str, name: str = "voters") -> Schema:
        """Return the schema of what `add_to_files` adds, with the size of a vector."""
        facts = {"n_neighbours": whole(), "temperature": number(0)}
        index, n = f"{name}.index", f"{name}.n"
        if look_up(files.config, index, "type") == "sparse":
            vectors = SparseIndex.describe(index, n, dim)
        else:
            vectors = Index.describe(files, index, n, dim)
        labels = describe_matrix(f"{name}.labels", n)
        return Schema(config={name: facts}) | vectors | labels

    @classmethod
    def from_files(cls, files: Files, n_labels: int, name: str = "voters") -> Self:
        """Take back what `add_to_files` wrote."""
        is_sparse = files.config[f"{name}.index"]["type"] == "sparse"
        index: Nearest = (SparseIndex if is_sparse else Index).from_files(files, f"{name}.index")
        Y = take_matrix(files, f"{name}.labels", len(index), n_labels)
        return cls(index, Y, **files.config[name])


# -- what documents carry -------------------------------------------------------------------------


def find_carriers(Y: sp.csr_matrix, label: int) -> NDArray[np.int64]:
    """Return the numbers of the documents that carry a label."""
    cells = np.flatnonzero(Y.indices == label)
    return np.searchsorted(Y.indptr, cells, side="right") - 1


def rank_companions(Y: sp.csr_matrix, label: int, n: int) -> list[tuple[int, float]]:
    """Return up to n labels that are often on the same documents, by the cosine of that."""
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    shared = np.bincount(Y[find_carriers(Y, label)].indices, minlength=len(counts))
    shared[label] = 0
    found = np.flatnonzero(shared)
    cosines = shared[found] / np.sqrt(counts[found] * float(counts[label]))
    order = np.argsort(-cosines, kind="stable")[:n]
    return list(zip(found[order].tolist(), cosines[order].tolist(), strict=True))


def join_labels(Y: sp.csr_matrix, more: sp.csr_matrix) -> sp.csr_matrix:
    """Return the labels of documents and of more, which may have new labels."""
    shape = (Y.shape[0], more.shape[1])
    own = sp.csr_matrix((Y.data, Y.indices, Y.indptr), shape=shape)
    return sp.csr_matrix(sp.vstack([own, more], "csr"))


# -- choosing -------------------------------------------------------------------------------------


def choose_voting(
    ids: Ids,
    similarities: Floats,
    Y: sp.csr_matrix,
    score: Callable[[TopK], float],
    *,
    numbers: Sequence[int],
    temperatures: Sequence[float],
    alternate_from: Voting | None = None,
    rounds: int = 2,
) -> Voting:
    """Return the number of neighbours and the temperature that rank labels best.

    Args:
        ids: (n, m) the neighbours of n held-out documents, rows of `Y`; -1 means none.
        similarities: (n, m) how near they are.
        Y: the labels of the neighbours.
        score: how well five labels a document fit the held-out documents; higher is better.
        numbers: the numbers of neighbours to try.
        temperatures: the temperatures to try.
        alternate_from: where to begin if not all pairs are to be tried, but first the numbers at
            one temperature, then the temperatures at the best number.
        rounds: how often to alternate.
    """

    def judge(n: int, temperature: float) -> Voting:
        weights = weigh_votes(similarities[:, :n], temperature)
        return Voting(n, temperature, score(count_votes(ids[:, :n], weights, Y, 5)))

    def best_of(pairs: Sequence[tuple[int, float]]) -> Voting:
        return max((judge(*pair) for pair in pairs), key=lambda voting: voting.score)

    if alternate_from is None:
        return best_of(list(product(numbers, temperatures)))
    best = alternate_from
    for _ in range(rounds):
        best = best_of([(n, best.temperature) for n in numbers])
        best = best_of([(best.n_neighbours, temperature) for temperature in temperatures])
    return best


# -- counting -------------------------------------------------------------------------------------


def weigh_votes(similarities: NDArray[Any], temperature: float) -> Floats:
    """Return how much each neighbour (n, m) counts: e^(s/T), the nearest of a document 1.

    A temperature of 0 counts all of them alike.
    """
    if not temperature:
        return np.ones(similarities.shape, np.float32)
    exact = similarities.astype(np.float64)
    return np.exp((exact - exact[:, :1]) / temperature).astype(np.float32)


def count_votes(ids: Ids, similarities: NDArray[Any], Y: sp.csr_matrix | Carried, k: int) -> TopK:
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
    carried = Y if isinstance(Y, Carried) else Carried.of(Y)
    ids, weights = _check_votes(ids, similarities, carried)
    k = min(k, carried.n_labels)
    tasks = [(ids[a:b], weights[a:b], carried, k) for a, b in pairwise(cut(len(ids), n_threads()))]
    if not tasks:
        return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
    found = in_threads(_share_labels, tasks)
    return TopK(
        np.concatenate([best for best, _ in found]), np.concatenate([part for _, part in found])
    )


def count_votes_for(
    candidates: Ids, ids: Ids, similarities: NDArray[Any], carried: Carried
) -> Floats:
    """Return the scores (n, c) that `count_votes` gives the candidates of each document.

    A candidate that no neighbour carries gets 0, and so does -1, which is none.
    """
    ids, weights = _check_votes(ids, similarities, carried)
    cuts = cut(len(ids), n_threads())
    tasks = [(candidates[a:b], ids[a:b], weights[a:b], carried) for a, b in pairwise(cuts)]
    found = in_threads(_share_candidates, tasks)
    return np.concatenate(found) if found else np.zeros(candidates.shape, np.float32)


def _check_votes(ids: Ids, similarities: NDArray[Any], carried: Carried) -> tuple[Ids, Floats]:
    """Return neighbours and weights as compiled code takes them, or say what is wrong."""
    n_voters = len(carried.start) - 1
    ids = np.require(ids, np.int32, ["C", "A", "W"])
    weights = np.require(similarities, np.float32, ["C", "A", "W"])
    if ids.ndim != 2 or ids.shape != weights.shape:
        raise DataError(f"{ids.shape} neighbours have {weights.shape} similarities")
    if ids.size and (ids.min() < -1 or ids.max() >= n_voters):
        raise DataError(
            f"neighbours are numbered from {ids.min()} to {ids.max()}, "
            f"but labels are known of {n_voters}"
        )
    if not np.isfinite(weights).all():
        raise DataError("the similarities hold values that are not finite")
    return ids, weights


@njit(nogil=True, cache=True)
def _add_votes(ids: Ids, weights: Floats, carried: Carried, sums: NDArray[np.float64]) -> float:
    """Add what one document's neighbours count to the sums of their labels; return it all."""
    start, labels, n_labels = carried
    total = 0.0
    for place in range(len(ids)):
        neighbour, weight = ids[place], np.float64(weights[place])
        if neighbour < 0 or weight <= 0:
            continue
        total += weight
        if not 0 <= start[neighbour] <= start[neighbour + 1] <= len(labels):
            raise ValueError("Y is damaged: its rows lie outside of its entries")
        for cell in range(start[neighbour], start[neighbour + 1]):
            if not 0 <= labels[cell] < n_labels:
                raise ValueError("Y is damaged: it holds a label that does not exist")
            sums[labels[cell]] += weight
    return total


@njit(nogil=True, cache=True)
def _share_labels(ids: Ids, weights: Floats, carried: Carried, k: int) -> tuple[Ids, Floats]:
    """Return the k labels of each row with the highest share of the neighbours' weights."""
    start, labels, n_labels = carried
    best_ids = np.full((len(ids), k), NOTHING, np.int32)
    best_scores = np.full((len(ids), k), np.float32(-np.inf))
    sums = np.zeros(n_labels, np.float64)
    for i in range(len(ids)):
        best = Best(best_ids[i], best_scores[i])
        total = _add_votes(ids[i], weights[i], carried, sums)
        for place in range(ids.shape[1]):
            if ids[i, place] < 0 or weights[i, place] <= 0:
                continue
            for cell in range(start[ids[i, place]], start[ids[i, place] + 1]):
                label = labels[cell]
                if sums[label] > 0:  # and not offered yet
                    offer(best, label, np.float32(min(1.0, sums[label] / total)))
                    sums[label] = 0
        sort_best(best)
        for place in range(k):
            if best.ids[place] == NOTHING:
                best.ids[place], best.scores[place] = -1, 0
    return best_ids, best_scores


@njit(nogil=True, cache=True)
def _share_candidates(candidates: Ids, ids: Ids, weights: Floats, carried: Carried) -> Floats:
    """Return for each row the share of the neighbours' weights that its candidates have."""
    start, labels, n_labels = carried
    scores = np.zeros(candidates.shape, np.float32)
    sums = np.zeros(n_labels, np.float64)
    for i in range(len(ids)):
        total = _add_votes(ids[i], weights[i], carried, sums)
        for place in range(candidates.shape[1]):
            if candidates[i, place] >= 0 and sums[candidates[i, place]] > 0:
                scores[i, place] = np.float32(min(1.0, sums[candidates[i, place]] / total))
        for neighbour in ids[i]:
            if neighbour >= 0:
                for cell in range(start[neighbour], start[neighbour + 1]):
                    sums[labels[cell]] = 0
    return scores


def fill_labels(top: TopK, frequent: Ids) -> TopK:
    """Put the labels that come first in `frequent`, with score 0, where a row has too few."""
    for i in np.flatnonzero((top.labels == NO_LABEL).any(axis=1)):
        found = top.labels[i][top.labels[i] != NO_LABEL]
        more = frequent[~np.isin(frequent, found)]
        top.labels[i, len(found) :] = more[: top.k - len(found)]
    return top


def count_carriers(ids: Ids, Y: sp.csr_matrix, labels: Ids) -> Ids:
    """Return for each row how many of the documents `ids` carry each of its `labels` (n, k)."""
    near = sp.csr_matrix(
        (
            np.ones(int((ids >= 0).sum()), np.float32),
            ids[ids >= 0],
            np.concatenate(([0], np.cumsum((ids >= 0).sum(axis=1)))),
        ),
        shape=(len(ids), Y.shape[0]),
    )
    counts = near @ Y
    rows = np.broadcast_to(np.arange(len(ids))[:, None], labels.shape)
    known = (labels >= 0) & (labels < Y.shape[1])
    found = np.asarray(counts[rows.ravel(), np.where(known, labels, 0).ravel()]).reshape(
        labels.shape
    )
    return np.where(known, found, 0).astype(np.int32)


def leave_out(ids: Ids, similarities: Floats, own: NDArray[np.int64]) -> tuple[Ids, Floats]:
    """Drop each document from its own neighbours, or the last where it is not among them."""
    is_self = ids == own[:, None]
    is_self[~is_self.any(axis=1), -1:] = True
    shape = (len(ids), max(ids.shape[1] - 1, 0))
    return ids[~is_self].reshape(shape), similarities[~is_self].reshape(shape)
