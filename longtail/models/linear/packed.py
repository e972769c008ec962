"""A tree of linear classifiers as it is kept on disk.

What says where weights belong is written as distances: from a feature's node to its next one, from
a row's child to its next one. What takes a byte a weight is read where it lies in the file: the
weights, and their children unless a node has more than 256.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.models.linear.beam import (
    TreeWeights,
    check_tree,
    node_type,
    offset_type,
    start_type,
)
from longtail.runtime.quantized import MOST_CODE
from longtail.runtime.schema import Schema, floats, indices, permutation, starts
from longtail.runtime.store import Files
from longtail.runtime.varint import decode_starts, decode_steps, encode, steps

PLAIN = ("level", "child", "code", "unit", "bias", "leaves")  # kept as they are
NAMES = {"code": "codes"}  # in files, where they are others
BYTES, STEPS = "children", "offsets"  # the weights' children in files, by how they are kept


def add_tree(files: Files, name: str, tree: TreeWeights) -> None:
    """Add a tree to a model's files, as arrays `name.…`."""
    packed: dict[str, NDArray[Any]] = {
        NAMES.get(field, field): getattr(tree, field) for field in PLAIN
    } | {
        "rows": encode(np.diff(tree.row)),
        "nodes": encode(steps(tree.node, tree.row)),
        "lengths": encode(np.diff(tree.start)),
    }
    if tree.offset.dtype == np.uint8:
        packed[BYTES] = tree.offset
    else:
        packed[STEPS] = encode(steps(tree.offset, tree.start))
    files.arrays |= {f"{name}.{field}": array for field, array in packed.items()}


def describe_tree(name: str, files: Files) -> Schema:
    """Return the schema of a tree's arrays; `take_tree` checks what they hold together."""
    n_nodes, n_inner, n_weights = f"{name}.n_nodes", f"{name}.n_inner", f"{name}.n_weights"
    arrays = {
        "bias": floats(n_nodes),
        "level": starts(f"{name}.n_levels", of=n_nodes, empty_parts=False),
        "child": starts(n_inner, of=n_nodes, first=1, empty_parts=False),
        "leaves": permutation("n_labels"),
        "unit": floats(n_nodes, least=0),
        "codes": floats(n_weights, most=MOST_CODE, dtypes=(np.int8,), empty=True),
    }
    coded = ["rows", "nodes", "lengths"]
    if f"{name}.{BYTES}" in files.arrays:
        arrays[BYTES] = indices(n_weights, into=256, dtypes=(np.uint8,))
    else:
        coded.append(STEPS)
    arrays |= {field: indices(f"{name}.{field}", into=256, dtypes=(np.uint8,)) for field in coded}
    return Schema(arrays={f"{name}.{field}": array for field, array in arrays.items()})


def take_tree(files: Files, name: str, n_features: int) -> TreeWeights:
    """Take back what `add_tree` wrote; raise ValueError if it does not fit together."""

    def stored(field: str) -> NDArray[Any]:
        return files.arrays[f"{name}.{NAMES.get(field, field)}"]

    plain = {field: stored(field) for field in PLAIN}
    child, n_weights = plain["child"], len(plain["code"])
    nodes, lengths = stored("nodes"), stored("lengths")
    row = decode_starts(stored("rows"), n_features, len(nodes), f"{name}.rows")
    start = decode_starts(
        lengths, int(row[-1]), n_weights, f"{name}.lengths", start_type(n_weights)
    )
    if start[-1] != n_weights:
        raise ValueError(f"{name} has {n_weights} weights where its rows have {start[-1]}")
    if f"{name}.{BYTES}" in files.arrays:
        offset = stored(BYTES)
    else:
        most = int(np.diff(child).max()) - 1
        offset = decode_steps(stored(STEPS), start, most, f"{name}.{STEPS}", offset_type(child))
    node = decode_steps(nodes, row, len(child) - 2, f"{name}.nodes", node_type(child))
    tree = TreeWeights(row=row, start=start, node=node, offset=offset, **plain)
    check_tree(name, tree)
    return tree.frozen()
