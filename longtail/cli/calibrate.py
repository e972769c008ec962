"""`longtail calibrate`: let a saved model give probabilities, learned on documents new to it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from longtail.cli.exits import if_interrupted, say_what_is_in
from longtail.cli.reading import as_trained, reads, say_reading
from longtail.cli.terminal import echo
from longtail.errors import DataError, ParameterError
from longtail.reading import ReadOptions
from longtail.storage import is_there


@reads
def calibrate(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Documents it was not trained on; test split.")
    ],
    method: Annotated[
        Literal["isotonic", "logistic"], typer.Option(help="logistic suits very few documents.")
    ] = "isotonic",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR2", help="Save here and leave DIR as it is."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
    *,
    reading: ReadOptions,
) -> None:
    """Make probabilities of a saved model's scores.

    `longtail train` does so by itself; this is for models trained with --valid 0, and for documents
    that differ from those of training. Takes the test split of DATA, or all of it if there is no
    other: documents that the model was not trained on, a few hundred or more. Measure it afterwards
    on others still. DIR is replaced as a whole at the end.
    """
    from longtail.data import read_splits
    from longtail.models import load_model
    from longtail.runtime.parallel import set_threads
    from longtail.runtime.store import check_writable, locked

    if out is not None and is_there(out):
        raise ParameterError(f"{out} already exists; choose another --out")
    set_threads(threads)
    place = out or model
    with if_interrupted(say_what_is_in(place)), locked(place):
        fitted = load_model(model)
        check_writable(place, overwrite=out is None)
        train, test = read_splits(data, as_trained(reading, fitted))
        documents = train if test is None else test
        say_reading(documents.read_as)
        if not len(documents):
            raise DataError("there is no document to learn from", path=data)
        fitted.calibrate(documents, method=method)
        fitted.save(place, overwrite=out is None)
    learned = fitted.calibration_
    if learned is not None:
        best = learned.thresholds["micro"]
        echo(
            f"The {fitted.name} model in {place} gives probabilities now, learned from "
            f"{learned.n_documents:,} documents. Expected calibration error: {learned.error:.3f} "
            f"on documents unseen ({learned.error_before:.3f} before). Labels of {best:g} or more "
            "give the best F1 (--threshold auto)."
        )
