"""Trees of single features: each node asks whether a document has more of one than a threshold.

They are grown by `growing.py`; here documents walk through them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from longtail.models.forest.growing import Floats, Ids, Tree
from longtail.models.forest.shape import Shape, Spans, Starts, clear, coded, running_sum, spread
from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows
from longtail.runtime.schema import LARGEST_FLOAT, Schema, floats
from longtail.runtime.store import Files
from longtail.runtime.varint import decode, encode


class Questions(NamedTuple):
    """What the nodes of all trees ask, one tree behind the other; see `growing.Tree`.

    Attributes:
        features: (n_leaves − n_trees,) what each node asks for.
        thresholds: (n_leaves − n_trees,) a value above goes right.
        left: (n_leaves − n_trees,) how many leaves are on the left.
    """

    features: Ids
    thresholds: Floats
    left: Ids

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> "Questions":
        """Put trees together."""
        return cls(
            np.concatenate([tree.features for tree in trees]),
            np.concatenate([tree.thresholds for tree in trees]),
            np.concatenate([tree.left for tree in trees]),
        )

    def walk(self, X: Rows, first: int, last: int, shape: Shape, min_split: int) -> Spans:
        """Return the leaves that documents fall into; see `Trees.walk`."""
        return _walk_questions(X, first, last, shape, self, min_split)

    def add_to_files(self, files: Files) -> None:
        """Add them to a model's files: most numbers are small and take a byte or two."""
        files.arrays["trees.features"] = encode(self.features)
        files.arrays["trees.left"] = encode(self.left)
        files.arrays["trees.thresholds"] = self.thresholds

    @staticmethod
    def describe() -> Schema:
        """Return the schema of what `add_to_files` adds."""
        thresholds = floats("n_nodes", most=LARGEST_FLOAT, empty=True)
        return Schema(arrays={"trees.thresholds": thresholds, **coded("features", "left")})

    @classmethod
    def from_files(cls, files: Files, counts: Ids, n_features: int) -> "Questions":
        """Take back what `add_to_files` wrote, for trees of so many leaves."""
        thresholds, start = files.arrays["trees.thresholds"], running_sum(counts)
        n_nodes = len(thresholds)
        if start[-1] != n_nodes + len(counts):
            raise ValueError(f"{n_nodes} nodes of {len(counts)} trees cannot have these leaves")
        features = decode(files.arrays["trees.features"], n_nodes, "trees.features")
        left = decode(files.arrays["trees.left"], n_nodes, "trees.left")
        if n_nodes and features.max() >= n_features:
            raise ValueError(f"trees.features must hold whole numbers below {n_features}")
        if not _are_sound_questions(start, left):
            raise ValueError("trees.left must hold fewer leaves than there are below a node")
        return cls(features, thresholds, left)


# -- compiled -------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _are_sound_questions(start: Starts, lefts: Ids) -> bool:
    """Whether every node has a leaf at least on each side, so that all walks end."""
    spans = np.empty(len(lefts) + 1, np.int64)  # leaves below nodes that are still to come
    for tree in range(len(start) - 1):
        node, last = start[tree] - tree, start[tree + 1] - tree - 1
        height = 0
        if node < last:
            spans[0], height = last - node + 1, 1
        while height:
            height -= 1
            span, left = spans[height], lefts[node]
            if not 0 < left < span:
                return False
            node += 1
            if span - left > 1:
                spans[height] = span - left
                height += 1
            if left > 1:
                spans[height] = left
                height += 1
    return True


@njit(nogil=True, cache=True)
def _walk_questions(
    X: Rows, first: int, last: int, shape: Shape, questions: Questions, min_split: int
) -> Spans:
    x, n_trees = np.zeros(shape.n_features, np.float32), len(shape.start) - 1
    spans = np.empty((last - first, n_trees, 2), np.int32)
    for d in range(first, last):
        spread(X, d, x)
        for tree in range(n_trees):
            leaf, end = shape.start[tree], shape.start[tree + 1]
            node = leaf - tree
            while end - leaf > 1:
                if min_split and shape.borders[end] - shape.borders[leaf] < min_split:
                    break
                left = questions.left[node]
                if x[questions.features[node]] > questions.thresholds[node]:
                    leaf += left
                    node += left
                else:
                    end = leaf + left
                    node += 1
            spans[d - first, tree, 0], spans[d - first, tree, 1] = leaf, end
        clear(X, d, x)
    return spans
