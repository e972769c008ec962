"""More documents for a trained tree: new labels get leaves, the classifiers they touch are refined.

Few training documents are kept (memory.py); what the others said is in the weights alone. Refined
classifiers begin with theirs and move no further than the documents ask for (see solver.py). A new
label goes below the parent whose labels the tree gives to its documents. Its classifier also has to
tell them from documents of its siblings: each is stood for by its own positive weights, the words
of its documents. They cannot stand for all that was seen before; so its constant is lowered.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.labels.tree import LabelTree
from longtail.models.linear.beam import TreeWeights, find_paths, search
from longtail.models.linear.choices import Costs, choose_demand
from longtail.models.linear.solver import NodeWeights, Settings, train_node
from longtail.models.linear.training import (
    SURE,
    Scratch,
    Task,
    assemble,
    count_documents,
    plan_tasks,
    spread_upwards,
)
from longtail.progress import Progress
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import run_tasks
from longtail.runtime.rows import Rows, scale_to_unit, view_rows

LEAST_SHARE = 1e-3  # of new documents, by which C is scaled
REFINED = 0.1  # of that C, with which what was known before is refined
CAUTION = 0.1  # of a new label, for each e-fold of old documents that it could not see
ASKED = 10  # labels of a document by which its new labels find their parent


class Update(NamedTuple):
    """What is new, and how to train on it.

    Attributes:
        X: the features of the new documents, and of old ones that were kept.
        Y: their labels; the columns of new labels stand behind those of the others.
        before: how many documents carried each label before; 0 for a new one.
        now: how many do so now.
        refine_all: whether classifiers of all levels are refined, or those of labels alone.
        beam: how many nodes of a level a document follows.
        power: how margins become probabilities.
        costs: how much a wrong document counts.
        settings: of training.
        seed: fixes the order in which documents are visited.
    """

    X: sp.csr_matrix
    Y: sp.csr_matrix
    before: NDArray[np.int64]
    now: NDArray[np.int64]
    refine_all: bool
    beam: int
    power: int
    costs: Costs
    settings: Settings
    seed: int


def update_tree(old: TreeWeights, new: Update, progress: Progress, which: str) -> TreeWeights:
    """Return the tree with the new labels and documents; `old` stays as it is."""
    tree = _add_leaves(old, new)
    belongs = spread_upwards(new.Y, tree)
    tasks = plan_tasks(new.X, tree, belongs, new.seed)
    counts = _count_all(tree, new)
    blocks = _Blocks(old, tree)
    trainer = _Trainer(new, belongs, counts, blocks)
    costs = [task.cost for task in tasks]
    progress.stage(f"refining{which}", sum(costs))
    trained = run_tasks(trainer.train, list(enumerate(tasks)), costs, progress)
    weights = assemble(tree, tasks, trained, new.X.shape[1])
    weights.bias[weights.level[-2] :][new.now[tree.leaves] == 0] = -SURE  # as in training
    return weights.frozen()


# -- the shape ------------------------------------------------------------------------------------


def _add_leaves(old: TreeWeights, new: Update) -> LabelTree:
    """Return the old tree with a leaf for each new label, behind its siblings."""
    shape = _shape_of(old)
    n_old, n_labels = shape.n_labels, new.Y.shape[1]
    if n_labels == n_old:
        return shape
    parents = _find_parents(old, new)
    starts = shape.children[-1]
    order = np.argsort(parents, kind="stable")
    added = np.arange(n_old, n_labels, dtype=np.int32)[order]
    leaves = np.insert(shape.leaves, starts[parents[order] + 1], added)
    n_added = np.bincount(parents, minlength=len(starts) - 1)
    moved = np.concatenate(([0], np.cumsum(n_added))).astype(np.int32)
    return LabelTree([*shape.children[:-1], starts + moved], leaves)


def _shape_of(tree: TreeWeights) -> LabelTree:
    children = [
        (tree.child[tree.level[n] : tree.level[n + 1] + 1] - tree.level[n + 1]).astype(np.int32)
        for n in range(len(tree.level) - 2)
    ]
    return LabelTree(children, tree.leaves)


def _find_parents(old: TreeWeights, new: Update) -> NDArray[np.int64]:
    """Return for each new label the parent, counted on its level, of what its documents get."""
    n_old, first = len(old.leaves), int(old.level[-3])
    n_parents = int(old.level[-2]) - first
    Y = new.Y[:, n_old:].tocsc()
    rows = np.unique(Y.indices)
    found, logs = search(
        view_rows(new.X[rows]), 0, len(rows), old, new.beam, min(ASKED, n_old), new.power
    )
    paths = find_paths(old)
    parents = np.where(found >= 0, paths.parent[paths.leaf[found]] - first, 0)
    documents = np.repeat(np.arange(len(rows)), found.shape[1])
    values = np.where(found >= 0, np.exp(logs), 0).ravel()
    votes = sp.csr_matrix((values, (documents, parents.ravel())), shape=(len(rows), n_parents))
    total = (Y.tocsr()[rows].T @ votes).tocsr()
    return np.asarray(total.argmax(axis=1), np.int64).ravel()


class _Counts(NamedTuple):
    """How many pairs each node of a level had before and has now, and how many are at hand."""

    before: NDArray[np.int64]
    now: NDArray[np.int64]
    seen: NDArray[np.int64]


def _count_all(tree: LabelTree, new: Update) -> list[_Counts]:
    """Return the counts of each level."""
    seen = count_documents(new.Y)
    levels = [_Counts(*(each[tree.leaves] for each in (new.before, new.now, seen)))]
    for starts in reversed(tree.children):
        levels.insert(0, _Counts(*(np.add.reduceat(each, starts[:-1]) for each in levels[0])))
    return levels


# -- the weights ----------------------------------------------------------------------------------


class _Blocks:
    """The weights of the old tree, by node."""

    def __init__(self, old: TreeWeights, tree: LabelTree) -> None:
        self.old, self.tree = old, tree
        self.features = np.repeat(np.arange(len(old.row) - 1, dtype=np.int32), np.diff(old.row))
        self.order = np.argsort(old.node, kind="stable")
        self.first = np.searchsorted(old.node[self.order], np.arange(len(old.child)))

    def take(self, task: Task) -> NodeWeights:
        """Return the weights of a block; children that are new have none."""
        node = int(self.old.level[task.level]) + task.node
        rows = self.order[self.first[node] : self.first[node + 1]]
        low = task.first - int(self.tree.children[task.level][task.node])
        high = low + task.last - task.first
        n_known = int(self.old.child[node + 1] - self.old.child[node])
        bias = np.zeros(high - low, np.float32)
        known = self.old.bias[self.old.child[node] :][low : min(high, n_known)]
        bias[: len(known)] = known
        own = _take_block(self.old, node, rows, self.features, low, high)
        return NodeWeights(*own, bias)

    def stand_in(self, task: Task) -> sp.csr_matrix:
        """Return a row for each child of the block's node: its positive weights, scaled to 1."""
        node = int(self.old.level[task.level]) + task.node
        rows = self.order[self.first[node] : self.first[node + 1]]
        lengths = np.diff(self.old.start)[rows]
        places = np.repeat(self.old.start[rows] - np.cumsum(lengths) + lengths, lengths)
        places = places + np.arange(len(places))
        children = self.old.offset[places].astype(np.int64)
        unit = self.old.unit[self.old.child[node] : self.old.child[node + 1]]
        weights = np.maximum(self.old.code[places], 0) * unit[children]
        cells = children, np.repeat(self.features[rows], lengths)
        made = sp.csr_matrix((weights, cells), shape=(len(unit), len(self.old.row) - 1))
        made.eliminate_zeros()
        return scale_to_unit(made)


@njit(nogil=True, cache=True)
def _take_block(
    tree: TreeWeights,
    node: int,
    rows: NDArray[np.int64],
    features: NDArray[np.int32],
    low: int,
    high: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8], NDArray[np.float32]]:
    """Return the weights of the children low ≤ c < high of a node, which has these rows."""
    n_rows = size = 0
    for row in rows:
        n = 0
        for place in range(tree.start[row], tree.start[row + 1]):
            n += low <= tree.offset[place] < high
        n_rows += n > 0
        size += n
    own, start = np.empty(n_rows, np.int32), np.zeros(n_rows + 1, np.int64)
    children, weights = np.empty(size, np.uint8), np.empty(size, np.float32)
    at = cell = 0
    for row in rows:
        before = cell
        for place in range(tree.start[row], tree.start[row + 1]):
            if low <= tree.offset[place] < high:
                children[cell] = tree.offset[place] - low
                unit = tree.unit[tree.child[node] + tree.offset[place]]
                weights[cell] = np.float32(tree.code[place]) * unit
                cell += 1
        if cell > before:
            own[at] = features[row]
            at += 1
            start[at] = cell
    return own, start, children, weights


def _hold(C: NDArray[np.float32], counts: _Counts) -> NDArray[np.float32]:
    """Return C by the share of new documents: what more old ones have taught moves less."""
    share = (counts.now - counts.before) / np.maximum(counts.now, 1)
    share = np.where(counts.before > 0, REFINED * share, share)
    return (C * np.maximum(share, LEAST_SHARE)).astype(np.float32)


class _Trainer:
    """Trains the blocks that the new documents touch, and leaves the others as they were."""

    def __init__(
        self,
        new: Update,
        belongs: list[sp.csr_matrix],
        counts: list[_Counts],
        blocks: _Blocks,
    ) -> None:
        self.new, self.belongs, self.blocks, self.counts = new, belongs, blocks, counts
        self.rows, self.levels = view_rows(new.X), [view_rows(matrix) for matrix in belongs]
        self.is_born = [(each.before == 0) & (each.now > 0) for each in counts]
        of_levels = new.costs.of_levels([each.now for each in counts])
        self.C = [_hold(C, each) for C, each in zip(of_levels, counts, strict=True)]
        self.scratch = Scratch(new.X.shape[1])
        self.row_length = float(np.sqrt(new.X.multiply(new.X).sum() / max(1, new.X.shape[0])))

    def train(self, number: int, task: Task) -> NodeWeights:
        """Return the weights of a block after the update."""
        begin = self.blocks.take(task)
        level = task.level + 1
        own = slice(task.first, task.last)
        born, is_leaf = self.is_born[level][own], level == len(self.levels) - 1
        is_asked = self.new.refine_all or is_leaf
        if task.documents is None or not len(task.documents) or not (is_asked or born.any()):
            return begin
        if is_leaf:  # classifiers learn without it
            begin.bias[:] += choose_demand(self.counts[level].before[own])
        begin.bias[born] = 0  # what it was said of labels without documents
        rows, labels, documents = self.rows, self.levels[level], task.documents
        if born.any():
            rows, labels = self._with_stand_ins(task, documents)
            documents = np.arange(len(rows.start) - 1, dtype=np.int32)
        C = self.C[level][own]
        seed = self.new.seed + number
        settings, scratch = self.new.settings, self.scratch.columns
        done = train_node(rows, labels, documents, task.first, begin, C, settings, seed, scratch)
        counts = self.counts[task.level]
        done.bias[born] -= CAUTION * np.log(
            max(counts.now[task.node], 1) / max(counts.seen[task.node], 1)
        )
        if is_leaf:
            done.bias[:] -= choose_demand(self.counts[level].now[own])
        return done

    def _with_stand_ins(self, task: Task, documents: NDArray[np.int32]) -> tuple[Rows, Rows]:
        """Return the node's new documents, and behind them those that stand for its children."""
        made = self.blocks.stand_in(task)
        first = int(self.blocks.tree.children[task.level][task.node])
        belongs = self.belongs[task.level + 1]
        filled = np.flatnonzero(np.diff(made.indptr))
        one_each = np.ones(len(filled)), first + filled, np.arange(len(filled) + 1)
        own = sp.csr_matrix(one_each, shape=(len(filled), belongs.shape[1]))
        X = sp.vstack([self.new.X[documents], made[filled] * self.row_length]).tocsr()
        return view_rows(X), view_rows(sp.vstack([belongs[documents], own]).tocsr())
