"""Which members of a fusion should propose labels, and what scoring them all costs.

    python -m bench.candidates DATA [--members linear,attention-xml:small] [--documents 40000]

A part of the training documents is held out, and members, named with or without a preset, are
trained on the others: on rows, if they take them and are not better with texts. Then the
held-out documents are labelled: by each member alone; by a stacker that sees only the members'
lists; by stackers that see all members' scores of what some members propose. The last line is
what `fusion` chooses. Milliseconds are the processor's, for one document of many, on one thread.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import longtail
from longtail.data import Dataset
from longtail.evaluation.calibration import choose_depth
from longtail.evaluation.metrics import TrainingCounts, evaluate
from longtail.models import get_model_class
from longtail.models.base import Model
from longtail.models.fusion.candidates import (
    MOST_PROPOSED,
    ask,
    choose_proposers,
    describe_candidates,
)
from longtail.models.fusion.stacking import (
    choose_stacker,
    label_shares,
    learn_stacking,
    possible_stackers,
)
from longtail.runtime.parallel import set_threads
from longtail.runtime.rows import hold_out
from longtail.text.tfidf import Tfidf

HELD_OUT = 0.1
METRICS = [f"{name}@{k}" for name in ("P", "PSP") for k in (1, 3, 5)]


def main(arguments: list[str] | None = None) -> None:
    """Print a table: what proposes, P@k and PSP@k, labels and milliseconds for a document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--members", default="linear,knn")
    parser.add_argument("--documents", type=int, help="train and measure on so many at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    data = longtail.load(given.data)[0]
    if given.documents is not None:
        order = np.random.default_rng(given.seed).permutation(len(data))[: given.documents]
        data = data.take(np.sort(order))
    X = Tfidf().fit_transform(data.texts or []) if data.X is None else data.X
    kept, held = hold_out(len(data), HELD_OUT, given.seed)
    rows, texts = Dataset(data.Y[kept], data.label_names, X=X[kept]), data.take(kept)
    members = {}
    for name in given.members.split(","):
        model, _, preset = name.partition(":")
        settings = {"seed": given.seed, **({"preset": preset} if preset else {})}
        made = get_model_class(model).from_settings(settings)
        members[name] = made.fit(rows if "rows" in made.reads else texts)
    print(f"| proposed | {' | '.join(METRICS)} | labels | ms |")
    print("|---" * (len(METRICS) + 3) + "|")
    compare(members, data, X, kept, held)


def compare(
    members: dict[str, Model], data: Dataset, X: sp.csr_matrix, kept: Any, held: Any
) -> None:
    """Print a line for each way to find candidates."""
    set_threads(1)
    rows, wanted, n = X[held], data.Y[held], len(held)
    given = rows if data.texts is None else [data.texts[i] for i in held]
    counts, shares = TrainingCounts.of(data.take(kept)), label_shares(data.Y[kept])
    width = min(MOST_PROPOSED, data.n_labels)
    lists, alone = {}, {}
    for name, member in members.items():
        asked = rows if member.trained_on == "rows" else given
        member.predict_documents(asked[:8], width)  # compiles
        lists[name], took = timed(
            lambda own=member, them=asked: own.predict_documents(them, width), n
        )
        alone[name] = evaluate(lists[name], wanted, train=counts)
        show(f"{name} alone", alone[name], width, took)
    choice = learn_stacking({name: [top] for name, top in lists.items()}, [(kept, held)], data)
    if choice is not None:
        show("lists alone", choice.report, sum(choice.proposers.values()), None)
    everyone = dict.fromkeys(members, width)
    costs = {name: member.milliseconds for name, member in members.items()}
    ways = [everyone, {next(iter(members)): width}, choose_proposers(lists, wanted, costs)]
    for proposers in ways:
        ask(members, proposers, given[:8], rows[:8], data.n_labels)
        said, took = timed(lambda own=proposers: ask(members, own, given, rows, data.n_labels), n)
        candidates = describe_candidates(said, shares)
        depth, stackers = choose_depth(wanted), possible_stackers(n)
        found = choose_stacker(candidates, wanted, counts, stackers, depth, alone)
        _, ranked = timed(
            lambda own=said, by=found: by.stacker.rank(describe_candidates(own, shares), 5), n
        )
        proposed = ", ".join(f"{name} {number}" for name, number in proposers.items())
        show(proposed, found.report, len(candidates.labels) / n, took + ranked)


def timed(work: Callable[[], Any], n: int) -> tuple[Any, float]:
    """Return what work returns, and the processor's milliseconds for each of n documents."""
    began = time.process_time()
    done = work()
    return done, 1000 * (time.process_time() - began) / n


def show(what: str, report: Any, n_labels: float, milliseconds: float | None) -> None:
    """Print a line of the table."""
    values = " | ".join(f"{report[name]:.2f}" for name in METRICS)
    took = "" if milliseconds is None else f"{milliseconds:.2f}"
    print(f"| {what} | {values} | {n_labels:.0f} | {took} |", flush=True)


if __name__ == "__main__":
    main()
