"""`longtail serve`: model folders as an HTTP interface and a page."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from longtail.cli.terminal import echo
from longtail.errors import MissingExtraError, ParameterError
from longtail.visible import visible

MILLISECONDS = "ms"


class Spoken(logging.Handler):
    """Shows what the server logs, as commands show notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one line, or more for a bug."""
        word = "Note" if record.levelno < logging.ERROR else "Error"
        echo(f"{word}: {record.getMessage()}", err=True)


def serve(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of saved models, or URLs.")
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 opens it to all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any that is free.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Tokens, one a line; clients need one of them."
        ),
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(metavar="FILE.db", help="Keep here what people accept, reject and add."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Let pages of this address ask, such as https://example.org; may be repeated.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Processes that answer; they share the model's memory.")
    ] = 1,
    max_batch: Annotated[
        int, typer.Option("--max-batch", metavar="N", help="Documents labelled together, at most.")
    ] = 64,
    max_wait: Annotated[
        str,
        typer.Option("--max-wait", metavar="TIME", help="How long batches wait to fill up."),
    ] = "0ms",
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of each worker; unless given, they share the cores."),
    ] = None,
) -> None:
    """Serve saved models: an HTTP interface, Annif's as well, and a page to label documents.

    A model is called by the name of its folder, or of the link to it. A folder that is replaced, by
    train or update, is loaded and answers from then on; no request fails meanwhile. Only this
    machine reaches the server, unless --host says otherwise.
    """
    from longtail.serve.batching import Limits
    from longtail.serve.listening import describe_address, is_local
    from longtail.serve.workers import serve_with_workers

    limits = Limits(max_batch=max_batch, max_wait=_parse_wait(max_wait))
    options: dict[str, Any] = {
        "folders": folders,
        "host": host,
        "limits": limits,
        "token_file": token_file,
        "feedback": feedback,
        "origins": allow_origin or (),
    }

    def say_address(port: int) -> None:
        if not is_local(host) and token_file is None:
            note = "Note: everybody who reaches this address may use it; see --token-file"
            echo(note, err=True)
        echo(f"Serving on {describe_address(host, port)} (Ctrl-C ends it)", err=True)

    show_log()
    if workers != 1:
        serve_with_workers(
            workers,
            port=port,
            options=options,
            threads=threads,
            prepare=show_log,
            on_ready=say_address,
        )
    else:
        _serve_alone(port, options, threads, say_address)
    echo("Stopped: every request that had come was answered.", err=True)


def _serve_alone(
    port: int, options: dict[str, Any], threads: int | None, on_ready: Callable[[int], None]
) -> None:
    """Serve in this process."""
    from longtail.runtime.garbage import no_garbage
    from longtail.serve.workers import METRICS_FOLDER

    os.environ.pop(METRICS_FOLDER, None)  # of somebody else's workers
    try:
        with no_garbage():
            from longtail.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(f"serving needs the package {error.name}", "serve") from error
    from longtail.runtime.parallel import set_threads

    set_threads(threads)
    run(port=port, options=options, on_ready=on_ready)


def show_log() -> None:
    """Show what the server logs from now on."""
    log = logging.getLogger("longtail.serve")
    log.addHandler(Spoken())
    log.setLevel(logging.INFO)


def _parse_wait(text: str) -> float:
    """Return the seconds of 5ms."""
    number = text.strip().removesuffix(MILLISECONDS)
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1000 or not text.strip().endswith(MILLISECONDS):
        raise ParameterError(
            f"--max-wait must be a time from 0ms to 1000ms. Got {visible(repr(text))} instead."
        )
    return value / 1000
