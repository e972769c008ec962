"""Linear on a cluster: trees, then the blocks of all trees, as tasks.

Every task is the very computation that a thread does on one machine, with the same seed, so the
weights have the same bits. Documents go to each node once and are read where they lie; what comes
back is pruned.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from longtail.labels.tree import LabelTree, build_tree
from longtail.models.linear.beam import TreeWeights
from longtail.models.linear.choices import Costs
from longtail.models.linear.solver import NodeWeights, Settings
from longtail.models.linear.training import Task, TreeWork
from longtail.progress import Progress
from longtail.runtime.memory import full_size_of
from longtail.runtime.workers import Needs, Workers

WORKER_BYTES = 200 << 20  # a process with compiled code, before it does anything


def build_trees(
    cluster: Workers,
    vectors: sp.csr_matrix,
    shape: dict[str, int | bool | None],
    seeds: Sequence[int],
    progress: Progress,
) -> list[LabelTree]:
    """Build a tree for each seed, of the given `branching`, `max_leaf` and so on."""
    progress.stage("label trees", len(seeds))
    needs = [Needs(WORKER_BYTES + 3 * full_size_of(vectors))] * len(seeds)
    costs = [1.0] * len(seeds)
    return cluster.run(_build, (vectors, shape), seeds, costs, needs=needs, progress=progress)


def _build(shared: tuple[sp.csr_matrix, dict[str, int | bool | None]], seed: int) -> LabelTree:
    """Build one tree; runs on a node."""
    vectors, shape = shared
    return build_tree(vectors, **shape, seed=seed)  # type: ignore[arg-type]


def train_trees(
    cluster: Workers,
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    trees: Sequence[LabelTree],
    costs: Costs,
    settings: Settings,
    seeds: Sequence[int],
    progress: Progress,
) -> list[TreeWeights]:
    """Train the nodes of all trees, in any order."""
    planned = [
        TreeWork.plan(X, Y, tree, costs, settings, seed)
        for tree, seed in zip(trees, seeds, strict=True)
    ]
    # The same arrays for all trees, so that they are stored once.
    works = [work._replace(rows=planned[0].rows) for work in planned]
    places = [(tree, i) for tree, work in enumerate(works) for i in range(len(work.tasks))]
    tasks = [works[tree].tasks[i] for tree, i in places]
    efforts = [task.cost for task in tasks]
    progress.stage(f"{len(tasks):,} blocks of classifiers", sum(efforts))
    needs = [Needs(count_bytes(task, X.shape[1])) for task in tasks]
    found = iter(cluster.run(_train, works, places, efforts, needs=needs, progress=progress))
    return [
        work.finish(tree, Y, [next(found) for _ in work.tasks])
        for work, tree in zip(works, trees, strict=True)
    ]


def _train(works: Sequence[TreeWork], place: tuple[int, int]) -> NodeWeights:
    """Train one block; runs on a node."""
    tree, number = place
    return works[tree].train(number, np.full(works[tree].n_features, -1, np.int32))


def count_bytes(task: Task, n_features: int) -> int:
    """Return what training a block takes: its rows, its weights, and a number for each document."""
    n, width = (0 if task.documents is None else len(task.documents)), task.last - task.first
    n_cells = int(task.cost / (width + 8))
    n_used = min(n_cells, n_features)
    own = 8 * n_cells + 4 * width * (n + n_used) + 28 * n + 24 * n_used
    return WORKER_BYTES + own + 4 * n_features
