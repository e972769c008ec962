"""`longtail demo`: the whole tool in one go, on the data set that comes with it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.exits import if_interrupted, say_what_is_in
from longtail.cli.progress import show_progress
from longtail.errors import DataError

DEMO_MODEL = "linear"  # done in seconds; what `train` takes by itself needs minutes
N_EXAMPLES = 5


def demo(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The folder to save the model in; replaced if it is one."
        ),
    ] = Path("demo-model"),
) -> None:
    """Train, measure and use a model on bundled data."""
    import numpy as np

    from longtail.assessment import assess
    from longtail.cli.show import example_lines, metric_table, show
    from longtail.data.debian import load_debian
    from longtail.data.documents import cut_documents
    from longtail.models import get_model_class
    from longtail.runtime.store import check_writable, locked

    check_writable(out, overwrite=True)
    train, test = load_debian()
    if test is None:
        raise DataError("the bundled data set has lost its test split; install longtail again")
    show(
        f"Debian package descriptions: {len(train):,} documents to train on, {len(test):,} to "
        f"test on, {train.n_labels:,} labels."
    )
    began = time.perf_counter()
    with if_interrupted(say_what_is_in(out)), locked(out):
        with show_progress() as progress:
            model = get_model_class(DEMO_MODEL)().fit(train, progress=progress)
        seconds = time.perf_counter() - began
        model.save(out, overwrite=True)
    with show_progress() as progress:
        report = assess(model, cut_documents(test), progress=progress).report
    show(f"Trained the {model.name} model in {seconds:.1f} s.", "")
    show(metric_table(report, title=f"On the {len(test):,} test documents, in percent"))
    some = test.take(np.array(_choose_examples(len(test))))
    show(*example_lines(some, model.predict(some)))
    show(
        f"The model is in {out}. Label a text of your own with it:",
        f"  echo 'a fast text editor for the terminal' | longtail predict {out} -",
        "",
        "Open it in a browser (needs pip install '.[serve]'):",
        f"  longtail serve {out}",
        "",
        "With your own data (JSON lines with text and labels, CSV, and more):",
        "  longtail data info DATA",
        "  longtail train DATA --out my-model",
        "  longtail predict my-model NEW_DOCUMENTS",
    )


def _choose_examples(n: int) -> list[int]:
    """Return a few documents spread evenly over the `n` there are."""
    return [n * i // N_EXAMPLES for i in range(min(N_EXAMPLES, n))]
