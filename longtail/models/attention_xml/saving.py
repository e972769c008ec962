"""AttentionXML's trees in a model folder: their nodes, and the weights of their levels."""

from collections.abc import Mapping, Sequence

import numpy as np

from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.network import (
    Shape,
    find_coarse,
    find_shapes,
    from_arrays,
    to_arrays,
)
from longtail.models.attention_xml.search import ProbabilisticLabelTree
from longtail.runtime.quantized import QuantizedRows
from longtail.runtime.schema import Extent, Schema, floats, permutation, starts
from longtail.runtime.store import Files


def add_trees(files: Files, trees: Sequence[ProbabilisticLabelTree]) -> None:
    """Add of each tree its nodes and the levels' weights."""
    files.config["depths"] = [plt.tree.depth for plt in trees]
    for number, plt in enumerate(trees):
        files.arrays[f"tree{number}.leaves"] = plt.tree.leaves
        for level, net in enumerate(plt.levels):
            prefix = f"tree{number}.level{level}"
            files.arrays[f"{prefix}.children"] = plt.tree.children[level]
            for name, array in to_arrays(net).items():
                if name in find_coarse(net.shape):
                    QuantizedRows.of(array).add_to_files(files, f"{prefix}.net.{name}")
                else:
                    files.arrays[f"{prefix}.net.{name}"] = array


def describe_trees(depths: Sequence[int], shape: Shape) -> Schema:
    """Return the schema of trees of these depths; `shape` is that of a network with one node."""
    shapes, coarse = find_shapes(shape), find_coarse(shape)
    return Schema.join(
        [
            _describe_tree(f"tree{number}", depth, shapes, coarse)
            for number, depth in enumerate(depths)
        ]
    )


def open_trees(files: Files, shape: Shape, path_weight: float) -> list[ProbabilisticLabelTree]:
    """Return the trees that `add_trees` added; `shape` is that of a network with one node."""
    return [
        _open_tree(files, f"tree{number}", depth, shape, path_weight)
        for number, depth in enumerate(files.config["depths"])
    ]


def _open_tree(
    files: Files, name: str, depth: int, shape: Shape, path_weight: float
) -> ProbabilisticLabelTree:
    children = [files.arrays[f"{name}.level{level}.children"] for level in range(depth)]
    tree = LabelTree(children, files.arrays[f"{name}.leaves"])
    levels = []
    for level, n_nodes in enumerate(tree.sizes[1:]):
        prefix, own = f"{name}.level{level}.net.", shape.with_nodes(n_nodes)
        arrays = {
            weight: QuantizedRows.from_files(files, prefix + weight).take(slice(None), width)
            if weight in find_coarse(own)
            else files.arrays[prefix + weight]
            for weight, (*_, width) in find_shapes(own).items()
        }
        levels.append(from_arrays(own, arrays))
    return ProbabilisticLabelTree(tree, levels, path_weight)


def _describe_tree(
    name: str, depth: int, shapes: Mapping[str, tuple[int, ...]], coarse: Sequence[str]
) -> Schema:
    """Return the schema of a tree's nodes, and of the weights of its levels.

    `shapes` are those of a network with one node, `coarse` the names of tables kept as int8.
    """
    arrays, tables = {f"{name}.leaves": permutation("n_labels")}, []
    above: Extent = 1
    for level in range(depth):
        prefix = f"{name}.level{level}"
        below = "n_labels" if level == depth - 1 else f"{prefix}.n_nodes"
        arrays[f"{prefix}.children"] = starts(
            above, of=below, dtypes=(np.int32,), empty_parts=False
        )
        for weight, extents in shapes.items():
            first: Extent = below if weight == "labels" else extents[0]
            if weight in coarse:
                tables.append(QuantizedRows.describe(f"{prefix}.net.{weight}", first, extents[1]))
            else:
                arrays[f"{prefix}.net.{weight}"] = floats(first, *extents[1:])
        above = below
    return Schema.join([Schema(arrays=arrays), *tables])
