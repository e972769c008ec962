"""`longtail evaluate`: how good a saved model is on documents whose labels are known."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.output import check_json, write_json
from longtail.cli.progress import show_progress
from longtail.errors import DataError, ParameterError, suggest

if TYPE_CHECKING:
    from longtail.data import Dataset
    from longtail.models.base import Model
    from longtail.topk import TopK

K = 5  # the metrics go up to @5
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
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the metrics as JSON; - for stdout.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
) -> None:
    """Measure how good a saved model is.

    Shows P, nDCG, PSP, PSnDCG and recall at 1, 3 and 5, in percent, and how well frequent and rare
    labels are found. Takes the test part of DATA, or all of it if it has only one part.
    """
    from longtail.cli.show import band_table, metric_table, show
    from longtail.data import load
    from longtail.metrics import PROPENSITIES, evaluate_bands
    from longtail.models import load_model
    from longtail.parallel import set_threads

    if propensity not in PROPENSITIES:
        raise ParameterError(
            f"--propensity must be one of {', '.join(PROPENSITIES)}. "
            f"Got '{propensity}' instead{suggest(propensity, PROPENSITIES)}"
        )
    check_json(json)
    set_threads(threads)
    fitted = load_model(model)
    parts = load(data)
    test = (parts.train if parts.test is None else parts.test).align(fitted.label_names_)
    if not len(test):
        raise DataError("there is no document to evaluate on", path=data)
    report, top = measure(fitted, test, propensity)
    write_json(report, json)
    if json == "-":
        return
    n = int(report["n_documents"])
    show(metric_table(report, title=f"{fitted.name} on {n:,} documents, in percent"))
    show(band_table(evaluate_bands(top, test, fitted.training_counts_)))
    show(f"{n:,} documents labelled in {report['seconds']:.2f} s")


def measure(
    model: "Model", test: "Dataset", propensity: Any = "default"
) -> tuple[dict[str, float], "TopK"]:
    """Return the metrics of `model` on `test`, with the seconds it took, and its predictions."""
    from longtail.metrics import evaluate

    began = time.perf_counter()
    top = predict_with_progress(model, test)
    seconds = time.perf_counter() - began
    report = evaluate(top, test, train=model.training_counts_, propensity=propensity)
    return {**report, "seconds": round(seconds, 3)}, top


def predict_with_progress(model: "Model", documents: "Dataset") -> "TopK":
    """Predict the labels of `documents` in batches, under a progress bar."""
    import numpy as np

    from longtail.topk import TopK

    n = len(documents)
    batches = []
    with show_progress() as progress:
        progress.stage("labelling", n)
        for start in range(0, n, BATCH):
            rows = np.arange(start, min(start + BATCH, n))
            batches.append(model.predict(documents.take(rows), k=K))
            progress.advance(len(rows))
    return TopK(
        np.concatenate([top.labels for top in batches]),
        np.concatenate([top.scores for top in batches]),
    )
