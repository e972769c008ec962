"""DXML's training documents after training: where they lie, their labels, and how they vote."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.metrics import evaluate
from longtail.progress import SILENT, Progress
from longtail.runtime.rows import view_rows
from longtail.runtime.store import Files
from longtail.search.index import LARGEST_EXACT, Index, build_index, encode
from longtail.search.kernels import find_centres, to_unit
from longtail.search.voters import aggregate, fill_labels, weigh_votes
from longtail.topk import TopK

Floats = NDArray[np.float32]

CHOICES = (3, 5, 7, 10, 15, 20, 30, 50, 80, 120)  # numbers of neighbours to choose from
USUAL = 20  # neighbours, where there is nothing to choose by
RECALL = 0.95  # of the neighbours, where there are clusters; 0.99 takes four times as long for +0.3
MOST_LOOKED_AT = 20_000  # documents; that takes one or two milliseconds


@dataclass(frozen=True)
class Neighbours:
    """The documents that vote.

    Attributes:
        index: finds those nearest to a place.
        X: (n, n_features) their rows, so that training can go on with them.
        Y: (n, n_labels) their labels.
        frequent: all labels, the most frequent first.
    """

    index: Index
    X: sp.csr_matrix
    Y: sp.csr_matrix
    frequent: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        """Order the labels by how frequent they are."""
        counts = np.bincount(self.Y.indices, minlength=self.Y.shape[1])
        object.__setattr__(self, "frequent", np.argsort(-counts, kind="stable").astype(np.int32))

    def rank_labels(self, places: Floats, n: int, temperature: float, k: int) -> TopK:
        """Lines 2 to 5 of algorithm 2; labels that no neighbour carries follow by frequency."""
        ids, cosines = self.index.search(places, n)
        return fill_labels(
            aggregate(ids, weigh_votes(cosines, temperature), self.Y, k), self.frequent
        )

    def join(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the rows and labels of these documents and of more, which may have new labels."""
        shape = (self.Y.shape[0], Y.shape[1])
        own = sp.csr_matrix((self.Y.data, self.Y.indices, self.Y.indptr), shape=shape)
        return sp.vstack([self.X, X], "csr"), sp.vstack([own, Y], "csr")

    def add_to_files(self, files: Files) -> None:
        """Add the documents to a model's files."""
        self.index.add_to_files(files, "documents")
        rows, labels = view_rows(self.X), view_rows(self.Y)
        files.arrays["rows.start"], files.arrays["rows.columns"] = rows.start, rows.columns
        files.arrays["rows.values"] = rows.values
        files.arrays["labels.start"], files.arrays["labels.columns"] = labels.start, labels.columns

    @classmethod
    def from_files(cls, files: Files, n_features: int, n_labels: int) -> Self:
        """Take back what `add_to_files` wrote; raise ValueError for parts that do not fit."""
        index = Index.from_files(files, "documents")
        X = _take_matrix(files, "rows", (len(index), n_features))
        return cls(index, X, _take_matrix(files, "labels", (len(index), n_labels)))


def choose_number(
    index: Index, Y: sp.csr_matrix, places: Floats, wanted: sp.csr_matrix, temperature: float
) -> int:
    """Return the number of neighbours that ranks the labels `wanted` of the `places` best."""
    ids, cosines = index.search(places, max(CHOICES))
    weights = weigh_votes(cosines, temperature)
    found = {
        n: evaluate(aggregate(ids[:, :n], weights[:, :n], Y, 5), wanted)["nDCG@5"]
        for n in CHOICES
        if n <= ids.shape[1]
    }
    return max(found, key=found.__getitem__, default=USUAL)


# -- clusters ------------------------------------------------------------------------------------


def cluster(
    vectors: Floats,
    queries: Floats,
    n: int,
    *,
    clusters: int | None = None,
    searched: int | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Index:
    """Line 5 of algorithm 1: divide the documents by k-means, if there are many or it is asked for.

    Args:
        vectors: where the documents lie.
        queries: places like those that will be searched for.
        n: how many neighbours will be searched for.
        clusters: how many to make; 1 for none.
        searched: in how many to look; by default where 95 % of the neighbours are, but in no
            more than hold 20,000 documents.
        seed: fixes the clusters.
        progress: is told about the rounds of k-means.
    """
    if clusters == 1 or (clusters is None and vectors.size <= LARGEST_EXACT):
        return build_index(vectors, method="exact")
    index = build_index(
        vectors,
        method="approximate",
        queries=queries,
        recall=RECALL,
        recall_at=n,
        n_cells=clusters,
        seed=seed,
        progress=progress,
    )
    most = searched or max(1, MOST_LOOKED_AT * index.n_cells // len(index))
    if searched is not None or index.n_probed > most:
        _search_in(index, min(most, index.n_cells), queries, n)
    return index


def _search_in(index: Index, n_probed: int, queries: Floats, n: int) -> None:
    """Let the index search `n_probed` cells, and measure which share of the n nearest it finds."""
    index.n_probed = index.n_cells
    truth, _ = index.search(queries, n)
    index.n_probed = n_probed
    found, _ = index.search(queries, n)
    hits = [np.isin(one, other).mean() for one, other in zip(truth, found, strict=True)]
    index.recall = float(np.mean(hits))


def extend_index(index: Index, new: Floats) -> Index:
    """Return an index that holds `new` too, each in the cluster whose centre is nearest."""
    vectors = np.concatenate([index.vectors, new])
    if index.n_cells == 1:
        return Index(vectors, index.metric)
    cell = np.zeros(len(vectors), np.int32)
    cell[index.cells.order] = np.repeat(np.arange(index.n_cells), np.diff(index.cells.start))
    # A view of the last entries, which the compiled code fills.
    find_centres(new, 0, len(new), encode(to_unit(index.centres)), cell[len(index) :])
    counts = np.bincount(cell, minlength=index.n_cells)
    return Index(
        vectors,
        index.metric,
        centres=index.centres,
        start=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        order=np.argsort(cell, kind="stable").astype(np.int32),
        n_probed=index.n_probed,
        recall=index.recall,
        recall_at=index.recall_at,
    )


def _take_matrix(files: Files, name: str, shape: tuple[int, int]) -> sp.csr_matrix:
    """Return a saved matrix; raise ValueError unless compiled code can trust it."""
    start, columns = files.arrays[f"{name}.start"], files.arrays[f"{name}.columns"]
    values = files.arrays.get(f"{name}.values")
    values = np.ones(len(columns), np.float32) if values is None else values
    whole = start.shape == (shape[0] + 1,) and columns.shape == values.shape == (start[-1],)
    if not whole or start[0] != 0 or (np.diff(start) < 0).any():
        raise ValueError(f"{name} do not fit {shape[0]} documents")
    if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
        raise ValueError(f"{name} hold a column beyond {shape[1]}")
    if values.dtype != np.float32 or not np.isfinite(values).all():
        raise ValueError(f"{name} hold values that are not finite")
    return sp.csr_matrix((values, columns, start), shape=shape)
