"""`longtail update`: let a saved model take in more documents, without training it from scratch."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli.exits import if_interrupted, say_what_is_in
from longtail.cli.progress import show_progress
from longtail.cli.reading import as_trained, reads, say_reading
from longtail.cli.terminal import echo
from longtail.errors import ParameterError
from longtail.reading import ReadOptions, option_fields
from longtail.storage import is_there
from longtail.visible import spell_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longtail.data import Dataset

SHOWN = 3  # new labels that are named


@reads
def update(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[NEWDATA]", help="A file, folder or URL; its training split."),
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.db", help="Learn from what people corrected, in place of NEWDATA."
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Also go on with training, on old and new documents.")
    ] = False,
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
    """Add new documents, and labels that are new, to a saved model.

    The model knows them at once. With --train it also goes on with training from where it stands,
    which takes longer and fits the new documents better. DIR is replaced as a whole at the end;
    whatever goes wrong before leaves it as it was. Feedback is taken in once, unless --out leaves
    DIR as it is.
    """
    from longtail.models import load_model
    from longtail.runtime.parallel import set_threads
    from longtail.runtime.store import check_writable, locked

    if (data is None) == (feedback is None):
        raise ParameterError("name NEWDATA or --feedback FILE.db, and not both")
    if feedback is not None:
        _check_no_options(reading)
    if out is not None and is_there(out):
        raise ParameterError(f"{out} already exists; choose another --out")
    set_threads(threads)
    place = out or model
    with if_interrupted(say_what_is_in(place)), locked(place):
        fitted = load_model(model)
        fitted.check_updatable()
        check_writable(place, overwrite=out is None)
        documents, ids = _read(
            model, data, feedback, as_trained(reading, fitted), is_noted=out is None
        )
        began, before = time.perf_counter(), fitted.training_counts_
        with show_progress() as progress:
            fitted.partial_fit(documents, train=train, progress=progress)
        fitted.save(place, overwrite=out is None)
        if feedback is not None and out is None:
            _note_used(feedback, ids)
    counts, seconds = fitted.training_counts_, time.perf_counter() - began
    # A label whose name was known, but that no document had carried, is new as well.
    frequencies = zip(before.padded(len(counts.label_counts)), counts.label_counts, strict=True)
    rows = zip(fitted.label_names_, frequencies, strict=True)
    new = [name for name, (earlier, now) in rows if now and not earlier]
    echo(
        f"Added {spell_count(len(fitted.added_), 'document')}{_describe(new)}; "
        f"the {fitted.name} model in {place} now has {spell_count(fitted.n_kept, 'document')} "
        f"and {spell_count(len(fitted.label_names_), 'label')} ({seconds:.1f} s)."
    )


def _check_no_options(reading: ReadOptions) -> None:
    """Raise ParameterError for options about columns or format, which feedback does not have."""
    for name in (each.name for each in option_fields()):
        if getattr(reading, name) is not None:
            raise ParameterError(f"--{name} says how NEWDATA is read; leave it out with --feedback")


def _read(
    model: Path,
    data: Path | None,
    feedback: Path | None,
    reading: ReadOptions,
    *,
    is_noted: bool,
) -> "tuple[Dataset, list[int]]":
    """Return the new documents, and the ids of the feedback that they come from, if any."""
    if feedback is not None:
        from longtail.serve.feedback import as_dataset, check_markable, name_model, read_feedback

        corrections = read_feedback(feedback, name_model(model), unused=True)
        if is_noted:
            check_markable(feedback)  # before the model is replaced
        return as_dataset(list(corrections.values()), feedback), list(corrections)
    from longtail.data import read_splits

    documents = read_splits(data or Path(), reading).train
    say_reading(documents.read_as)
    return documents, []


def _note_used(feedback: Path, ids: list[int]) -> None:
    from longtail.serve.feedback import mark_used

    mark_used(feedback, ids)


def _describe(names: "Sequence[str]") -> str:
    """Return " with 5 new labels (a, b, c, …)", or nothing if there are none."""
    if not names:
        return ""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f" with {spell_count(len(names), 'new label')} ({shown})"
