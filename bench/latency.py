"""`python -m bench.latency`: how long models train and answer, by the number of labels.

The documents are made up (see bench.made_up), the same whatever the number of labels: accuracy here
only shows that something was learned. Every row comes from a process of its own, so that its peak
of memory is its own. `--set name=value` goes to all models.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.made_up import MadeUp, make_up
from bench.table import markdown
from longtail.evaluation.metrics import evaluate
from longtail.models import get_model_class
from longtail.models.base import Model

HEADINGS = ["model", "labels", "fit s", "peak GiB", "documents/s", "one p50 ms", "p99 ms", "P@1"]
N_TIMED = 500


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every model with every number of labels, then print one table."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = _arguments(given)
    if args.one:
        name, n_labels = args.one.split(":")
        made = make_up(n_documents=args.documents, n_labels=int(n_labels))
        settings = dict(pair.split("=", 1) for pair in args.set)
        print(json.dumps(measure(get_model_class(name).from_settings(settings), made)))
        return
    rows = []
    for name in args.models.split(","):
        for n_labels in args.labels.split(","):
            one = [sys.executable, "-m", "bench.latency", *given, "--one", f"{name}:{n_labels}"]
            run = subprocess.run(one, stdout=subprocess.PIPE, check=True, text=True)
            rows.append(json.loads(run.stdout.splitlines()[-1]))
            print(*rows[-1], file=sys.stderr, flush=True)
    print(f"{args.documents:,} made-up documents; {' '.join(args.set) or 'default settings'}\n")
    print(markdown(HEADINGS, rows))


def measure(model: Model, made: MadeUp) -> list[str]:
    """Return the table's row of one model."""
    began = time.perf_counter()
    model.fit(made.X, made.Y)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    accuracy = evaluate(model.predict(made.test_X), made.test_Y)["P@1"]  # also warms up
    began = time.perf_counter()
    model.predict(made.test_X)
    rate = made.test_X.shape[0] / (time.perf_counter() - began)
    p50, p99 = np.percentile(time_single(model, made), [50, 99])
    row = [model.name, f"{made.Y.shape[1]:,}", f"{seconds:.1f}", f"{peak:.1f}", f"{rate:,.0f}"]
    return [*row, f"{p50:.2f}", f"{p99:.2f}", f"{accuracy:.1f}"]


def time_single(model: Model, made: MadeUp) -> NDArray[np.float64]:
    """Return the milliseconds that one document takes, features in, labels out, for many."""
    times = []
    for i in range(min(N_TIMED, made.test_X.shape[0])):
        row = made.test_X[i]
        began = time.perf_counter()
        model.predict(row)
        times.append(1000 * (time.perf_counter() - began))
    return np.array(times)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--models", default="glas,mnn,dxml,rank-ae", metavar="NAME,NAME,…")
    parser.add_argument("--labels", default="25000", metavar="N,N,…")
    parser.add_argument("--documents", default=20_000, type=int, metavar="N")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
