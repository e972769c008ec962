"""A tree of linear classifiers as it is kept on disk: about two fifths of what it takes in memory.

A weight is one byte, in units of 1/127 of its classifier's largest. What says where weights belong
is written as distances: from a feature's node to its next one, from a row's child to its next one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.models.linear.beam import TreeWeights, check_tree
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
    classifier = _find_classifiers(tree)
    codes, unit = _code_weights(tree, classifier)
    return tree._replace(weight=codes * unit[classifier])


def add_tree(files: Files, name: str, tree: TreeWeights) -> None:
    """Add a tree whose weights are rounded to a model's files, as arrays `name.…`."""
    codes, unit = _code_weights(tree, _find_classifiers(tree))
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


def _find_classifiers(tree: TreeWeights) -> NDArray[np.int64]:
    """Return for each weight the node that its classifier decides about."""
    first = np.repeat(tree.child[tree.node], np.diff(tree.start))
    return np.asarray(first + tree.offset, np.int64)


def _code_weights(
    tree: TreeWeights, classifier: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the weights in units of their classifier, and these units."""
    largest = np.zeros(len(tree.bias), np.float32)
    np.maximum.at(largest, classifier, np.abs(tree.weight))
    unit = find_units(largest)
    codes = np.rint(tree.weight / np.where(unit > 0, unit, 1)[classifier])
    return codes.astype(np.int8), unit


def _running_sum(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
