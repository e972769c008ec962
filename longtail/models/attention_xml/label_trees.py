"""The label trees of AttentionXML: shallow and wide, one for each tree of networks."""

import scipy.sparse as sp

from longtail.errors import ParameterError
from longtail.labels.pairs import estimate_product
from longtail.labels.tree import LabelTree, build_label_vectors, build_tree, vector_bytes
from longtail.progress import Progress
from longtail.runtime.memory import Stage, plan_memory, size_of


def count_levels(n_labels: int, branching: int, widest: int) -> int:
    """Return H with which the first level has at most so many nodes."""
    levels, n_nodes = 0, n_labels
    while n_nodes > widest:
        levels, n_nodes = levels + 1, -(-n_nodes // branching)
    return levels


def build_trees(
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    *,
    n_trees: int,
    levels: int,
    branching: int,
    seed: int,
    progress: Progress,
) -> list[LabelTree]:
    """Return trees with so many inner levels, of labels that are alike by their documents' rows."""
    plan_memory([tree_stage(X, Y)], what="the label tree")
    vectors = build_label_vectors(X, Y)
    trees = []
    for number in range(n_trees):
        binary = build_tree(
            vectors, branching=2, max_leaf=branching, seed=seed + number, progress=progress
        )
        _check_levels(levels, branching, binary)
        trees.append(binary.compress(branching.bit_length() - 1, levels))
    progress.say("Label tree: " + " → ".join(f"{size:,}" for size in trees[0].sizes[1:]))
    return trees


def tree_stage(X: sp.csr_matrix, Y: sp.csr_matrix) -> Stage:
    """Return what it takes to build label trees from rows."""
    vectors = vector_bytes(X, estimate_product(Y, X))
    return Stage({"label vectors": vectors, "rows of texts": size_of(X)})


def _check_levels(levels: int, branching: int, binary: LabelTree) -> None:
    """Raise ParameterError if the labels are too few for so many levels."""
    apart = branching.bit_length() - 1
    most = (binary.depth - 2) // apart + 1 if binary.depth > 1 else 0
    if levels > most:
        raise ParameterError(
            f"The 'levels' parameter of AttentionXML must be at most {most} for "
            f"{binary.n_labels} labels with branching {branching}. Got {levels} instead."
        )
