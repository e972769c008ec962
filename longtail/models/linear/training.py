"""Training the classifiers of a tree: which blocks there are, each by itself, then all together."""

import time
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock, local
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.labels.tree import LabelTree
from longtail.models.linear.beam import TreeWeights, count_rows, empty_weights, place_rows
from longtail.models.linear.choices import Costs, choose_demand
from longtail.models.linear.solver import NodeWeights, Settings, train_node
from longtail.progress import Progress
from longtail.runtime.mapped import (
    ArrayWriter,
    count_values,
    cut_sizes,
    is_mapped,
    write_array,
    write_matrix,
)
from longtail.runtime.parallel import run_tasks
from longtail.runtime.quantized import find_units
from longtail.runtime.rows import Rows, view_rows

BLOCK = 64  # classifiers trained side by side; more of them overflow the processor's cache
# What a block of a node may take of documents that are larger than memory, and what they take.
MOST_TOGETHER = 1 << 30
BYTES_A_CELL, BYTES_A_DOCUMENT = 8, 4 * BLOCK + 28
PLACED = 1 << 26  # weights that are brought together at a time, where they lie in files
Places = tuple[tuple[int, int], ...]
LEAST_PASSES = 2  # however little time there is
SURE = 100.0  # a margin that stands for a probability of 1; its negative for 0


class Task(NamedTuple):
    """One block of classifiers to train: the children first ≤ c < last of a node.

    `documents` is None where there is nothing to learn, since all belong to an only child.
    """

    level: int
    node: int
    documents: NDArray[np.int32] | None
    first: int
    last: int
    cost: float


class TreeWork(NamedTuple):
    """All that training the blocks of a tree reads.

    Attributes:
        rows: the documents, the same for all trees.
        levels: for each level, the nodes of each document.
        C: for each level, how much a wrong document counts, by node.
        tasks: the blocks.
        n_features: of the documents.
        settings: what the user chose.
        seed: that of the first block; the others follow.
    """

    rows: Rows
    levels: Sequence[Rows]
    C: Sequence[NDArray[np.float32]]
    tasks: Sequence[Task]
    n_features: int
    settings: Settings
    seed: int

    @classmethod
    def plan(
        cls,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        tree: LabelTree,
        costs: Costs,
        settings: Settings,
        seed: int,
    ) -> "TreeWork":
        """Cut a tree into blocks."""
        belongs = spread_upwards(Y, tree, in_files=is_mapped(X))
        levels = [view_rows(matrix) for matrix in belongs]
        C = costs.of_levels([count_documents(matrix) for matrix in belongs])
        tasks = plan_tasks(X, tree, belongs, seed)
        return cls(view_rows(X), levels, C, tasks, X.shape[1], settings, seed)

    def train(
        self, number: int, scratch: NDArray[np.int32], passes: int | None = None
    ) -> NodeWeights:
        """Train a block; `scratch` is -1 for each feature and left so.

        With `passes`, it makes no more of them over its documents.
        """
        task, settings = self.tasks[number], self.settings
        if passes is not None:
            settings = settings._replace(max_passes=passes)
        n_children = task.last - task.first
        if task.documents is None:
            return constant(n_children, SURE)
        if len(task.documents) == 0:
            return constant(n_children, -SURE)
        return train_node(
            self.rows,
            self.levels[task.level + 1],
            task.documents,
            task.first,
            constant(n_children, 0),
            self.C[task.level + 1][task.first : task.last],
            settings,
            self.seed + number,
            scratch,
        )

    def finish(
        self,
        tree: LabelTree,
        Y: sp.csr_matrix,
        trained: list[NodeWeights],
        *,
        in_files: bool = False,
    ) -> TreeWeights:
        """Bring the blocks together; labels without documents are never given."""
        weights = assemble(tree, self.tasks, trained, self.n_features, in_files=in_files)
        n_documents = count_documents(Y)[tree.leaves]
        bias = weights.bias[weights.level[-2] :]
        bias -= choose_demand(n_documents)
        bias[n_documents == 0] = -SURE
        return weights.frozen()


def train_tree(
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    tree: LabelTree,
    costs: Costs,
    settings: Settings,
    seed: int,
    progress: Progress,
    which: str,
    stop_at: float | None = None,
) -> TreeWeights:
    """Train all nodes of a tree; `which` names it in the progress.

    With `stop_at`, those that are trained last make fewer passes if there is no time for all.
    """
    work = TreeWork.plan(X, Y, tree, costs, settings, seed)
    scratch = Scratch(X.shape[1])
    efforts = [task.cost for task in work.tasks]
    pace = Pace(stop_at, sum(efforts), settings.max_passes)

    def train(number: int) -> NodeWeights:
        passes = pace.choose_passes()
        trained = work.train(number, scratch.columns, passes)
        pace.count(efforts[number] * passes / settings.max_passes, efforts[number])
        return trained

    progress.stage(f"classifiers{which}", sum(efforts))
    numbers = [(number,) for number in range(len(efforts))]
    if not is_mapped(X):
        trained = run_tasks(train, numbers, efforts, progress)
        return work.finish(tree, Y, trained)
    spill = Spill()
    places = run_tasks(lambda i: spill.add(train(i)), numbers, efforts, progress)
    return work.finish(tree, Y, spill.take(places), in_files=True)


class Pace:
    """How many passes there is time for, by how long the blocks before have taken."""

    def __init__(self, stop_at: float | None, effort: float, most: int) -> None:
        self.stop_at, self.most, self.left = stop_at, most, effort
        self.began, self.done = time.monotonic(), 0.0
        self._lock = Lock()

    def choose_passes(self) -> int:
        """Return the passes for the next block: as many as for all that are left, in the time."""
        if self.stop_at is None or not self.done:
            return self.most
        now = time.monotonic()
        needed = (now - self.began) / self.done * self.left
        share = max(0.0, self.stop_at - now) / max(needed, 1e-9)
        return min(self.most, max(LEAST_PASSES, int(share * self.most)))

    def count(self, done: float, planned: float) -> None:
        """Remember a block: the effort that was made, and what all passes would have been."""
        with self._lock:
            self.done += done
            self.left -= planned


class Spill:
    """Weights of blocks in files, where documents are larger than memory, and so may they be."""

    def __init__(self) -> None:
        kinds = (np.int32, np.int64, np.uint8, np.float32, np.float32)
        self._files = [ArrayWriter(kind) for kind in kinds]
        self._lock = Lock()

    def add(self, block: NodeWeights) -> Places:
        """Write the weights of a block; return where each of its arrays begins and ends."""
        parts = cast("Sequence[NDArray[Any]]", block)
        with self._lock:
            for file, part in zip(self._files, parts, strict=True):
                file.add(part)
            pairs = zip(self._files, parts, strict=True)
            return tuple((file.n - len(part), file.n) for file, part in pairs)

    def take(self, places: Sequence[Any]) -> list[NodeWeights]:
        """Return the blocks as they lie in the files."""
        whole = [file.map() for file in self._files]
        return [
            NodeWeights(*(array[a:b] for array, (a, b) in zip(whole, place, strict=True)))
            for place in places
        ]


class Scratch(local):
    """What `train_node` needs for each feature, once a thread."""

    def __init__(self, n_features: int) -> None:
        self.columns = np.full(n_features, -1, np.int32)


def count_documents(belongs: sp.csr_matrix) -> NDArray[np.int64]:
    """Return how many documents each node, or label, has."""
    return count_values(belongs.indices, belongs.shape[1])


def constant(n_children: int, margin: float) -> NodeWeights:
    """Return classifiers that say the same of every document."""
    no_features, no_children = np.empty(0, np.int32), np.empty(0, np.uint8)
    bias = np.full(n_children, margin, np.float32)
    no_weights = np.empty(0, np.float32)
    return NodeWeights(no_features, np.zeros(1, np.int64), no_children, no_weights, bias)


def spread_upwards(
    Y: sp.csr_matrix, tree: LabelTree, *, in_files: bool = False
) -> list[sp.csr_matrix]:
    """Return for each level the (n, nodes) matrix of the nodes that have a document's labels."""
    keep = write_matrix if in_files else sp.csr_matrix
    place = np.empty(tree.n_labels, np.int32)
    place[tree.leaves] = np.arange(tree.n_labels, dtype=np.int32)
    below = keep(sp.csr_matrix((Y.data, place[Y.indices], Y.indptr), shape=Y.shape))
    belongs = [below]
    for level in range(tree.depth, 0, -1):
        parents = tree.parents(level)
        step = sp.csr_matrix(
            (np.ones(len(parents), np.float32), parents, np.arange(len(parents) + 1)),
            shape=(len(parents), tree.sizes[level - 1]),
        )
        below = keep(below @ step)
        belongs.insert(0, below)
    return belongs


def plan_tasks(
    X: sp.csr_matrix, tree: LabelTree, belongs: Sequence[sp.csr_matrix], seed: int
) -> list[Task]:
    """List the blocks of all nodes, level by level, with their documents.

    Where documents are larger than memory, nodes that see too many of them learn from a sample.
    """
    largest = MOST_TOGETHER if is_mapped(X) else None
    n_cells = np.diff(X.indptr).astype(np.int64)
    tasks = []
    for level, children in enumerate(tree.children):
        if level == 0:  # a document without labels is a negative one for all
            starts, indices = np.array([0, X.shape[0]]), np.arange(X.shape[0], dtype=np.int32)
        else:
            by_node = belongs[level].T.tocsr()
            starts, indices = by_node.indptr, by_node.indices
            if largest is not None:
                indices = write_array(indices)
        for node in range(tree.sizes[level]):
            documents = indices[starts[node] : starts[node + 1]]
            if largest is not None:
                documents = _draw(documents, n_cells, largest, [seed, level, node])
            only_child = bool(level) and children[node + 1] - children[node] == 1
            n_cells_here = float(n_cells[documents].sum()) + len(documents)
            n_blocks = -(-(children[node + 1] - children[node]) // BLOCK)
            cuts = (
                np.linspace(children[node], children[node + 1], n_blocks + 1).astype(int).tolist()
            )
            for first, last in pairwise(cuts):
                cost = n_cells_here * (last - first + 8) + 1
                own = None if only_child and len(documents) else documents
                tasks.append(Task(level, node, own, first, last, cost))
    return tasks


def _draw(
    documents: NDArray[np.int32], n_cells: NDArray[np.int64], most: int, seed: list[int]
) -> NDArray[np.int32]:
    """Return as many documents, in order, as take `most` bytes to train a block on."""
    n_bytes = BYTES_A_CELL * int(n_cells[documents].sum()) + BYTES_A_DOCUMENT * len(documents)
    if n_bytes <= most:
        return documents
    n_kept = int(len(documents) * most / n_bytes)
    chosen = np.random.default_rng(seed).choice(len(documents), n_kept, replace=False)
    return documents[np.sort(chosen)]


def assemble(
    tree: LabelTree,
    tasks: Sequence[Task],
    trained: list[NodeWeights],
    n_features: int,
    *,
    in_files: bool = False,
) -> TreeWeights:
    """Number all nodes through and bring the rows of each feature together.

    `trained` is emptied on the way, since it is as large as the result.
    """
    level = _running_sum(tree.sizes)
    child = np.concatenate(
        [level[1:2]] + [starts[1:] + level[n + 1] for n, starts in enumerate(tree.children)]
    ).astype(np.int64)
    bias = np.concatenate([np.zeros(1, np.float32)] + [block.bias for block in trained])
    largest = np.concatenate([np.zeros(1, np.float32)] + [_find_largest(each) for each in trained])
    nodes = [int(level[task.level]) + task.node for task in tasks]
    n_rows, n_weights = np.zeros(n_features, np.int64), np.zeros(n_features, np.int64)
    last_node = np.full(n_features, -1, np.int32)
    for node, block in zip(nodes, trained, strict=True):
        count_rows(block, node, last_node, n_rows, n_weights)
    unit = find_units(largest)
    weights = empty_weights(
        level, child, unit, bias, tree.leaves, n_rows, n_weights, in_files=in_files
    )
    next_row, next_weight = weights.row[:-1].copy(), _running_sum(n_weights)[:-1]
    last_node[:] = -1
    # In files, some features at a time: else every block would touch pages all over the result.
    for begin, end in cut_sizes(n_weights, PLACED) if in_files else [(0, n_features)]:
        for number, (node, task) in enumerate(zip(nodes, tasks, strict=True)):
            first = task.first + int(level[task.level + 1] - child[node])
            block = _between(trained[number], begin, end)
            place_rows(block, node, first, last_node, next_row, next_weight, weights)
            if end == n_features:
                trained[number] = constant(0, 0)
    return weights


def _find_largest(block: NodeWeights) -> NDArray[np.float32]:
    """Return the largest absolute weight of each classifier of a block."""
    largest = np.zeros(len(block.bias), np.float32)
    np.maximum.at(largest, block.children, np.abs(block.weights))
    return largest


def _between(block: NodeWeights, begin: int, end: int) -> NodeWeights:
    """Return the weights of the features from `begin` to below `end`."""
    first, last = np.searchsorted(block.features, (begin, end))
    return block._replace(features=block.features[first:last], start=block.start[first : last + 1])


def _running_sum(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
