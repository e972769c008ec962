"""The ablation of the DXML paper's figure 2, and one of its label vectors, on any data sets.

    python -m bench.dxml_study network DATA ...    # linear map, the paper's network, both added
    python -m bench.dxml_study vectors DATA ...    # how the labels' vectors are made
    python -m bench.dxml_study clusters DATA ...   # how many clusters there are and are searched

Each variant is trained on four fifths of the training documents (seed 0) and measured on the rest,
at most 20,000 documents; the test split is not used. `--plot FILE` draws P@1, P@3 and P@5.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.plots import draw_bars
from bench.table import markdown
from longtail import Dataset, evaluate, load
from longtail.models.dxml.model import DXML

STUDIES: dict[str, dict[str, dict[str, Any]]] = {
    "network": {
        "linear": {"linear": True},
        "network (paper)": {"residual": False},
        "network + linear": {},
    },
    "vectors": {
        "as DeepWalk leaves them": {"whiten": 0.0},
        "half shrunk": {"whiten": 0.5},
        "shrunk by the labels of a document": {},
        "whitened": {"whiten": 1.0},
        "at random": {"label_vectors": "random"},
    },
    "clusters": {
        "all documents": {"clusters": 1},
        "16, as many as needed": {"clusters": 16},
        "16, the nearest (paper)": {"clusters": 16, "searched": 1},
    },
}
MEASURES = ["P@1", "P@3", "P@5"]
HEADINGS = ["data", "variant", *MEASURES, "neighbours", "fit s", "ms each"]
MOST_HELD = 20_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train every variant, print one table and draw it."""
    parser = argparse.ArgumentParser(prog="python -m bench.dxml_study", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in args.set)
    rows: list[list[str]] = []
    panels: dict[str, dict[str, list[float]]] = {}
    for path in args.data:
        kept, held = split(load(path).train)
        for name, variant in STUDIES[args.study].items():
            found, cells = measure(kept, held, {**settings, **variant})
            rows.append([path.name, name, *cells])
            panels.setdefault(path.name, {})[name] = found
            print(" ".join(rows[-1]), flush=True)
    print(markdown(HEADINGS, rows))
    if args.plot is not None:
        draw_bars(panels, MEASURES, args.plot)


def split(data: Dataset) -> tuple[Dataset, Dataset]:
    """Return the documents to train on and those held out."""
    return data.split(min(0.2, MOST_HELD / len(data)))


def measure(
    kept: Dataset, held: Dataset, settings: dict[str, Any]
) -> tuple[list[float], list[str]]:
    """Train one variant; return P@1, P@3, P@5, and the cells of its row."""
    began = time.perf_counter()
    model = DXML.from_settings(settings).fit(kept)
    fitted = time.perf_counter()
    top = model.predict(held)
    each = (time.perf_counter() - fitted) / len(held) * 1e3
    report = evaluate(top, held)
    found = [report[name] for name in MEASURES]
    facts = [str(model.voters_.n_neighbours), f"{fitted - began:.0f}", f"{each:.3f}"]
    return found, [*(f"{value:.1f}" for value in np.array(found)), *facts]


if __name__ == "__main__":
    main()
