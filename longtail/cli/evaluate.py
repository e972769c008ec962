"""`longtail evaluate`: how good a saved model is on documents whose labels are known."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli.output import check_json, check_output, write_json
from longtail.cli.progress import show_progress
from longtail.cli.reading import reads, say_reading
from longtail.errors import DataError, ParameterError, suggest
from longtail.reading import ReadOptions

if TYPE_CHECKING:
    from longtail.models.base import Model


@reads
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a saved model.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file or folder; its test split.")],
    k: Annotated[
        str, typer.Option("-k", metavar="N[,N]", help="Where rankings are cut, such as 1,3,5,10.")
    ] = "1,3,5",
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
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Where to compute; a GPU if there is one and the model can use it."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
    *,
    reading: ReadOptions,
) -> None:
    """Measure how good a saved model is.

    Shows P, nDCG, PSP, PSnDCG, recall, F1 and coverage of labels at 1, 3 and 5, in percent, and how
    well frequent and rare labels are found. Labels are compared by their names. Takes the test
    split of DATA, or all of it if there is no other. Of a model with probabilities, also shows how
    far these are from the truth (the expected calibration error) and precision, recall and F1 of
    the labels above a threshold, `auto` unless given. Of a model whose vocabulary has a hierarchy,
    also shows hP and hrecall, in which what is above a true label counts in part.
    """
    from longtail.cli.reliability import check_reliability, write_reliability
    from longtail.cli.show import METRICS, band_table, metric_table, probability_blocks, show
    from longtail.data import read_splits
    from longtail.evaluation.metrics import PROPENSITIES, evaluate_bands
    from longtail.models import load_model
    from longtail.recipe import evaluate_model
    from longtail.runtime.parallel import set_threads

    if propensity not in PROPENSITIES:
        raise ParameterError(
            f"--propensity must be one of {', '.join(PROPENSITIES)}. "
            f"Got '{propensity}' instead{suggest(propensity, PROPENSITIES)}"
        )
    cuts = parse_cuts(k)
    check_json(json)
    check_output(reliability, "--reliability", overwrite=overwrite)
    check_reliability(reliability)
    set_threads(threads)
    fitted = load_model(model)
    choose_device(fitted, device)
    least = choose_threshold(fitted, threshold)
    splits = read_splits(data, reading)
    test = splits.train if splits.test is None else splits.test
    say_reading(test.read_as)
    if not len(test):
        raise DataError("there is no document to evaluate on", path=data)
    if not test.Y.nnz:
        raise DataError("none of the documents carries a label to compare with", path=data)
    with show_progress() as progress:
        report, top = evaluate_model(fitted, test, propensity, least, progress, cuts)
    test = fitted.read_labels(test).align(fitted.label_names_)
    write_reliability(reliability, top, test.Y, f"{fitted.name} on {len(test):,} documents")
    write_json(report, json)
    if json == "-":
        return
    n = int(report["n_documents"])
    title = f"{fitted.name} on {n:,} documents, in percent"
    show(metric_table(report, title, cuts, METRICS))
    show(band_table(evaluate_bands(top, test, fitted.current_counts, cuts), cuts))
    show(*probability_blocks(report, calibrated=fitted.calibration_ is not None))
    show(f"{n:,} documents labelled in {report['seconds']:.2f} s")


def parse_cuts(given: str) -> list[int]:
    """Return the numbers of -k, rising."""
    try:
        cuts = sorted({int(number) for number in given.split(",")})
    except ValueError:
        cuts = [0]
    if cuts[0] < 1:
        raise ParameterError(
            f"-k must be whole numbers of at least 1, such as 1,3,5,10. Got '{given}' instead."
        )
    return cuts


def choose_device(model: "Model", device: str | None) -> None:
    """Let the model predict where the option --device says."""
    from longtail.runtime.device import set_device

    if device == "cuda" and not model.has_parameter("device"):
        raise ParameterError(f"{model.name} predicts on the CPU only; leave out --device cuda")
    set_device(device or "auto")


def choose_threshold(model: "Model", given: str | None) -> float | None:
    """Return the threshold that the option --threshold means; `auto` if the model knows it."""
    from longtail.models.checks import find_threshold

    if given is None:
        return None if model.calibration_ is None else model.calibration_.find_threshold("auto")
    return find_threshold(parse_threshold(given), model.calibration_)


def parse_threshold(given: str) -> float | str:
    """Return the number that `given` spells, or the word that it is."""
    try:
        return float(given)
    except ValueError:
        return given
