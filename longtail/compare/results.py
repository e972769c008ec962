"""The results of a comparison as plain lists, dictionaries and numbers: results.json."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.compare.bootstrap import (
    LEVEL,
    Draws,
    choose_n_draws,
    draw_metrics,
)
from longtail.compare.disagreement import (
    count_agreement,
    find_disagreements,
    show_document,
)
from longtail.compare.noise import KINDS, Noise
from longtail.compare.run import Failure, Run
from longtail.compare.split import TrainTestSplit
from longtail.evaluation.bands import evaluate_bands
from longtail.evaluation.calibration import predict_unseen
from longtail.evaluation.metrics import (
    PerDocument,
    TrainingCounts,
    evaluate_documents,
    find_hits,
)
from longtail.evaluation.reliability import Reliability, reliability
from longtail.topk import NO_LABEL, TopK

FORMAT = 1
MEASURES = (
    "train_seconds",
    "train_cpu_seconds",
    "train_peak_mb",
    "train_above_data_mb",
    "gpu_peak_mb",
    "model_mb",
    "predict_seconds",
    "documents_per_second",
    "single_p50_ms",
    "single_p99_ms",
    "rows_seconds",
)
JUDGED = 5  # labels of each document whose scores are checked against the true labels
MOST_CALIBRATED = 20_000  # documents for learning and measuring a calibration
LONGEST_CURVE = 200  # points of a training curve that are kept


@dataclass(frozen=True)
class Finished:
    """The successful runs of a method, and what each reaches on each document."""

    runs: Sequence[Run]
    values: Sequence[Mapping[str, PerDocument]]

    @property
    def top(self) -> TopK:
        """The predictions of its first seed."""
        return self.runs[0].top

    def mean(self, metric: str) -> NDArray[np.float64]:
        """Return what the runs reach on each document, on average."""
        reached: NDArray[np.float64] = np.mean([each[metric].reached for each in self.values], 0)
        return reached


def assemble(
    runs: Sequence[Run | Failure], split: TrainTestSplit, propensity: str
) -> dict[str, Any]:
    """Measure all predictions with the same code and compare them."""
    counts = TrainingCounts.of(split.train)
    finished: dict[str, Finished] = {}
    methods = []
    correct = [run for run in runs if run.noise is None]
    for name in dict.fromkeys(run.contender.name for run in correct):
        own = [run for run in correct if run.contender.name == name]
        done = [run for run in own if isinstance(run, Run)]
        method = _describe(own)
        if done:
            each = [
                evaluate_documents(run.top, split.test.Y, train=counts, propensity=propensity)
                for run in done
            ]
            finished[name] = Finished(done, each)
            method |= _measure(done, each, split, counts)
        methods.append(method)
    results = {"format": FORMAT, "methods": methods, "propensity": propensity}
    if split.clean is not None:
        results["noise"] = measure_noise(runs, split, propensity)
    return results | _compare(methods, finished, split) if finished else results


def _describe(runs: Sequence[Run | Failure]) -> dict[str, Any]:
    first = runs[0]
    failures = [run for run in runs if isinstance(run, Failure)]
    measured = [run.measured for run in runs if isinstance(run, Run)]
    return {
        "name": first.contender.name,
        "package": first.contender.package,
        "version": first.version,
        "ours": first.contender.ours,
        "setting": first.contender.setting,
        "seeds": [run.seed for run in runs if isinstance(run, Run)],
        "error": failures[0].error if failures else None,
        "failed_seeds": [run.seed for run in failures],
        "note": next((each["note"] for each in measured if "note" in each), None),
        "gpu": next((each["gpu"] for each in measured if "gpu" in each), None),
    }


def _measure(
    runs: Sequence[Run],
    each: Sequence[Mapping[str, PerDocument]],
    split: TrainTestSplit,
    counts: TrainingCounts,
) -> dict[str, Any]:
    """Return the costs of one method, and the accuracy of each of its seeds."""
    top = runs[0].top
    known = [m for m in MEASURES if all(m in run.measured for run in runs)]
    by_seed = [
        {"seed": run.seed} | {name: values.percent() for name, values in one.items()}
        for run, one in zip(runs, each, strict=True)
    ]
    return {
        "measured": {m: float(np.median([run.measured[m] for run in runs])) for m in known},
        "by_seed": by_seed,
        "curves": {
            name: _thin_out(records) for name, records in runs[0].measured.get("curves", {}).items()
        },
        "bands": [band.as_dict() for band in evaluate_bands(top, split.test.Y, counts)],
        "calibration": _calibration(top, split),
    }


def _thin_out(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return at most LONGEST_CURVE records of a curve, always with the last."""
    step = -(-len(records) // LONGEST_CURVE) if records else 1
    kept = records[::-1][::step][::-1]
    return [dict(record) for record in kept]


def _calibration(top: TopK, split: TrainTestSplit) -> dict[str, Any]:
    """Return the calibration error of the scores, as they are and after calibration."""
    first, Y = top.first(JUDGED), split.test.Y
    given = _reliability(first, Y)
    found: dict[str, Any] = {"ece": given.error, "bins": _bins(given)}
    if len(first) > MOST_CALIBRATED:
        rows = np.random.default_rng(0).choice(len(first), MOST_CALIBRATED, replace=False)
        first, Y = TopK(first.labels[rows], first.scores[rows]), Y[rows]
    if find_hits(first, Y).any():
        found["ece_calibrated"] = _reliability(predict_unseen(first, Y), Y).error
    return found


def _reliability(top: TopK, Y: sp.csr_matrix) -> Reliability:
    given = top.labels != NO_LABEL
    return reliability(top.scores[given], find_hits(top, Y)[given])


def _bins(found: Reliability) -> list[dict[str, float]]:
    rows = zip(found.counts.tolist(), found.means.tolist(), found.shares.tolist(), strict=True)
    return [{"n": n, "score": score, "right": right} for n, score, right in rows if n]


def _compare(
    methods: Iterable[dict[str, Any]], finished: Mapping[str, Finished], split: TrainTestSplit
) -> dict[str, Any]:
    """Add intervals to the methods; return differences, agreement and disagreements."""
    names = list(finished)
    n_draws = choose_n_draws(len(split.test), len(names))
    draws = draw_metrics([each.values for each in finished.values()], n_draws)
    for method in methods:
        if method["name"] in finished:
            number = names.index(method["name"])
            method["metrics"] = {
                name: asdict(drawn.spread(number))
                | {"sd": spread_of_seeds(method["by_seed"], name)}
                for name, drawn in draws.items()
            }
    tops = [each.top for each in finished.values()]
    reached = [each.mean("nDCG@5") for each in finished.values()]
    rows = find_disagreements(tops, reached)
    return {
        "bootstrap": {"draws": n_draws, "seed": 0, "level": 1 - LEVEL},
        "differences": {name: _differences(drawn, names) for name, drawn in draws.items()},
        "compared": names,
        "agreement": count_agreement(tops, split.test),
        "disagreements": [show_document(row, tops, split.test) for row in rows],
    }


def spread_of_seeds(by_seed: Sequence[Mapping[str, float]], metric: str) -> float | None:
    """Return the sample standard deviation (n − 1) of a metric over seeds, None of a single one."""
    values = [one[metric] for one in by_seed]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _differences(draws: Draws, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        asdict(each)
        | {
            "one": names[each.one],
            "other": names[each.other],
            "significant": each.is_significant,
        }
        for each in draws.differences()
    ]


# ------------------------------------------------------------------------------------------ noise


def measure_noise(
    runs: Sequence[Run | Failure], split: TrainTestSplit, propensity: str
) -> dict[str, Any]:
    """Return what each method reaches with each noise, as mean and deviation over seeds.

    A run without noise is at the rate 0 of every kind. "test" are the metrics on the test
    documents, "clean" those on the clean training documents.
    """
    counts = TrainingCounts.of(split.train)
    kinds = [kind for kind in KINDS if any(run.noise and run.noise.kind == kind for run in runs)]
    by_point: dict[Any, list[dict[str, Any]]] = {}
    for run in runs:
        if isinstance(run, Run):
            one = _measure_noise_run(run, split, counts, propensity)
            for noise in [Noise(kind, 0.0) for kind in kinds] if run.noise is None else [run.noise]:
                by_point.setdefault((*noise, run.contender.name), []).append(one)
    return {
        "n_spoiled": len(split.train),
        "n_clean": 0 if split.clean is None else len(split.clean),
        "kinds": kinds,
        "points": [
            {"kind": kind, "rate": rate, "name": name, **_summarize_noise(seeds)}
            for (kind, rate, name), seeds in by_point.items()
        ],
        "failures": [
            {
                "name": run.contender.name,
                "noise": str(run.noise),
                "seed": run.seed,
                "error": run.error,
            }
            for run in runs
            if isinstance(run, Failure) and run.noise is not None
        ],
    }


def _measure_noise_run(
    run: Run, split: TrainTestSplit, counts: TrainingCounts, propensity: str
) -> dict[str, Any]:
    """Return the seed of a run and its metrics on the test documents and on the clean ones."""
    parts = {"test": (run.top, split.test), "clean": (run.clean_top, split.clean)}
    found: dict[str, Any] = {"seed": run.seed}
    for part, (top, data) in parts.items():
        if top is not None and data is not None:
            each = evaluate_documents(top, data.Y, train=counts, propensity=propensity)
            found[part] = {metric: values.percent() for metric, values in each.items()}
    return found


def _summarize_noise(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and deviation of every metric over seeds."""
    found: dict[str, Any] = {"seeds": [one["seed"] for one in seeds]}
    for part in ("test", "clean"):
        values = [one[part] for one in seeds]
        found[part] = {
            metric: {
                "value": float(np.mean([one[metric] for one in values])),
                "sd": spread_of_seeds(values, metric),
            }
            for metric in values[0]
        }
    return found
