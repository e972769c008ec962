"""How work spreads over local workers: `python -m bench.cluster DATA [--workers 1,2,4]`.

Trains linear on the documents of DATA on one machine, then on local clusters with more and more
workers: seconds of the stage of classifiers, seconds that tasks took in sum, tasks by worker, and
whether the weights have the same bits. The picture shows which worker did which tasks when.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import numpy as np

import longtail
from longtail.cluster import connected
from longtail.cluster.tasks import Span
from longtail.models.linear.spread import _train

SETTINGS = {"flat": 0, "branching": 16, "max_leaf": 50}
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")


def main() -> None:
    """Print the table, and draw the last run if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int, default=8000)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args()
    train = longtail.load(args.data).train
    train = train.take(np.arange(min(len(train), args.documents)))
    began = time.perf_counter()
    here = longtail.Linear(**SETTINGS).fit(train).to_files().arrays
    print(f"one machine, no cluster: {time.perf_counter() - began:.1f} s")
    print("| workers | seconds | seconds of all tasks | busy | tasks by worker | same bits |")
    print("|---|---|---|---|---|---|")
    spans: list[Span] = []
    for n in map(int, args.workers.split(",")):
        spans, same = measure(train, n, here)
        wall = max(span.ended for span in spans) - min(span.began for span in spans)
        work = sum(span.ended - span.began for span in spans)
        counts = Counter[int]()
        for span in spans:
            counts[span.worker] += span.n_tasks
        tasks = ", ".join(f"{count:,}" for _, count in counts.most_common())
        said = "yes" if same else "no"
        print(f"| {n} | {wall:.1f} | {work:.1f} | {work / wall / n:.0%} | {tasks} | {said} |")
    if args.svg is not None:
        draw(spans, args.svg)


def measure(
    train: longtail.Dataset, n: int, here: dict[str, np.ndarray]
) -> tuple[list[Span], bool]:
    """Train on a cluster of n workers, twice as the first compiles; return the second's spans."""
    with connected("local", cores=n) as workers:
        for _ in range(2):
            workers.spans.clear()
            there = longtail.Linear(**SETTINGS).fit(train).to_files().arrays
        spans = [span for span in workers.spans if span.function == _train.__name__]
    return spans, all(np.array_equal(here[name], there[name]) for name in here)


def draw(spans: list[Span], path: Path) -> None:
    """Draw a bar for each group of tasks, a row for each worker."""
    import matplotlib.pyplot as plt

    workers = sorted({(span.node, span.worker) for span in spans})
    begin = min(span.began for span in spans)
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(workers) + 1.2))
    for span in spans:
        row = workers.index((span.node, span.worker))
        axes.barh(
            row,
            span.ended - span.began,
            left=span.began - begin,
            color=COLORS[row % len(COLORS)],
            edgecolor="white",
        )
    axes.set_yticks(range(len(workers)), [f"worker {row + 1}" for row in range(len(workers))])
    axes.set_xlabel("seconds; a bar is a group of blocks of the label trees")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
