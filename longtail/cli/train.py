"""`longtail train`: measure a model on held-out documents, then train it on all and save it."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longtail.cli.exits import if_interrupted
from longtail.cli.models import complete_model
from longtail.cli.progress import show_progress
from longtail.cli.reading import reads
from longtail.cli.settings import gather_settings
from longtail.errors import LostProcessError, ParameterError, TrainingError
from longtail.models.registry import DEFAULT_MODEL, get_model_class
from longtail.reading import ReadOptions
from longtail.visible import spell_count

if TYPE_CHECKING:
    from longtail.recipe import Trained


@reads
def train(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A file, folder or URL; its training split.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The folder to save the model in.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"One of `longtail models`; {DEFAULT_MODEL} unless given.",
            autocompletion=complete_model,
        ),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A vocabulary of the labels, of `longtail vocab load` or SKOS."
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="L", help="Name labels in this language of --vocab, such as en."),
    ] = None,
    valid: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION", help="Documents held out for measuring: 0.1 (default), 0 for none."
        ),
    ] = None,
    calibration: Annotated[
        Literal["isotonic", "logistic", "none"],
        typer.Option(help="How the held-out documents make probabilities of scores."),
    ] = "isotonic",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter; may be repeated."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A TOML file of parameters; --set wins over it."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long fusion may take: 90s, 10m (default), 2h."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="How large a fusion may be, such as 300MB."),
    ] = None,
    max_latency: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long it may take for one document, such as 5ms."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show fusion's plan and stop.")] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Where to train a model that torch trains; a GPU if there is one."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Same seed, same model.")] = None,
    seeds: Annotated[str | None, typer.Option(hidden=True)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with training that was stopped.")
    ] = False,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From one checkpoint to the next: 30s, 5m (default)."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Train a network by N processes, here or of --cluster, one a GPU."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model that is in --out.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Train on a Ray cluster: local, auto or ray://HOST:10001."
        ),
    ] = None,
    *,
    reading: ReadOptions,
) -> None:
    """Train a model and save it.

    First trains on 90 % of the documents and measures on the other 10 %, then trains on all of
    them and saves that model. The measuring nearly doubles the time; --valid 0 leaves it out. The
    held-out documents also teach how probable a label of a given score is, so the saved model gives
    probabilities (--calibration none keeps its own scores).
    A model that torch trains keeps its log and its checkpoints in DIR.run meanwhile.
    fusion chooses its members by the data, the machine and --budget, in which all of it ends, and
    prints its plan first (--plan: nothing else). Members that gain too little for their size and
    time are left out, further ones where --max-size or --max-latency says so. It holds out
    documents anyway, so --valid changes nothing. Finished members are kept in DIR.run.
    """
    began = time.monotonic()  # loading what trains is a part of the budget
    from longtail.cli.launch import is_launched, launch, share_threads
    from longtail.recipe import RunFolder, is_first_process
    from longtail.recipe import train as train_model
    from longtail.runtime.parallel import set_threads

    if seeds is not None:
        raise ParameterError(
            "train makes one model, with --seed N; to measure one over several seeds, use "
            f"longtail compare DATA --models {model or DEFAULT_MODEL} --seeds {seeds} --out REPORT"
        )
    if out is None and not plan:
        raise ParameterError("Missing option '--out' (see longtail train --help)")
    options = {
        "budget": budget,
        "max_size": max_size,
        "max_latency": max_latency,
        "device": device,
        "seed": seed,
    }
    name, chosen, reading = gather_settings(model, config, settings or [], options, reading)
    optional = {"valid": valid, "checkpoint_every": checkpoint_every}
    given: dict[str, Any] = {key: value for key, value in optional.items() if value is not None}
    if processes is not None:
        _check_processes(name, processes)
    set_threads(share_threads(threads, None if cluster else processes))
    if out is None or plan:
        _show_plan(data, reading, name, chosen, cluster)
        return
    kept = RunFolder(out).say_what_is_kept
    if processes is not None and cluster is None and not is_launched():
        launch(processes, kept)
        return
    with (
        _leaving_loss_to_launcher(),
        _only_first_process_prints(is_first_process()),
        if_interrupted(kept),
    ):
        with show_progress() as progress:
            trained = train_model(
                data,
                reading=reading,
                model=name,
                settings=chosen,
                calibration=calibration,
                out=out,
                overwrite=overwrite,
                resume=resume,
                vocab=vocab,
                language=language,
                command=join(["longtail", *sys.argv[1:]]),
                cluster=cluster,
                processes=processes if cluster else None,
                began=began,
                progress=progress,
                **given,
            )
        if trained.problem is not None:
            raise TrainingError(f"{trained.problem}; the model with these weights is in {out}")
        if is_first_process():
            _conclude(trained, out, "TEST_DATA" if trained.test is None else str(data))


def _show_plan(
    data: Path, reading: ReadOptions, model: str, settings: dict[str, Any], cluster: str | None
) -> None:
    """Print what training would do."""
    from longtail.cli.show import show
    from longtail.recipe import plan

    show(*plan(data, reading=reading, model=model, settings=settings, cluster=cluster))


def _check_processes(model: str, count: int) -> None:
    """Raise ParameterError if so many processes cannot train a model, or others were started."""
    from longtail.recipe import check_processes

    check_processes(get_model_class(model), count)
    started = int(os.environ.get("WORLD_SIZE", count))
    if started != count:
        raise ParameterError(
            f"--processes {count} starts processes, but this is one of {started} that were started "
            "already, as by torchrun; leave out --processes"
        )


@contextmanager
def _leaving_loss_to_launcher() -> Iterator[None]:
    """End without a word if another process is gone: `launch` knows which one, and why."""
    from longtail.cli.launch import LAUNCHED, LOST

    try:
        yield
    except LostProcessError:
        if LAUNCHED not in os.environ:
            raise
        raise typer.Exit(LOST) from None


@contextmanager
def _only_first_process_prints(is_first: bool) -> Iterator[None]:
    """Silence all but the first of the processes that torchrun started."""
    if is_first:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _conclude(trained: "Trained", out: Path, test_data: str) -> None:
    """Say how good the model is, where it is, and what to type next."""
    from longtail.cli.show import metric_table, probability_blocks, show
    from longtail.runtime.store import count_bytes

    model, report = trained.model, trained.report
    if report is not None:
        n_valid = int(report["n_documents"])
        show(metric_table(report, title=f"On {n_valid:,} held-out documents, in percent"))
        show(*probability_blocks(report, calibrated=model.calibration_ is not None))
    counts = model.training_counts_
    n_labels = int((counts.label_counts > 0).sum())
    size = count_bytes(out) / 1e6
    show(
        f"The {model.name} model of {spell_count(counts.n_documents, 'document')} "
        f"and {spell_count(n_labels, 'label')} "
        f"is in {out} ({size:.1f} MB, {trained.seconds:.1f} s).",
        "",
        "Next:",
        f"  longtail evaluate {quote(str(out))} {quote(test_data)}",
        f"  longtail predict {quote(str(out))} NEW_DOCUMENTS",
    )
