"""`python -m bench.false_alarms`: how often a comparison calls methods of equal quality different.

Simulated methods label simulated documents. A document is as difficult for all of them, apart from
what is the method's own; another seed changes the labels of single documents, and the level of the
whole method (by about one point of P@1). Whatever is called significant is a false alarm. Drawing
documents alone leaves the seeds out of account; `longtail compare` draws both.
"""

import argparse
from collections.abc import Sequence
from itertools import product

import numpy as np

from bench.table import markdown
from longtail.compare.bootstrap import draw_metrics
from longtail.evaluation.metrics import PerDocument

METRIC = "P@1"
SEED_SPREAD = 0.03  # of the level, in units of the documents' difficulty
Method = list[dict[str, PerDocument]]  # what each seed reaches


def make_method(
    difficulty: np.ndarray, n_seeds: int, seed_spread: float, rng: np.random.Generator
) -> Method:
    """Return a method that is right on half of the documents, on average over seeds."""
    own = difficulty + 0.5 * rng.normal(size=len(difficulty))
    seeds = []
    for _ in range(n_seeds):
        level = seed_spread * rng.normal()
        right = own + 0.5 * rng.normal(size=len(difficulty)) + level > 0
        seeds.append(_as_metric(right))
    return seeds


def _as_metric(reached: np.ndarray) -> dict[str, PerDocument]:
    return {METRIC: PerDocument(reached.astype(np.float64), np.ones(len(reached)))}


def average(method: Method) -> Method:
    """Return a method with the mean of its seeds as its only one, so that none can be drawn."""
    return [_as_metric(np.mean([seed[METRIC].reached for seed in method], axis=0))]


def is_alarm(methods: Sequence[Method], n_draws: int) -> bool:
    """Whether any two methods are called different."""
    differences = draw_metrics(methods, n_draws)[METRIC].differences()
    return any(each.is_significant for each in differences)


def study(n_methods: int, n_documents: int, n_seeds: int, trials: int, draws: int) -> list[float]:
    """Return the percentage of false alarms: drawing documents alone, and seeds as well."""
    rng = np.random.default_rng(0)
    alarms = np.zeros(2)
    for _ in range(trials):
        difficulty = rng.normal(size=n_documents)
        methods = [make_method(difficulty, n_seeds, SEED_SPREAD, rng) for _ in range(n_methods)]
        averaged = [average(method) for method in methods]
        alarms += [is_alarm(averaged, draws), is_alarm(methods, draws)]
    return list(100 * alarms / trials)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of methods, documents and seeds."""
    parser = argparse.ArgumentParser(prog="python -m bench.false_alarms", description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--draws", type=int, default=2000)
    args = parser.parse_args(arguments)
    rows = []
    for shape in product((2, 4), (300, 2000), (1, 3, 5)):
        found = study(*shape, args.trials, args.draws)
        rows.append([*map(str, shape), *(f"{percent:.1f} %" for percent in found)])
    print(markdown(["methods", "documents", "seeds", "documents drawn", "and seeds"], rows))


if __name__ == "__main__":
    main()
