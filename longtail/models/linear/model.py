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

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import local
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.labels.pairs import estimate_product, thin_labels
from longtail.labels.tree import LabelTree, build_label_vectors, build_tree
from longtail.models.base import Model
from longtail.models.cost import Facts
from longtail.models.linear.beam import (
    UNKNOWN,
    Paths,
    TreeWeights,
    count_rows,
    empty_weights,
    find_paths,
    mean_probabilities,
    pick_best,
    place_rows,
    score_paths,
    search,
    unite,
)
from longtail.models.linear.packed import add_tree, describe_tree, round_weights, take_tree
from longtail.models.linear.solver import NodeWeights, Settings, train_node
from longtail.progress import SILENT, Progress
from longtail.runtime.memory import Needs, Stage
from longtail.runtime.parallel import in_threads, n_threads, run_tasks
from longtail.runtime.rows import Rows, scale_rows, scale_to_unit, view_rows
from longtail.runtime.schema import Schema
from longtail.runtime.settings import above, at_least, between, configurable, learned, setting
from longtail.runtime.store import Files
from longtail.topk import TopK

BLOCK = 64  # classifiers trained side by side; more of them overflow the processor's cache
SURE = 100.0  # a margin that stands for a probability of 1; its negative for 0
PRUNED_LENGTH = 120  # features of a document at which half of the weights are pruned
CROWDED = 0.4  # of the features of documents with very many labels keep a weight
INNER_NODES = 1.3  # times as many weights as the labels' own
PER_LABEL = 80  # bytes for each label: its places in the tree, its document counts, its name
BATCH = 1024  # documents that a thread takes at a time
LEAST_WIDTH = 10  # labels that each of several trees proposes, however few are wanted


@configurable
class Linear(Model):
    """A tree of linear classifiers; the strongest of the classical methods, and the fastest."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "linear classifiers in a tree over the labels"
    choose_when: ClassVar[str] = "you want a strong model in seconds, on any number of labels"
    member_order: ClassVar[int | None] = 1
    member_reason: ClassVar[str] = "strong everywhere, and the quickest"
    cheaper_presets: ClassVar[Sequence[str]] = ("fast",)
    milliseconds: ClassVar[float] = 0.2
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {"trees": 1},
        "parabel": {"flat": 0, "branching": 2, "max_leaf": 100, "balanced": True},
        "bonsai": {"flat": 0, "branching": 100, "max_leaf": 100},
    }

    trees: int = setting(
        3, "how many trees to average; more are slower and a little more accurate", between(1, 1000)
    )
    flat: int = setting(
        1000,
        "with at most so many labels there is no tree: every document tries every label",
        at_least(0),
    )
    branching: int = setting(
        256,
        "how many children a node may have; few make a deep tree, many a shallow one",
        at_least(2),
    )
    max_leaf: int = setting(400, "how many labels may share a parent", at_least(1))
    max_depth: int | None = setting(
        None, "at most so many levels of clusters; none means as many as it takes", at_least(0)
    )
    balanced: bool = setting(
        False, "make clusters equal in size (as Parabel does), or let them differ (Bonsai)"
    )
    normalize: bool = setting(True, "scale every document's row to length 1")
    loss: Literal["squared-hinge", "logistic"] = setting(
        "squared-hinge", "what a classifier minimizes"
    )
    C: float = setting(
        0.5, "how much a wrong training document counts against large weights", above(0)
    )
    bias: float = setting(1.0, "value of the constant feature; 0 switches it off", at_least(0))
    tolerance: float = setting(
        0.2, "stop training a node once no step is larger than this", above(0)
    )
    max_passes: int = setting(
        10, "stop training a node after so many passes over its documents", between(1, 1_000_000)
    )
    prune: float = setting(0.1, "leave out weights smaller than this", at_least(0))
    beam: int = setting(10, "how many nodes of a level a document follows", at_least(1))
    power: int = setting(
        3, "how sharply a probability falls with the margin (squared hinge only)", between(1, 100)
    )

    trees_: Sequence[TreeWeights] = learned()
    _paths: tuple[Sequence[TreeWeights] | None, Sequence[Paths]] = learned(default=(None, ()))

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Up to 1,000 labels every value meets every label; beyond, there are three trees."""
        if facts.n_labels <= cls.flat:
            return 0.2 + 4e-9 * facts.n_values * facts.n_labels
        n_trees = cls.preset(preset).trees if preset else cls.trees
        each = 0.75e-6 * facts.n_values + 0.0008 * min(facts.n_labels, facts.n_documents)
        return 0.2 + n_trees * each

    def work(self, facts: Facts) -> float:
        """Every tree is trained; most nodes are done after a few passes, unless told to go on."""
        passes = min(self.max_passes, 10) if self.tolerance >= 0.01 else self.max_passes
        return passes * (1 if self._is_flat(facts.n_labels) else self.trees)

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Build the trees, then train all their nodes."""
        others = ({"trees": 1}, {"trees": 1, "prune": 0.3})
        self.say_memory(lambda m: m.needs_of(X, Y, "cpu"), others, progress)
        settings = Settings(
            self.loss == "logistic", self.C, self.bias, self.tolerance, self.max_passes, self.prune
        )
        X = scale_to_unit(X) if self.normalize else X
        trees = self._build_trees(X, Y, progress)
        trained = []
        for number, tree in enumerate(trees):
            which = f" of tree {number + 1}/{len(trees)}" if len(trees) > 1 else ""
            seed = self._tree_seed(number)
            began = time.monotonic()
            trained.append(_train_tree(X, Y, tree, settings, seed, progress, which))
            took = time.monotonic() - began
            if self.stop_at is not None and time.monotonic() + took > self.stop_at:
                break  # the others would come too late
        self.trees_ = [round_weights(tree) for tree in trained]
        if len(trained) < len(trees):
            self.trees = len(trained)

    def _build_trees(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress
    ) -> list[LabelTree]:
        if self._is_flat(Y.shape[1]):  # without clusters all trees would be the same
            return [LabelTree.flat(Y.shape[1])]
        progress.stage("label vectors", 1)
        vectors = build_label_vectors(X, thin_labels(Y, self.seed, progress))
        progress.advance(1)
        return [
            build_tree(
                vectors,
                branching=self.branching,
                max_leaf=self.max_leaf,
                max_depth=self.max_depth,
                balanced=self.balanced,
                seed=self._tree_seed(number),
                progress=progress,
            )
            for number in range(self.trees)
        ]

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what the label vectors, the classifiers and their assembly take."""
        (n, n_features), n_labels = X.shape, Y.shape[1]
        n_cells = estimate_product(thin_labels(Y, self.seed, SILENT), X)
        n_used = _count_used(X)
        n_blocks = -(-n_labels // BLOCK)
        block = X.nnz * 8 + 4 * min(BLOCK, n_labels) * (n + n_used) + 28 * n + 20 * n_used
        scratch = min(n_threads(), n_blocks) * (block + 4 * n_features)
        trained, tree = self._weigh_trees(X, Y, n_cells, n_used)
        common = {"rows": 4 * X.nnz * self.normalize + 8 * n, "labels": PER_LABEL * n_labels}
        is_flat = self._is_flat(n_labels)
        done = 0 if is_flat else (self.trees - 1) * tree
        stages = [
            Stage({"classifiers": scratch, "weights": trained + done, **common}),
            Stage({"scratch": min(scratch, 1 << 26), "weights": trained + tree + done, **common}),
        ]
        vectors = Stage({"label vectors": 20 * n_cells, **common})
        return stages if is_flat else [vectors, *stages]

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return what the trees take."""
        n_cells = estimate_product(thin_labels(Y, self.seed, SILENT), X)
        _, tree = self._weigh_trees(X, Y, n_cells, X.shape[1])
        return tree * (1 if self._is_flat(Y.shape[1]) else self.trees)

    def _weigh_trees(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, n_cells: int, n_used: int
    ) -> tuple[int, int]:
        """Return what the weights of one tree take: as its nodes are trained, and assembled.

        A label has weights for the features of its documents, of which there are `n_cells`, and for
        some of those of documents with very many labels. Weights of long documents are small, and
        small ones are pruned.
        """
        kept = 1 / (1 + (X.nnz / X.shape[0] / PRUNED_LENGTH) ** 2)
        if not self._is_flat(Y.shape[1]):
            kept *= INNER_NODES
        crowded = CROWDED * max(0, estimate_product(Y, X) - n_cells)
        n_weights, n_rows = int(kept * (n_cells + crowded)), kept * n_cells
        most_rows = n_used * -(-Y.shape[1] // BLOCK)
        trained = 5 * n_weights + 12 * min(int(0.6 * n_rows), most_rows)
        tree = 6 * n_weights + 8 * min(int(0.4 * n_rows), most_rows) + 16 * X.shape[1]
        return trained, tree

    def _is_flat(self, n_labels: int) -> bool:
        return n_labels <= self.flat

    def _tree_seed(self, number: int) -> int:
        return self.seed + 15485863 * number

    def read_rows(self, X: sp.csr_matrix) -> Rows:
        """Scale the rows, if that is asked for."""
        return scale_rows(view_rows(X)) if self.normalize else view_rows(X)

    def predict_rows(self, X: Rows, k: int) -> TopK:
        """Search every tree and rank the labels by their mean probability."""
        found = in_threads(self._search, [(X, a, b, k) for a, b in _cut(X)])
        if len(found) == 1:
            return TopK(*found[0])
        labels, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return TopK(labels, scores)

    def score_rows(self, X: Rows, candidates: NDArray[np.int32]) -> NDArray[np.float32]:
        """Follow the path to each candidate in every tree, whether a beam would find it or not."""
        tasks = [(X, a, candidates[a:b]) for a, b in _cut(X)]
        return np.concatenate(in_threads(self._score, tasks))

    def _search(
        self, rows: Rows, first: int, last: int, k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the best labels of the documents first ≤ i < last, and their probabilities."""
        # A label that is just below one tree's best k may be among the best of the mean.
        width = k if len(self.trees_) == 1 else max(k, LEAST_WIDTH)
        found = [
            search(rows, first, last, tree, self.beam, width, self._power) for tree in self.trees_
        ]
        if len(found) == 1:
            ((labels, logs),) = found
            return labels, mean_probabilities(labels, logs[None])
        labels, logs = unite(
            np.stack([one for one, _ in found]), np.stack([one for _, one in found])
        )
        return pick_best(labels, self._average(rows, first, labels, logs), k)

    def _score(self, rows: Rows, first: int, candidates: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the probabilities of the candidates of documents from `first` on."""
        logs = np.full((len(self.trees_), *candidates.shape), UNKNOWN)
        return self._average(rows, first, candidates, logs)

    def _average(
        self,
        rows: Rows,
        first: int,
        labels: NDArray[np.int32],
        logs: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return the mean probabilities of labels; `logs` of the trees get what they lack."""
        for tree, paths, own in zip(self.trees_, self._find_paths(), logs, strict=True):
            score_paths(rows, first, tree, paths, labels, own, self._power)
        return mean_probabilities(labels, logs)

    @property
    def _power(self) -> int:
        """How margins become probabilities; 0 stands for the logistic loss."""
        return 0 if self.loss == "logistic" else self.power

    def _find_paths(self) -> Sequence[Paths]:
        """Return the paths of all trees, found when they are first needed."""
        trees, paths = self._paths
        if trees is not self.trees_:
            paths = [find_paths(tree) for tree in self.trees_]
            self._paths = self.trees_, paths
        return paths

    def add_to_files(self, files: Files) -> None:
        """Add the arrays of every tree."""
        for number, tree in enumerate(self.trees_):
            add_tree(files, f"tree.{number}", tree)

    def describe(self, files: Files) -> Schema:
        """Return the schema of the arrays of every tree."""
        n = self._count_trees()
        if f"tree.{n - 1}.level" not in files.arrays:
            raise ValueError(f"there are not {n} trees")
        return Schema.join([describe_tree(f"tree.{number}") for number in range(n)])

    def restore(self, files: Files) -> None:
        """Take the arrays of every tree back."""
        self.trees_ = [
            take_tree(files, f"tree.{number}", self.n_features_)
            for number in range(self._count_trees())
        ]

    def _count_trees(self) -> int:
        return 1 if self._is_flat(len(self.label_names_)) else self.trees


def _count_used(X: sp.csr_matrix) -> int:
    """Return how many features occur, with memory for those that do."""
    if X.nnz < X.shape[1]:
        return len(np.unique(X.indices))
    return int(np.count_nonzero(np.bincount(X.indices)))


class _Task(NamedTuple):
    """One block of classifiers to train: the children first ≤ c < last of a node.

    `documents` is None where there is nothing to learn, since all belong to an only child.
    """

    level: int
    node: int
    documents: NDArray[np.int32] | None
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
        if task.documents is None:
            return _constant(task.last - task.first, SURE)
        if len(task.documents) == 0:
            return _constant(task.last - task.first, -SURE)
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
    trained = run_tasks(train, list(enumerate(tasks)), costs, progress)
    weights = _assemble(tree, tasks, trained, X.shape[1])
    is_unseen = np.bincount(Y.indices, minlength=tree.n_labels) == 0
    weights.bias[weights.level[-2] :][is_unseen[tree.leaves]] = -SURE
    return weights


def _constant(n_children: int, margin: float) -> NodeWeights:
    """Return classifiers that say the same of every document."""
    no_features, no_children = np.empty(0, np.int32), np.empty(0, np.uint8)
    bias = np.full(n_children, margin, np.float32)
    no_weights = np.empty(0, np.float32)
    return NodeWeights(no_features, np.zeros(1, np.int64), no_children, no_weights, bias)


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
    """List the blocks of all nodes, level by level, with their documents."""
    n_cells = np.diff(X.indptr).astype(np.int64)
    tasks = []
    for level, children in enumerate(tree.children):
        if level == 0:  # a document without labels is a negative one for all
            starts, indices = np.array([0, X.shape[0]]), np.arange(X.shape[0], dtype=np.int32)
        else:
            by_node = belongs[level].T.tocsr()
            starts, indices = by_node.indptr, by_node.indices
        for node in range(tree.sizes[level]):
            documents = indices[starts[node] : starts[node + 1]]
            only_child = bool(level) and children[node + 1] - children[node] == 1
            n_cells_here = float(n_cells[documents].sum()) + len(documents)
            n_blocks = -(-(children[node + 1] - children[node]) // BLOCK)
            cuts = (
                np.linspace(children[node], children[node + 1], n_blocks + 1).astype(int).tolist()
            )
            for first, last in pairwise(cuts):
                cost = n_cells_here * (last - first + 8) + 1
                own = None if only_child and len(documents) else documents
                tasks.append(_Task(level, node, own, first, last, cost))
    return tasks


def _assemble(
    tree: LabelTree, tasks: Sequence[_Task], trained: list[NodeWeights], n_features: int
) -> TreeWeights:
    """Number all nodes through and bring the rows of each feature together.

    `trained` is emptied on the way, since it is as large as the result.
    """
    level = _running_sum(tree.sizes)
    child = np.concatenate(
        [level[1:2]] + [starts[1:] + level[n + 1] for n, starts in enumerate(tree.children)]
    ).astype(np.int64)
    bias = np.concatenate([np.zeros(1, np.float32)] + [block.bias for block in trained])
    nodes = [int(level[task.level]) + task.node for task in tasks]
    n_rows, n_weights = np.zeros(n_features, np.int64), np.zeros(n_features, np.int64)
    last_node = np.full(n_features, -1, np.int32)
    for node, block in zip(nodes, trained, strict=True):
        count_rows(block, node, last_node, n_rows, n_weights)
    weights = empty_weights(level, child, bias, tree.leaves, n_rows, n_weights)
    next_row, next_weight = weights.row[:-1].copy(), _running_sum(n_weights)[:-1]
    last_node[:] = -1
    for number, (node, task) in enumerate(zip(nodes, tasks, strict=True)):
        first = task.first + int(level[task.level + 1] - child[node])
        place_rows(trained[number], node, first, last_node, next_row, next_weight, weights)
        trained[number] = _constant(0, 0)
    return weights


def _cut(rows: Rows) -> list[tuple[int, int]]:
    """Return which documents threads take at a time."""
    n = len(rows.start) - 1
    size = min(BATCH, max(1, -(-n // n_threads())))
    return [(first, min(first + size, n)) for first in range(0, n, size)]


def _running_sum(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
