"""Cycles among labels that stand above one another."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHOWN = 5  # members of a cycle that are named


def find_cycle(pairs: NDArray[np.integer], n_nodes: int) -> list[int]:
    """Return the nodes of one cycle, its first node again at the end; none if there is none.

    Nodes with nothing above them are taken away until none is left to take: each node that
    remains has a parent that remains, so that going up must come back.
    """
    children: dict[int, list[int]] = {}
    parents: dict[int, list[int]] = {}
    n_above = np.zeros(n_nodes, np.int64)
    for parent, child in np.unique(pairs, axis=0).tolist():
        children.setdefault(parent, []).append(child)
        parents.setdefault(child, []).append(parent)
        n_above[child] += 1
    free = np.flatnonzero(n_above == 0).tolist()
    while free:
        for child in children.get(free.pop(), []):
            n_above[child] -= 1
            if n_above[child] == 0:
                free.append(child)
    if not n_above.any():
        return []
    way = [int(np.flatnonzero(n_above)[0])]
    while way.count(way[-1]) == 1:
        way.append(next(parent for parent in parents[way[-1]] if n_above[parent]))
    return way[way.index(way[-1]) :][::-1]


def spell_cycle(names: Sequence[str]) -> str:
    """Return "'a' above 'b' above 'a'", with some left out where there are many."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > SHOWN:
        quoted = [*quoted[: SHOWN - 1], "…", quoted[-1]]
    return " above ".join(quoted)
