"""Write the hierarchy of the bundled data set's labels, and others to compare it with.

    python -m bench.dxml_hierarchy FOLDER

A label of the bundled set is a facet and a value, such as `works-with::audio`; its parent is the
facet. `facets.tsv` has these pairs, `shuffled.tsv` the same parents given to the labels at random.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from longtail.data.debian import load_debian

MARK = "::"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write both files."""
    parser = argparse.ArgumentParser(prog="python -m bench.dxml_hierarchy", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the shuffled parents")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    pairs = find_parents(load_debian().train.label_names)
    write_pairs(args.folder / "facets.tsv", pairs)
    write_pairs(args.folder / "shuffled.tsv", shuffle_parents(pairs, args.seed))


def find_parents(label_names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (facet, label) for each label that has a facet."""
    return [(name.split(MARK)[0], name) for name in label_names if MARK in name]


def shuffle_parents(pairs: Sequence[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """Return the same labels, and the same parents in another order."""
    order = np.random.default_rng(seed).permutation(len(pairs)).tolist()
    return [(pairs[i][0], label) for i, (_, label) in zip(order, pairs, strict=True)]


def write_pairs(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Write a parent and a child a line."""
    path.write_text("".join(f"{parent}\t{child}\n" for parent, child in pairs))


if __name__ == "__main__":
    main()
