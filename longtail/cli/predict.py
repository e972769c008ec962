"""`longtail predict`: the best labels of each document, in a file, a pipe or a table."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from longtail.cli.evaluate import choose_device, choose_threshold
from longtail.cli.exits import if_interrupted
from longtail.cli.output import check_apart, check_output
from longtail.cli.progress import show_progress
from longtail.cli.reading import as_trained, reads, say_reading
from longtail.cli.terminal import is_terminal, open_stdout
from longtail.errors import ParameterError
from longtail.progress import SILENT
from longtail.reading import ReadOptions
from longtail.runtime.unfinished import is_special, unfinished_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longtail.data import Dataset
    from longtail.data.results import Results
    from longtail.topk import TopK


@reads
def predict(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file, folder, pattern or URL in any readable format; - for stdin.",
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
    language: Annotated[
        str | None,
        typer.Option(metavar="L", help="Name labels in this language of the model's vocabulary."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write here: a .jsonl, .csv, .tsv, .parquet or .xlsx."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Write all columns of INPUT beside the labels.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help="Write a row for each label, not for each document.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file --out if it exists.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Where to compute; a GPU if there is one and the model can use it."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Label on a Ray cluster: local, auto or ray://HOST:10001; --out is then a folder.",
        ),
    ] = None,
    *,
    reading: ReadOptions,
) -> None:
    """Write the best labels of each document.

    The name of --out says what to write: documents with `labels` and `scores`, and their ids where
    they have any. On stdout that is a table in a terminal, and one JSON object a line elsewhere:
    {"labels": [{"label": "beer", "score": 0.93}, …]}, with the labels' URIs where the model knows
    them. Reads and writes in batches, so that it
    works in pipes and on files of any size. With --threshold, documents get as many labels as are
    probable enough, which may be none; -k is then no limit unless given.
    With --cluster, all nodes label and the folder --out gets Parquet files in the order of the
    documents; the same command after a stop goes on. --threads are then those of each worker, 1
    unless given.
    """
    if k is not None and k < 1:
        raise ParameterError(f"-k must be at least 1. Got {k} instead.")
    if cluster is not None:
        wanted = _Wanted(k, threshold, language, long, threads, device)
        _predict_on(cluster, model, source, out, wanted, replace(reading, keep=keep), overwrite)
        return
    check_output(out, "--out", overwrite=overwrite)
    check_apart(out, "--out", source)
    from longtail.data import read_batches
    from longtail.data.results import choose_results
    from longtail.models import load_model
    from longtail.runtime.parallel import set_threads

    ending = ".jsonl" if out is None or is_special(out) else choose_results(out)
    set_threads(threads)
    fitted = load_model(model)
    choose_device(fitted, device)
    least = None if threshold is None else choose_threshold(fitted, threshold)
    names = fitted.label_names_ if language is None else fitted.names_in(language)
    kept = "what was written so far stands." if out is None else f"{out} was not written."
    watched = out is None and is_terminal(sys.stdout)
    with (
        if_interrupted(kept),
        nullcontext(SILENT) if watched else show_progress() as progress,
        _open(out, ending, names, fitted.label_uris, long=long, watched=watched) as results,
    ):
        said, n = "", 0
        progress.stage("labelling", 0)
        for batch in read_batches(source, replace(as_trained(reading, fitted), keep=keep)):
            if batch.read_as != said:
                say_reading(said := batch.read_as)
            results.write(batch, fitted.predict(batch, k, threshold=least, language=language))
            n += len(batch)
            progress.advance(len(batch))
            progress.note(f"{n:,} documents")


class _Wanted(NamedTuple):
    """What the options ask for, whatever the documents."""

    k: int | None
    threshold: str | None
    language: str | None
    long: bool
    threads: int | None
    device: str | None


def _predict_on(
    cluster: str,
    model: Path,
    source: str,
    out: Path | None,
    wanted: _Wanted,
    reading: ReadOptions,
    overwrite: bool,
) -> None:
    """Label on a cluster, into a folder of Parquet files."""
    if out is None:
        raise ParameterError("--cluster writes a folder of Parquet files; name it with --out")
    from longtail.cluster import Request, check_address, connected
    from longtail.cluster import predict as predict_on_cluster
    from longtail.data.results import WRITERS
    from longtail.models import load_model

    check_address(cluster)
    if out.suffix.lower() in WRITERS:
        raise ParameterError(
            f"--cluster writes a folder of Parquet files; --out must be a folder. Got '{out}' "
            "instead."
        )
    fitted = load_model(model)
    if wanted.device == "cuda" and not fitted.has_parameter("device"):
        choose_device(fitted, wanted.device)  # which says so; the GPUs are the cluster's
    least = None if wanted.threshold is None else choose_threshold(fitted, wanted.threshold)
    if wanted.language is not None:
        fitted.names_in(wanted.language)
    kept = f"finished parts are in {out}; the same command goes on."
    with if_interrupted(kept), show_progress() as progress, connected(cluster) as workers:
        may_use = wanted.device != "cpu" and fitted.has_parameter("device")
        on_gpu = wanted.device == "cuda" or (may_use and any(node.gpus for node in workers.nodes))
        request = Request(
            wanted.k,
            least,
            wanted.language,
            wanted.long,
            wanted.threads or 1,
            "cuda" if on_gpu else "cpu",
        )
        n = predict_on_cluster(
            model,
            source,
            out,
            workers,
            request,
            reading=reading,
            overwrite=overwrite,
            progress=progress,
        )
        progress.say(f"The labels of {n:,} documents are in {out}")


@contextmanager
def _open(
    out: Path | None,
    ending: str,
    label_names: "Sequence[str]",
    label_uris: "Sequence[str | None] | None",
    *,
    long: bool,
    watched: bool,
) -> "Iterator[Results]":
    """Open what takes the results: a file, a table in a terminal, or JSON lines on stdout."""
    from longtail.data.results import open_results, write_json_lines

    if out is not None:
        with (
            unfinished_file(out) as place,
            open_results(place, ending, label_names, label_uris, long=long) as to,
        ):
            yield to
    elif watched:
        yield TerminalTable()
    else:
        yield write_json_lines(open_stdout(), label_names, label_uris, long=long)


class TerminalTable:
    """Shows predictions to people, as they come."""

    def __init__(self) -> None:
        self._n_shown = 0

    def write(self, batch: "Dataset", top: "TopK") -> None:
        """Print the rows of a batch."""
        from longtail.cli.show import prediction_table
        from longtail.cli.terminal import open_console

        table = prediction_table(batch, top, self._n_shown, header=not self._n_shown)
        open_console().print(table)
        self._n_shown += len(top)
