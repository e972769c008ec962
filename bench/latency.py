"""`python -m bench.latency`: how long models train and answer, by the number of labels.

The documents are made up (see bench.made_up), the same whatever the number of labels: accuracy here
only shows that something was learned. `--data DIR` takes a real data set instead. One document is
answered by `--threads` threads, as rows of features, in three rounds: the quickest round counts, as
others only show what else the machine does. Every row comes from a process of its own, so that its
peak of memory is its own. `--set name=value` goes to all models.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import longtail
from bench.made_up import MadeUp, make_up
from bench.table import markdown
from longtail.evaluation.metrics import evaluate
from longtail.models import get_model_class
from longtail.models.base import Model
from longtail.runtime.parallel import set_threads
from longtail.text.tfidf import Tfidf

HEADINGS = ["model", "labels", "fit s", "peak GiB", "documents/s", "one p50 ms", "p99 ms", "P@1"]
N_TIMED = 500
N_ROUNDS = 3
MOST_TESTED = 2000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every model with every number of labels, then print one table."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = _arguments(given)
    if args.one:
        name, n_labels = args.one.split(":")
        made = (
            read(args.data)
            if args.data
            else make_up(n_documents=args.documents, n_labels=int(n_labels))
        )
        settings = dict(pair.split("=", 1) for pair in args.set)
        model = get_model_class(name).from_settings(settings)
        print(json.dumps(measure(model, made, args.threads)))
        return
    rows = []
    for name in args.models.split(","):
        for n_labels in ["0"] if args.data else args.labels.split(","):
            one = [sys.executable, "-m", "bench.latency", *given, "--one", f"{name}:{n_labels}"]
            run = subprocess.run(one, stdout=subprocess.PIPE, check=True, text=True)
            rows.append(json.loads(run.stdout.splitlines()[-1]))
            print(*rows[-1], file=sys.stderr, flush=True)
    documents = args.data.name if args.data else f"{args.documents:,} made-up documents"
    print(f"{documents}; {' '.join(args.set) or 'default settings'}\n")
    print(markdown(HEADINGS, rows))


def read(data: Path) -> MadeUp:
    """Return the rows of a data set's documents; those of texts are tf-idf rows."""
    train, test = longtail.load(data)
    if test is None:
        raise SystemExit(f"{data} has no test split")
    if train.X is not None and test.X is not None:
        return MadeUp(train.X, train.Y, test.X, test.Y)
    features = Tfidf()
    X = features.fit_transform(train.texts or [])
    test_X = features.transform((test.texts or [])[:MOST_TESTED])
    return MadeUp(X, train.Y, test_X, test.Y[:MOST_TESTED])


def measure(model: Model, made: MadeUp, n_threads: int | None = None) -> list[str]:
    """Return the table's row of one model."""
    began = time.perf_counter()
    model.fit(made.X, made.Y)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    accuracy = evaluate(model.predict(made.test_X), made.test_Y)["P@1"]  # also warms up
    began = time.perf_counter()
    model.predict(made.test_X)
    rate = made.test_X.shape[0] / (time.perf_counter() - began)
    set_threads(n_threads)
    rounds = [np.percentile(time_single(model, made), [50, 99]) for _ in range(N_ROUNDS)]
    p50, p99 = min(rounds, key=lambda times: float(times[0]))
    print(getattr(model, "index_", ""), *(f"{times[0]:.2f}" for times in rounds), file=sys.stderr)
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
    parser.add_argument("--data", type=Path, metavar="DIR", help="in place of made-up documents")
    parser.add_argument("--threads", type=int, metavar="N", help="that answer one document")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
