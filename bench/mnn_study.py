"""`python -m bench.mnn_study DATA`: what MNN's loss and its ways to rank labels are worth.

Each variant is trained on four fifths of the training split (seed 0) and ranks the labels of the
other fifth, at most 20,000 documents, in each way: by single labels, and by neighbours that lie at
their documents, half-way to their label sets, or at these. How many neighbours vote, and how much
each counts, is the best of all choices for each cell. The test split is not used. `--seeds 5`
trains each variant five times and adds standard deviations.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.table import markdown
from bench.trials import spread
from longtail import Dataset, load
from longtail.models.mnn.model import MNN, PRECISION
from longtail.models.mnn.network import choose_ranking
from longtail.models.neural import choose_batch_size
from longtail.runtime.rows import weigh_features, weigh_rows
from longtail.text.tfidf import Tfidf
from longtail.training.loop import train

VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's, equation (11)": {"preset": "paper"},
    "the paper's, h = 1": {"preset": "paper", "negatives": 1},
    "the paper's, h = 32": {"preset": "paper", "negatives": 32},
    "the paper's, h = 500": {"preset": "paper", "negatives": 500},
    "the paper's, m = 0.3": {"preset": "paper", "margin": 0.3},
    "the paper's, no dropout": {"preset": "paper", "keep": 1.0},
    "the paper's, plain votes": {"preset": "paper", "temperature": 0},
    "softmax": {"loss": "softmax"},
    "graded": {"contrast": 0.0},
    "graded + softmax": {},
    "the same, no dropout": {"keep": 1.0},
    "the same, ReLU layer": {"embedding": "residual"},
}
BLENDS = (0.0, 0.5, 1.0)
HEADINGS = ["variant", "labels", "neighbours", "half-way", "label sets", "train s"]
MOST_HELD = 20_000

Metrics = dict[str, float]
Split = tuple[sp.csr_matrix, sp.csr_matrix, sp.csr_matrix, sp.csr_matrix]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train every variant, print one table of P@1/3/5."""
    parser = argparse.ArgumentParser(prog="python -m bench.mnn_study", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each variant")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in args.set)
    split = split_rows(load(args.data).train)
    rows = []
    for name, variant in VARIANTS.items():
        found = [measure(split, {**settings, **variant, "seed": i}) for i in range(args.seeds)]
        ways = list(zip(*(ways for ways, _ in found), strict=True))  # of each way, all seeds
        seconds = statistics.fmean(seconds for _, seconds in found)
        rows.append([name, *(_describe(way) for way in ways), f"{seconds:.0f}"])
        print(" ".join(rows[-1]), flush=True)
    print(markdown(HEADINGS, rows))


def split_rows(data: Dataset) -> Split:
    """Return X and Y of the documents to train on, then of those held out."""
    X = data.X if data.X is not None else Tfidf().fit_transform(data.texts or [])
    order = np.random.default_rng(0).permutation(X.shape[0])
    n_held = min(X.shape[0] // 5, MOST_HELD)
    held, kept = np.sort(order[:n_held]), np.sort(order[n_held:])
    return X[kept], data.Y[kept], X[held], data.Y[held]


def measure(split: Split, settings: dict[str, Any]) -> tuple[list[Metrics], float]:
    """Train one variant; return the metrics of each way to rank, and the seconds of training."""
    X, Y, held_X, held_Y = split
    model = MNN.from_settings(settings)
    weights = weigh_features(X)
    task = model._prepare(weigh_rows(X, weights, model.normalize), Y, 0.0)
    batch_size = model.batch_size or choose_batch_size(X.shape[0])
    config = model.make_config(model.epochs, batch_size, precision=PRECISION)
    history = train(task, config, device=model.device, seed=model.seed)
    task.held_out = weigh_rows(held_X, weights, model.normalize), held_Y
    model.rank = "labels"
    ways = [choose_ranking(task).metrics]
    model.rank = "neighbours"
    for model.blend in BLENDS:
        ways.append(choose_ranking(task).metrics)
    return ways, history.seconds


def _describe(runs: Sequence[Metrics]) -> str:
    return " / ".join(spread(runs, f"P@{k}") for k in (1, 3, 5))


if __name__ == "__main__":
    main()
