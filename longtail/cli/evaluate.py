"""`longtail evaluate`: how good a saved model is on documents whose labels are known."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli.output import check_apart, check_json, check_output, write_json
from longtail.cli.progress import show_progress
from longtail.cli.reading import as_trained, reads, say_reading
from longtail.errors import ParameterError, suggest
from longtail.reading import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from longtail.data import Dataset
    from longtail.models.base import Model


@reads
def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A file, folder or URL; its test split.")
    ],
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
    split of DATA, or all of it if there is no other, and reads it in batches, so that files may be
    of any size. Of a model with probabilities, also shows how far these are from the truth (the
    expected calibration error) and precision, recall and F1 of the labels above a threshold, `auto`
    unless given. Of a model whose vocabulary has a hierarchy, also shows hP and hrecall, in which
    what is above a true label counts in part.
    """
    from longtail.assessment import assess
    from longtail.cli.reliability import check_reliability, write_reliability
    from longtail.cli.show import METRICS, band_table, metric_table, probability_blocks, show
    from longtail.data.blocks import read_blocks
    from longtail.evaluation.propensity import PROPENSITIES
    from longtail.models import load_model
    from longtail.runtime.parallel import set_threads

    if propensity not in PROPENSITIES:
        raise ParameterError(
            f"--propensity must be one of {', '.join(PROPENSITIES)}. "
            f"Got '{propensity}' instead{suggest(propensity, PROPENSITIES)}"
        )
    cuts = parse_cuts(k)
    check_json(json)
    check_apart(json, "--json", data)
    check_output(reliability, "--reliability", overwrite=overwrite)
    check_reliability(reliability)
    set_threads(threads)
    fitted = load_model(model)
    choose_device(fitted, device)
    least = choose_threshold(fitted, threshold)
    options = as_trained(reading, fitted)
    with show_progress() as progress:
        found = assess(
            fitted,
            _said(read_blocks(data, options)),
            k=cuts,
            propensity=propensity,
            threshold=least,
            source=data,
            progress=progress,
        )
    report, n = found.report, int(found.report["n_documents"])
    write_reliability(reliability, found.reliability, f"{fitted.name} on {n:,} documents")
    write_json(report, json)
    if json == "-":
        return
    title = f"{fitted.name} on {n:,} documents, in percent"
    show(metric_table(report, title, cuts, METRICS))
    show(band_table(found.bands, cuts))
    show(*probability_blocks(report, calibrated=fitted.calibration_ is not None))
    show(f"{n:,} documents labelled in {report['seconds']:.2f} s")


def _said(blocks: "Iterator[Dataset]") -> "Iterator[Dataset]":
    """Yield the blocks, and say how the first was read."""
    for place, block in enumerate(blocks):
        if not place:
            say_reading(block.read_as)
        yield block


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
