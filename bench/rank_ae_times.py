"""`python -m bench.rank_ae_times`: how long Rank-AE trains and answers, by the number of labels.

The documents are made up (see bench.made_up) and the same whatever the number of labels. A label
set beyond the model's limit for scoring all labels is trained with sampled ones.
"""

import argparse
import resource
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.made_up import MadeUp, make_up
from bench.table import markdown
from longtail.models.rank_ae import RankAE

HEADINGS = ["labels", "scored", "s an epoch", "peak MB", "documents/s", "one p50 ms", "p99 ms"]
N_TIMED = 500


def measure(data: MadeUp, epochs: int, settings: dict[str, Any]) -> list[str]:
    """Return the table's row of one label set."""
    model = RankAE.from_settings({"epochs": epochs, **settings})
    n_labels = data.Y.shape[1]
    start = time.perf_counter()
    model.fit(data.X, data.Y)
    seconds = (time.perf_counter() - start) / epochs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sampled = model._n_sampled(n_labels, "cuda" if model.device == "cuda" else "cpu")
    start = time.perf_counter()
    model.predict(data.test_X)
    rate = data.test_X.shape[0] / (time.perf_counter() - start)
    p50, p99 = np.percentile(time_single(model, data), [50, 99]) * 1e3
    scored = "all" if sampled is None else f"{sampled:,} + the batch's"
    row = [f"{n_labels:,}", scored, f"{seconds:.1f}", f"{peak:,.0f}", f"{rate:,.0f}"]
    return [*row, f"{p50:.2f}", f"{p99:.2f}"]


def time_single(model: RankAE, data: MadeUp) -> list[float]:
    """Return the seconds that one document takes, for many of them."""
    seconds = []
    for i in range(min(N_TIMED, data.test_X.shape[0])):
        row = data.test_X[i]
        start = time.perf_counter()
        model.predict(row)
        seconds.append(time.perf_counter() - start)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each number of labels, print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.rank_ae_times", description=__doc__)
    parser.add_argument("--labels", default="1000,25000,100000")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in args.set)
    rows = []
    for n_labels in map(int, args.labels.split(",")):
        data = make_up(n_documents=args.documents, n_labels=n_labels)
        rows.append(measure(data, args.epochs, settings))
        print(rows[-1], flush=True)
    print(markdown(HEADINGS, rows))


if __name__ == "__main__":
    main()
