"""The graph of labels and DeepWalk on it: labels that stand near each other get similar vectors.

Perozzi et al., "DeepWalk: Online Learning of Social Representations", KDD 2014. Random walks from
every label are read as sentences, and a skip-gram model makes vectors of their words. Two labels
have an edge if a document carries both, or if a given hierarchy says so.

Edges are counted label by label, so that memory holds the graph and one row of scratch space, never
all pairs of labels in all documents. Every walk has a random stream of its own, made of seed and
the walk's number: threads do not change it. One thread trains the vectors, for the same reason.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import MissingExtraError
from longtail.progress import SILENT, Progress
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.search.kernels import to_unit

Ids = NDArray[np.int32]
Starts = NDArray[np.int64]
Floats = NDArray[np.float32]

END = -1  # fills the rows of walks that could not go on
NEGATIVE = 5  # random labels that each pair is contrasted with
SMALLEST = 1e-6  # spread, as a share of the largest; less is rounding
TINY = 1e-12  # length of a vector; less is none
LARGEST_CORPUS = 1 << 25  # steps of walks that are in memory at once


class LabelGraph(NamedTuple):
    """An undirected graph: label i has the edges start[i] ≤ e < start[i + 1].

    Attributes:
        start: (n_labels + 1,) where each label's edges begin.
        ends: (n_edges,) the label at the other end; rising for each label, never itself.
        reach: (n_edges,) the sum of the weights of a label's edges up to this one.
    """

    start: Starts
    ends: Ids
    reach: NDArray[np.float64]

    @property
    def n_labels(self) -> int:
        """The number of labels, with those that have no edge."""
        return len(self.start) - 1

    @property
    def degrees(self) -> NDArray[np.int64]:
        """How many edges each label has."""
        return np.diff(self.start)


# ------------------------------------------------------------------------------------- the graph


def build_graph(Y: sp.csr_matrix, *, weighted: bool = False) -> LabelGraph:
    """Connect labels that some document carries both of.

    Args:
        Y: (n, n_labels) the labels of the documents.
        weighted: let an edge weigh as much as there are such documents; otherwise all weigh 1.
    """
    documents = Y.indptr.astype(np.int64), Y.indices.astype(np.int32, copy=False)
    turned = sp.csc_matrix(Y)
    labels = turned.indptr.astype(np.int64), turned.indices.astype(np.int32, copy=False)
    cuts = _cut_by_cost(_pairs_of_labels(*documents, *labels), 8 * n_threads())
    tasks = [(a, b, *labels, *documents, weighted) for a, b in pairwise(cuts)]
    parts = run_tasks(_count_edges, tasks, [1.0] * len(tasks))
    counts = np.concatenate([part[0] for part in parts])
    start = np.concatenate(([0], np.cumsum(counts)))
    return LabelGraph(
        start,
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
    )


def connect(pairs: NDArray[np.integer], n_labels: int) -> LabelGraph:
    """Return the graph with these edges (m, 2), each of weight 1 and in both directions."""
    both = np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int64)
    both = np.unique(both[both[:, 0] != both[:, 1]], axis=0)
    counts = np.bincount(both[:, 0], minlength=n_labels)
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    reach = np.arange(1.0, len(both) + 1) - np.repeat(start[:-1], counts)
    return LabelGraph(start, both[:, 1].astype(np.int32), reach)


def _cut_by_cost(costs: NDArray[np.int64], n_parts: int) -> list[int]:
    """Return the borders of parts that cost about the same, none of them empty."""
    total = np.cumsum(costs + 1)
    borders = np.searchsorted(total, total[-1] * np.arange(1, n_parts) / n_parts)
    return sorted({0, *(borders + 1).tolist(), len(costs)} & set(range(len(costs) + 1)))


@njit(nogil=True, cache=True)
def _pairs_of_labels(
    document_start: Starts, labels: Ids, label_start: Starts, documents: Ids
) -> NDArray[np.int64]:
    """Return how many labels stand in all documents of each label."""
    costs = np.zeros(len(label_start) - 1, np.int64)
    for label in range(len(costs)):
        for cell in range(label_start[label], label_start[label + 1]):
            document = documents[cell]
            costs[label] += document_start[document + 1] - document_start[document]
    return costs


@njit(nogil=True, cache=True)
def _count_edges(
    first: int,
    last: int,
    label_start: Starts,
    documents: Ids,
    document_start: Starts,
    labels: Ids,
    weighted: bool,
) -> tuple[NDArray[np.int64], Ids, NDArray[np.float64]]:
    """Return the edges of some labels: how many each has, their ends, their `reach`."""
    counts = np.zeros(len(label_start) - 1, np.int64)
    met = np.empty(len(counts), np.int32)
    degrees = np.zeros(last - first, np.int64)
    ends, reach = np.empty(1024, np.int32), np.empty(1024, np.float64)
    n_edges = 0
    for label in range(first, last):
        n_met = 0
        for cell in range(label_start[label], label_start[label + 1]):
            document = documents[cell]
            for place in range(document_start[document], document_start[document + 1]):
                other = labels[place]
                if other == label:
                    continue
                if counts[other] == 0:
                    met[n_met] = other
                    n_met += 1
                counts[other] += 1
        while n_edges + n_met > len(ends):
            ends = np.concatenate((ends, np.empty_like(ends)))
            reach = np.concatenate((reach, np.empty_like(reach)))
        total = 0.0
        for other in np.sort(met[:n_met]):
            total += counts[other] if weighted else 1
            ends[n_edges], reach[n_edges] = other, total
            counts[other] = 0
            n_edges += 1
        degrees[label - first] = n_met
    return degrees, ends[:n_edges].copy(), reach[:n_edges].copy()


# ------------------------------------------------------------------------------------- the walks


def walk(graph: LabelGraph, starts: NDArray[np.integer], length: int, seed: int, first: int) -> Ids:
    """Return one walk (length) from each of `starts`; walk i draws from stream `first` + i."""
    n = len(starts)
    walks = np.empty((n, length), np.int32)
    size = max(1, -(-n // (4 * n_threads())))
    begin = starts.astype(np.int32)
    tasks = [(graph, begin, walks, seed, first, a, min(a + size, n)) for a in range(0, n, size)]
    run_tasks(_walk, tasks, [1.0] * len(tasks))
    return walks


@njit(nogil=True, cache=True)
def _mix(state: np.uint64) -> np.uint64:
    """Steele et al. 2014 (SplitMix64): turn a counter into bits that look random."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@njit(nogil=True, cache=True)
def _walk(
    graph: LabelGraph, starts: Ids, walks: Ids, seed: int, stream: int, first: int, last: int
) -> None:
    step = np.uint64(0x9E3779B97F4A7C15)
    for i in range(first, last):
        state = _mix(_mix(np.uint64(seed) + step) + np.uint64(stream + i) * step)
        here = starts[i]
        for place in range(walks.shape[1]):
            walks[i, place] = here
            if here == END:
                continue
            begin, end = graph.start[here], graph.start[here + 1]
            if begin == end:
                here = np.int32(END)
                continue
            state += step
            share = np.float64(_mix(state) >> np.uint64(11)) * 2.0**-53
            drawn = share * graph.reach[end - 1]
            edge = begin + np.searchsorted(graph.reach[begin:end], drawn, side="right")
            here = graph.ends[min(edge, end - 1)]


# ---------------------------------------------------------------------------------- the vectors


class Walks:
    """The walks of DeepWalk as gensim reads them: lists of words, made anew for each reading.

    Labels without edges are left out: a walk that cannot leave says nothing.
    """

    def __init__(self, graph: LabelGraph, n_walks: int, length: int, seed: int) -> None:
        """Plan `n_walks` walks of `length` labels from each label."""
        self.graph, self.n_walks, self.length, self.seed = graph, n_walks, length, seed
        self.begins = np.flatnonzero(graph.degrees)
        self.progress: Progress = SILENT
        self.ended_by: BaseException | None = None  # what ended the last reading too soon

    def __len__(self) -> int:
        """Return the number of walks."""
        return self.n_walks * len(self.begins)

    def blocks(self) -> Iterator[Ids]:
        """Yield the walks (m, length), from all labels in a new order each time round."""
        size = max(1, LARGEST_CORPUS // self.length)
        for turn in range(self.n_walks):
            starts = np.random.default_rng([self.seed, turn]).permutation(self.begins)
            for first in range(0, len(starts), size):
                chosen = starts[first : first + size]
                number = turn * len(starts) + first
                yield walk(self.graph, chosen, self.length, self.seed, number)

    def __iter__(self) -> Iterator[list[str]]:
        """Yield each walk as a list of words.

        gensim reads in a thread of its own and would wait for ever if that thread failed. So an
        error, such as that time is over, ends the walks, and is kept for `learn_vectors` to raise.
        """
        self.ended_by = None
        try:
            words = np.array([str(label) for label in range(self.graph.n_labels)], object)
            for block in self.blocks():
                for first in range(0, len(block), 1024):
                    yield from words[block[first : first + 1024]].tolist()
                    self.progress.advance(min(1024, len(block) - first))
        except GeneratorExit:
            raise
        except BaseException as error:  # OutOfTimeError is no Exception
            self.ended_by = error

    def count(self) -> NDArray[np.int64]:
        """Return how often each label is visited."""
        visits = np.zeros(self.graph.n_labels, np.int64)
        for block in self.blocks():
            visits += np.bincount(block.ravel(), minlength=len(visits))
        return visits


def embed_labels(
    graph: LabelGraph,
    dim: int,
    *,
    n_walks: int,
    length: int,
    window: int,
    hierarchical: bool = False,
    subsample: float = 0.0,
    whiten: float = 1.0,
    unit: bool = True,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Floats:
    """Return a vector (dim) for each label of the graph.

    Args:
        graph: which labels are neighbours.
        dim: the length of the vectors.
        n_walks: walks from each label.
        length: labels in a walk.
        window: labels before and after one that count as its neighbours in a walk.
        hierarchical: train by hierarchical softmax, in place of negative sampling.
        subsample: thin labels out of the walks that are more than this share of them; 0 for none.
        whiten: how far the cosines of different labels are shrunk, from 0 to 1.
        unit: scale the vectors to length 1.
        seed: fixes walks and vectors.
        progress: shows how many walks have been read.
    """
    walks = Walks(graph, n_walks, length, seed)
    vectors = np.empty((graph.n_labels, dim), np.float32)
    usual = 1.0
    if len(walks):
        found = learn_vectors(
            walks, dim, window, seed, progress, hierarchical=hierarchical, subsample=subsample
        )
        found = whiten_vectors(found, whiten)
        vectors[walks.begins] = to_unit(found) if unit else found
        usual = mean_length(vectors[walks.begins])
    # A label without edges is like no other: any direction of its own will do.
    alone = np.flatnonzero(graph.degrees == 0)
    vectors[alone] = usual * draw_orthogonal(len(alone), dim, seed)
    return vectors


def learn_vectors(
    walks: Walks,
    dim: int,
    window: int,
    seed: int,
    progress: Progress,
    *,
    hierarchical: bool = False,
    subsample: float = 0.0,
) -> Floats:
    """Return the skip-gram vectors (n, dim) of the labels that the walks begin from."""
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise MissingExtraError.of("Label vectors from walks need gensim", "deep") from error
    visits = walks.count()
    progress.stage("label vectors", len(walks))
    walks.progress = progress
    with _only_errors("gensim"):
        model = Word2Vec(
            vector_size=dim,
            window=window,
            sg=1,
            hs=int(hierarchical),
            negative=0 if hierarchical else NEGATIVE,
            sample=subsample,
            min_count=1,
            workers=1,
            seed=seed,
        )
        visited = {str(label): int(visits[label]) for label in walks.begins}
        model.build_vocab_from_freq(visited, corpus_count=len(walks))
        model.train(walks, total_examples=len(walks), epochs=1)
    if walks.ended_by is not None:
        raise walks.ended_by
    order = [model.wv.key_to_index[str(label)] for label in walks.begins]
    return np.asarray(model.wv.vectors[order], np.float32)


@contextmanager
def _only_errors(logger_name: str) -> Iterator[None]:
    """Keep a library's remarks, such as that there are few sentences, off the terminal."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def whiten_vectors(vectors: Floats, share: float) -> Floats:
    """Shrink the cosines of different labels towards 0, by a `share` from 0 to 1.

    Skip-gram vectors of a small, dense graph share a few long directions, which hide what tells
    labels apart. So their mean is taken away, and of each principal direction the spread becomes
    (1 - share) of itself and `share` of what is the mean over all directions. With no more labels
    than dimensions, a cosine becomes (1 - share) of what the graph says, and that of a label with
    itself stays 1. A share of 0 changes nothing.
    """
    if share == 0 or len(vectors) < 2:
        return vectors
    rows = vectors.astype(np.float64)
    rows -= rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.maximum(lengths, TINY)
    squares, directions = np.linalg.eigh(rows.T @ rows)
    squares = np.maximum(squares, squares.max() * SMALLEST)
    mean_square = squares.sum() / min(len(rows) - 1, rows.shape[1])
    wanted = (1 - share) * squares + share * mean_square
    rows = rows @ directions
    rows *= lengths.mean() * np.sqrt(wanted / squares)
    return np.asarray(rows, np.float32)


def draw_directions(n: int, dim: int, seed: int) -> Floats:
    """Return n random unit vectors."""
    rng = np.random.default_rng([seed, dim])
    return to_unit(rng.standard_normal((n, dim), dtype=np.float32))


def draw_orthogonal(n: int, dim: int, seed: int) -> Floats:
    """Return n random unit vectors, of which each `dim` in a row are orthogonal."""
    rng = np.random.default_rng([seed, dim])
    drawn = np.empty((n, dim), np.float32)
    for first in range(0, n, dim):
        basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        drawn[first : first + dim] = basis[: n - first]
    return drawn


def mean_length(vectors: Floats) -> float:
    """Return how long the vectors are on average; 1 if there are none."""
    return float(np.linalg.norm(vectors, axis=1).mean()) if len(vectors) else 1.0
