"""`longtail predict`: the best labels of each document, one JSON object a line."""

from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.evaluate import choose_threshold
from longtail.cli.exits import if_interrupted
from longtail.cli.output import check_output, open_output
from longtail.cli.terminal import open_stdin
from longtail.errors import ParameterError
from longtail.visible import as_json


def predict(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a saved model.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="A file in any readable format, or - for stdin: a text a line."
        ),
    ],
    k: Annotated[
        int | None,
        typer.Option("-k", metavar="N", help="How many labels for each document, at most; 5."),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Only labels of this probability or more: 0.5, auto (best F1), auto-document.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write here, not on stdout.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file --out if it exists.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The format of INPUT, if it is not recognized: text, jsonl, csv, tsv, parquet, "
            "fasttext, sparse, matrix.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
) -> None:
    """Write the best labels of each document.

    One JSON object a line: {"labels": [{"label": "beer", "score": 0.93}, …]}. Reads and writes in
    batches, so that it works in pipes and on files of any size. With --threshold, documents get as
    many labels as are probable enough, which may be none; -k is then no limit unless given.
    """
    if k is not None and k < 1:
        raise ParameterError(f"-k must be at least 1. Got {k} instead.")
    check_output(out, "--out", overwrite=overwrite)
    from longtail.data import read_documents
    from longtail.models import load_model
    from longtail.runtime.parallel import set_threads

    set_threads(threads)
    fitted = load_model(model)
    least = None if threshold is None else choose_threshold(fitted, threshold)
    kept = "what was written so far stands." if out is None else f"{out} was not written."
    with if_interrupted(kept), open_output(out) as file:
        read = read_documents(open_stdin().buffer if source == "-" else source, format)
        for batch in read:
            for labels in fitted.predict(batch, k, threshold=least).to_list():
                file.write(as_json({"labels": labels}) + "\n")
            file.flush()
