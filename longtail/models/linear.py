"""Linear: a tree over the labels with a linear classifier for every node.

The idea of Parabel (Prabhu et al., WWW 2018), Bonsai (Khandagale et al., MLJ 2020) and
XR-Linear (Yu et al., JMLR 2022): labels are clustered by the documents that carry them
(tree.py); for every node a classifier tells the documents that belong below it from the others
that belong below its parent (solver.py); a document follows the best branches only (beam.py).

    x_i, y_i   X (n, n_features), Y (n, n_labels)    documents and their labels
    z_in       belongs[level] (n, nodes of level)    whether node n has a label of document i below
    w_n        TreeWeights                           the classifier of node n
    P(z_n)     product over the path to n of p(w_n·x), p(m) = e^(−max(0, 1 − m)^power) or σ(m)

With several trees, each from another seed, the mean of their probabilities ranks the labels.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import local
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from longtail.beam import TreeWeights, check_tree, search
from longtail.features import Tfidf
from longtail.models.base import Model
from longtail.parallel import n_threads, run_tasks
from longtail.progress import Progress
from longtail.rows import Rows, scale_to_unit, view_rows
from longtail.solver import NodeWeights, Settings, train_node
from longtail.store import Files
from longtail.topk import TopK
from longtail.tree import LabelTree, build_label_vectors, build_tree

CHUNK = 64  # classifiers trained side by side; more of them overflow the processor's cache
BATCH = 2048  # documents that search a tree together


class Linear(Model):
    """A tree of linear classifiers; the strongest of the classical methods, and the fastest.

    Args:
        trees: how many trees to average; more are slower and a little more accurate.
        branching: into how many clusters a cluster of labels is split at most.
        max_leaf: how many labels may share a parent; as many as there are means no tree at all.
        max_depth: at most so many levels of clusters; none means as many as it takes.
        balanced: make clusters equal in size (as Parabel does), or let them differ (Bonsai).
        normalize: scale every document's row to length 1.
        loss: what a classifier minimises.
        C: how much a wrong training document counts against large weights.
        bias: value of the constant feature; 0 switches it off.
        tolerance: stop training a node once no step is larger than this.
        max_passes: stop training a node after so many passes over its documents.
        prune: leave out weights smaller than this.
        beam: how many nodes of a level a document follows.
        power: how sharply a probability falls with the margin (squared hinge only).
        seed: fixes everything that is random.
        tfidf: how texts become rows.
    """

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "linear classifiers in a tree over the labels"
    choose_when: ClassVar[str] = "you want a strong model in seconds, on any number of labels"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {"trees": 1},
        "parabel": {"trees": 3, "branching": 2, "max_leaf": 100, "power": 2},
        "bonsai": {"trees": 3, "branching": 100, "balanced": False, "max_depth": 2, "power": 2},
    }

    trees_: Sequence[TreeWeights]

    def __init__(
        self,
        *,
        trees: int = 3,
        branching: int = 16,
        max_leaf: int = 100,
        max_depth: int | None = None,
        balanced: bool = True,
        normalize: bool = True,
        loss: Literal["squared-hinge", "logistic"] = "squared-hinge",
        C: float = 1.0,
        bias: float = 1.0,
        tolerance: float = 0.1,
        max_passes: int = 20,
        prune: float = 0.1,
        beam: int = 10,
        power: int = 3,
        seed: int = 0,
        tfidf: Tfidf | None = None,
    ):
        self.trees = trees
        self.branching = branching
        self.max_leaf = max_leaf
        self.max_depth = max_depth
        self.balanced = balanced
        self.normalize = normalize
        self.loss = loss
        self.C = C
        self.bias = bias
        self.tolerance = tolerance
        self.max_passes = max_passes
        self.prune = prune
        self.beam = beam
        self.power = power
        self.seed = seed
        self.tfidf = tfidf

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        for name in ("trees", "max_leaf", "max_passes", "beam", "power"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        self.require("branching", self.branching >= 2, "at least 2")
        self.require("max_depth", self.max_depth is None or self.max_depth >= 0, "0 or more")
        self.require(
            "loss", self.loss in ("squared-hinge", "logistic"), "'squared-hinge' or 'logistic'"
        )
        for name in ("C", "tolerance"):
            self.require(name, 0 < getattr(self, name) < np.inf, "a number above 0")
        for name in ("bias", "prune"):
            self.require(name, 0 <= getattr(self, name) < np.inf, "a number, 0 or more")
        self.require("seed", 0 <= self.seed < 2**32, "between 0 and 4294967295")

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Build the trees, then train all their nodes."""
        settings = Settings(
            self.loss == "logistic", self.C, self.bias, self.tolerance, self.max_passes, self.prune
        )
        X = self._scale(X)
        progress.stage("label vectors", 1)
        vectors = build_label_vectors(X, Y)
        progress.advance(1)
        trained = []
        for number in range(self.trees):
            seed = self.seed + 15485863 * number
            which = f" of tree {number + 1}/{self.trees}" if self.trees > 1 else ""
            tree = build_tree(
                vectors,
                branching=self.branching,
                max_leaf=self.max_leaf,
                max_depth=self.max_depth,
                balanced=self.balanced,
                seed=seed,
                progress=progress,
            )
            trained.append(_train_tree(X, Y, tree, settings, seed, progress, which))
        self.trees_ = trained

    def predict_rows(self, X: sp.csr_matrix, k: int) -> TopK:
        """Search every tree and rank the labels by their mean probability."""
        rows = view_rows(self._scale(X))
        n = X.shape[0]
        size = min(BATCH, max(1, -(-n // n_threads())))
        batches = [(first, min(first + size, n)) for first in range(0, n, size)]
        # A label that is just below one tree's best k may be among the best of the mean.
        width = k if self.trees == 1 else max(2 * k, 10)
        power = 0 if self.loss == "logistic" else self.power
        found = [
            _search_batches(rows, X.shape[1], batches, tree, self.beam, width, power)
            for tree in self.trees_
        ]
        if self.trees == 1:
            return TopK(found[0][0], np.exp(found[0][1]))
        labels = np.concatenate([labels for labels, _ in found], axis=1)
        logs = np.concatenate([logs for _, logs in found], axis=1)
        return TopK(*_best_means(labels, logs, self.trees, k))

    def _scale(self, X: sp.csr_matrix) -> sp.csr_matrix:
        return scale_to_unit(X) if self.normalize else X

    def add_to_files(self, files: Files) -> None:
        """Add the arrays of every tree."""
        for number, tree in enumerate(self.trees_):
            for field, array in tree._asdict().items():
                files.arrays[f"tree.{number}.{field}"] = array

    def restore(self, files: Files) -> None:
        """Take the arrays of every tree back."""
        self.trees_ = [
            TreeWeights(*(files.arrays[f"tree.{number}.{field}"] for field in TreeWeights._fields))
            for number in range(self.trees)
        ]
        for tree in self.trees_:
            check_tree(tree, self.n_features_, len(self.label_names_))


class _Task(NamedTuple):
    """One chunk of classifiers to train: the children first ≤ c < last of a node."""

    level: int
    node: int
    documents: NDArray[np.int32]
    first: int
    last: int
    cost: float


def _train_tree(
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    tree: LabelTree,
    settings: Settings,
    seed: int,
    progress: Progress,
    which: str,
) -> TreeWeights:
    belongs = _spread_upwards(Y, tree)
    tasks = _plan(X, tree, belongs)
    rows = view_rows(X)
    levels = [view_rows(matrix) for matrix in belongs]
    scratch = local()

    def train(number: int, task: _Task) -> NodeWeights:
        if not hasattr(scratch, "columns"):
            scratch.columns = np.full(X.shape[1], -1, np.int32)
        return train_node(
            rows,
            levels[task.level + 1],
            task.documents,
            task.first,
            task.last,
            settings,
            seed + number,
            scratch.columns,
        )

    costs = [task.cost for task in tasks]
    progress.stage(f"classifiers{which}", sum(costs))
    return _assemble(tree, tasks, run_tasks(train, list(enumerate(tasks)), costs, progress))


def _spread_upwards(Y: sp.csr_matrix, tree: LabelTree) -> list[sp.csr_matrix]:
    """Return for each level the (n, nodes) matrix of the nodes that have a document's labels."""
    place = np.empty(tree.n_labels, np.int32)
    place[tree.leaves] = np.arange(tree.n_labels, dtype=np.int32)
    below = sp.csr_matrix((Y.data, place[Y.indices], Y.indptr), shape=Y.shape)
    belongs = [below]
    for level in range(tree.depth, 0, -1):
        parents = tree.parents(level)
        step = sp.csr_matrix(
            (np.ones(len(parents), np.float32), parents, np.arange(len(parents) + 1)),
            shape=(len(parents), tree.sizes[level - 1]),
        )
        below = below @ step
        belongs.insert(0, below)
    return belongs


def _plan(X: sp.csr_matrix, tree: LabelTree, belongs: Sequence[sp.csr_matrix]) -> list[_Task]:
    """List the chunks of all nodes, level by level, with their documents."""
    n_cells = np.diff(X.indptr).astype(np.int64)
    tasks = []
    for level, children in enumerate(tree.children):
        by_node = belongs[level].T.tocsr()
        by_node.sort_indices()
        for node in range(tree.sizes[level]):
            documents = by_node.indices[by_node.indptr[node] : by_node.indptr[node + 1]]
            n_cells_here = float(n_cells[documents].sum()) + len(documents)
            n_chunks = -(-(children[node + 1] - children[node]) // CHUNK)
            cuts = (
                np.linspace(children[node], children[node + 1], n_chunks + 1).astype(int).tolist()
            )
            for first, last in pairwise(cuts):
                cost = n_cells_here * (last - first + 8) + 1
                tasks.append(_Task(level, node, documents, first, last, cost))
    return tasks


def _assemble(
    tree: LabelTree, tasks: Sequence[_Task], trained: Sequence[NodeWeights]
) -> TreeWeights:
    """Number all nodes through and lay their weights one after the other."""
    level = _running_sum(tree.sizes)
    inner = [level[task.level] + task.node for task in tasks]
    weights_before = _running_sum([len(node.weights) for node in trained])
    starts = [node.start[:-1] + n for node, n in zip(trained, weights_before[:-1], strict=True)]
    return TreeWeights(
        level=level,
        chunk=_running_sum(np.bincount(inner, minlength=level[-2])),
        child=np.array(
            [level[task.level + 1] + task.first for task in tasks] + [level[-1]], dtype=np.int64
        ),
        row=_running_sum([len(node.features) for node in trained]),
        feature=np.concatenate([node.features for node in trained]),
        start=np.concatenate([*starts, weights_before[-1:]]),
        offset=np.concatenate([node.children for node in trained]).astype(np.uint8),
        weight=np.concatenate([node.weights for node in trained]),
        bias=np.concatenate([np.zeros(1, np.float32)] + [node.bias for node in trained]),
        leaves=tree.leaves,
    )


def _running_sum(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _search_batches(
    rows: Rows,
    n_features: int,
    batches: Sequence[tuple[int, int]],
    tree: TreeWeights,
    beam: int,
    width: int,
    power: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Search one tree with all batches of documents, side by side."""
    if len(batches) == 1:  # one document is answered faster than a thread is started
        first, last = batches[0]
        table = np.full(n_features if last - first > 1 else 0, -1, np.int64)
        return search(rows, first, last, tree, beam, width, power, table)
    scratch = local()

    def run(first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        if not hasattr(scratch, "table"):
            scratch.table = np.full(n_features, -1, np.int64)
        return search(rows, first, last, tree, beam, width, power, scratch.table)

    found = run_tasks(run, batches, [float(last - first) for first, last in batches])
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


@njit(nogil=True, cache=True)
def _best_means(
    labels: NDArray[np.int32], logs: NDArray[np.float32], n_trees: int, k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the k labels of each row with the highest mean of their e^log over the trees."""
    n, width = labels.shape
    best = np.full((n, k), -1, np.int32)
    means = np.zeros((n, k), np.float32)
    own = np.empty(width, np.int32)
    total = np.empty(width, np.float32)
    for i in range(n):
        size = 0
        for place in range(width):
            if labels[i, place] < 0:
                continue
            at = 0
            while at < size and own[at] != labels[i, place]:
                at += 1
            if at == size:
                own[at] = labels[i, place]
                total[at] = 0
                size += 1
            total[at] += np.exp(logs[i, place])
        order = np.argsort(-total[:size], kind="mergesort")
        for rank in range(min(k, size)):
            best[i, rank] = own[order[rank]]
            means[i, rank] = total[order[rank]] / n_trees
    return best, means
