"""A tree of linear classifiers as it is kept on disk: about two fifths of what it takes in memory.

A weight is one byte, in units of 1/127 of its classifier's largest. What says where weights belong
is written as distances: from a feature's node to its next one, from a row's child to its next one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.models.linear.beam import TreeWeights, check_tree
from longtail.runtime.mapped import BLOCK, cut_sizes, is_mapped
from longtail.runtime.quantized import MOST_CODE, find_units
from longtail.runtime.schema import Schema, floats, indices, permutation, starts
from longtail.runtime.store import Files
from longtail.runtime.varint import add_steps, decode, encode, steps

DIGITS = (
    16  # of a unit, so that float32 holds its multiples exactly, and packing again changes none
)

PLAIN = ("level", "child", "bias", "leaves")  # small arrays, kept as they are


def round_weights(tree: TreeWeights) -> TreeWeights:
    """Return the tree with weights that are whole multiples of their classifier's unit."""
    unit = _find_classifier_units(tree)
    weight = tree.weight if is_mapped(tree.weight) else np.empty_like(tree.weight)
    for some, classifier in _blocks(tree):
        own = unit[classifier]
        weight[some] = _code(tree.weight[some], own) * own
    return tree._replace(weight=weight)


def add_tree(files: Files, name: str, tree: TreeWeights) -> None:
    """Add a tree whose weights are rounded to a model's files, as arrays `name.…`."""
    unit, codes = _find_classifier_units(tree), np.empty(len(tree.weight), np.int8)
    for some, classifier in _blocks(tree):
        codes[some] = _code(tree.weight[some], unit[classifier])
    packed: dict[str, NDArray[Any]] = {field: getattr(tree, field) for field in PLAIN} | {
        "unit": unit,
        "codes": codes,
        "rows": encode(np.diff(tree.row)),
        "nodes": encode(steps(tree.node, tree.row)),
        "lengths": encode(np.diff(tree.start)),
        "offsets": encode(steps(tree.offset, tree.start)),
    }
    files.arrays |= {f"{name}.{field}": array for field, array in packed.items()}


def describe_tree(name: str) -> Schema:
    """Return the schema of a tree's arrays; `take_tree` checks what they hold together."""
    n_nodes, n_inner = f"{name}.n_nodes", f"{name}.n_inner"
    arrays = {
        "bias": floats(n_nodes),
        "level": starts(f"{name}.n_levels", of=n_nodes, empty_parts=False),
        "child": starts(n_inner, of=n_nodes, first=1, empty_parts=False),
        "leaves": permutation("n_labels"),
        "unit": floats(n_nodes, least=0),
        "codes": floats(f"{name}.n_weights", most=MOST_CODE, dtypes=(np.int8,), empty=True),
    }
    coded = ("rows", "nodes", "lengths", "offsets")
    arrays |= {field: indices(f"{name}.{field}", into=256, dtypes=(np.uint8,)) for field in coded}
    return Schema(arrays={f"{name}.{field}": array for field, array in arrays.items()})


def take_tree(files: Files, name: str, n_features: int) -> TreeWeights:
    """Take back what `add_tree` wrote; raise ValueError if it does not fit together."""

    def numbers(field: str, n: int) -> NDArray[np.int32]:
        return decode(files.arrays[f"{name}.{field}"], n, f"{name}.{field}")

    codes, unit = files.arrays[f"{name}.codes"], files.arrays[f"{name}.unit"]
    row = _running_sum(numbers("rows", n_features))
    n_rows = int(row[-1])
    start = _running_sum(numbers("lengths", n_rows))
    if start[-1] != len(codes):
        raise ValueError(f"{name} has {len(codes)} weights where its rows have {start[-1]}")
    node = add_steps(numbers("nodes", n_rows), row)
    offset = add_steps(numbers("offsets", len(codes)), start)
    level, child, bias, leaves = (files.arrays[f"{name}.{field}"] for field in PLAIN)
    small = bool(np.diff(child).max() <= 2**16)
    tree = TreeWeights(
        level,
        child,
        row,
        node.astype(np.int32),
        start.astype(np.int32) if len(codes) < 2**31 else start,
        offset.astype(np.uint32),
        np.empty(0, np.float32),
        bias,
        leaves,
    )
    check_tree(name, tree)
    weight = codes * unit[_find_classifiers(tree)]
    return tree._replace(weight=weight, offset=offset.astype(np.uint16) if small else tree.offset)


def _find_classifiers(tree: TreeWeights, first: int = 0, last: int = -1) -> NDArray[np.int64]:
    """Return the node that each weight of some rows, or of all, decides about."""
    last = len(tree.node) if last < 0 else last
    start = tree.start[first : last + 1]
    nodes = np.repeat(tree.child[tree.node[first:last]], np.diff(start))
    return np.asarray(nodes + tree.offset[start[0] : start[-1]], np.int64)


def _blocks(tree: TreeWeights) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield some weights at a time, with the classifier of each; there may be very many."""
    for first, last in cut_sizes(np.diff(tree.start), BLOCK):
        weights = slice(int(tree.start[first]), int(tree.start[last]))
        yield weights, _find_classifiers(tree, first, last)


def _find_classifier_units(tree: TreeWeights) -> NDArray[np.float32]:
    """Return the unit of each classifier's weights."""
    largest = np.zeros(len(tree.bias), np.float32)
    for some, classifier in _blocks(tree):
        np.maximum.at(largest, classifier, np.abs(tree.weight[some]))
    return find_units(largest)


def _code(weights: NDArray[np.float32], unit: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return weights in their units."""
    return np.rint(weights / np.where(unit > 0, unit, 1)).astype(np.int8)


def _running_sum(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
