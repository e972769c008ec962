"""`longtail evaluate`: how good a saved model is on documents whose labels are known."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.output import check_json, check_output, write_json
from longtail.cli.progress import show_progress
from longtail.errors import DataError, ParameterError, suggest

if TYPE_CHECKING:
    from longtail.data import Dataset
    from longtail.evaluation.metrics import TrainingCounts
    from longtail.models.base import Model
    from longtail.topk import TopK

K = 5  # the metrics go up to @5, and the calibration error is about as many
BATCH = 4096  # documents predicted between two moves of the progress bar


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a saved model.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A file or folder; its test part.")],
    propensity: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Constants of the PS metrics: default, wikipedia or amazon."
        ),
    ] = "default",
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="P", help="Probability from which labels are given: 0.5, auto, auto-document."
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the metrics as JSON; - for stdout.")
    ] = None,
    reliability: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot the calibration: a .svg, .html or .png file."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file --reliability if it exists.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
) -> None:
    """Measure how good a saved model is.

    Shows P, nDCG, PSP, PSnDCG and recall at 1, 3 and 5, in percent, and how well frequent and rare
    labels are found. Takes the test part of DATA, or all of it if it has only one part. Of a model
    with probabilities, also shows how far these are from the truth (the expected calibration error)
    and precision, recall and F1 of the labels above a threshold, `auto` unless given.
    """
    from longtail.cli.reliability import check_reliability, write_reliability
    from longtail.cli.show import band_table, metric_table, probability_blocks, show
    from longtail.data import load
    from longtail.evaluation.metrics import PROPENSITIES, evaluate_bands
    from longtail.models import load_model
    from longtail.runtime.parallel import set_threads

    if propensity not in PROPENSITIES:
        raise ParameterError(
            f"--propensity must be one of {', '.join(PROPENSITIES)}. "
            f"Got '{propensity}' instead{suggest(propensity, PROPENSITIES)}"
        )
    check_json(json)
    check_output(reliability, "--reliability", overwrite=overwrite)
    check_reliability(reliability)
    set_threads(threads)
    fitted = load_model(model)
    least = choose_threshold(fitted, threshold)
    parts = load(data)
    test = (parts.train if parts.test is None else parts.test).align(fitted.label_names_)
    if not len(test):
        raise DataError("there is no document to evaluate on", path=data)
    report, top = measure(fitted, test, propensity, least)
    write_reliability(reliability, top, test.Y, f"{fitted.name} on {len(test):,} documents")
    write_json(report, json)
    if json == "-":
        return
    n = int(report["n_documents"])
    show(metric_table(report, title=f"{fitted.name} on {n:,} documents, in percent"))
    show(band_table(evaluate_bands(top, test, fitted.training_counts_)))
    show(*probability_blocks(report, calibrated=fitted.calibration_ is not None))
    show(f"{n:,} documents labelled in {report['seconds']:.2f} s")


def choose_threshold(model: "Model", given: str | None) -> float | None:
    """Return the threshold that the option --threshold means; `auto` if the model knows it."""
    from longtail.models.base import find_threshold

    if given is None:
        return None if model.calibration_ is None else model.calibration_.find_threshold("auto")
    return find_threshold(parse_threshold(given), model.calibration_)


def parse_threshold(given: str) -> float | str:
    """Return the number that `given` spells, or the word that it is."""
    try:
        return float(given)
    except ValueError:
        return given


def measure(
    model: "Model", test: "Dataset", propensity: Any = "default", threshold: float | None = None
) -> tuple[dict[str, float], "TopK"]:
    """Return the metrics of `model` on `test`, with the seconds it took, and its predictions."""
    began = time.perf_counter()
    calibration = model.calibration_
    k = K if calibration is None else max(K, calibration.depth)
    top = predict_with_progress(model, test, k)
    seconds = time.perf_counter() - began
    report = report_on(top, test, model.training_counts_, propensity, threshold)
    return {**report, "seconds": round(seconds, 3)}, top


def report_on(
    top: "TopK",
    test: "Dataset",
    counts: "TrainingCounts",
    propensity: Any = "default",
    threshold: float | None = None,
) -> dict[str, float]:
    """Return all metrics; those of a threshold only with one."""
    from longtail.evaluation.calibration import error_of_first
    from longtail.evaluation.metrics import evaluate, evaluate_given

    report = evaluate(top, test, train=counts, propensity=propensity)
    report["ECE"] = round(error_of_first(top, test.Y), 5)
    if threshold is not None:
        report["threshold"] = threshold
        report |= evaluate_given(top.above(threshold), test.Y)
    return report


def predict_with_progress(
    model: "Model", documents: "Dataset", k: int = K, *, calibrated: bool = True
) -> "TopK":
    """Predict the labels of `documents` in batches, under a progress bar."""
    import numpy as np

    from longtail.topk import TopK

    n = len(documents)
    batches = []
    with show_progress() as progress:
        progress.stage("labelling", n)
        for start in range(0, n, BATCH):
            rows = np.arange(start, min(start + BATCH, n))
            batches.append(model.predict(documents.take(rows), k, calibrated=calibrated))
            progress.advance(len(rows))
    return TopK(
        np.concatenate([top.labels for top in batches]),
        np.concatenate([top.scores for top in batches]),
    )
