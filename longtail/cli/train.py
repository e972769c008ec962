"""`longtail train`: measure a model on held-out documents, then train it on all and save it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import signature
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longtail.cli.evaluate import predict_with_progress, report_on
from longtail.cli.exits import if_interrupted
from longtail.cli.progress import show_progress
from longtail.cli.run_folder import MEASURING, TRAINING, RunFolder
from longtail.cli.settings import DEFAULT_MODEL, gather_settings
from longtail.errors import DataError, ParameterError, TrainingError

if TYPE_CHECKING:
    from longtail.data import Dataset
    from longtail.evaluation.calibration import Calibration
    from longtail.evaluation.metrics import TrainingCounts
    from longtail.models.base import Model
    from longtail.topk import TopK

Device = Literal["auto", "cpu", "cuda"]
Method = Literal["isotonic", "logistic", "none"]

IS_FIRST_PROCESS = os.environ.get("RANK", "0") == "0"  # torchrun and accelerate launch number them
FEWEST_TO_VALIDATE = 100  # with fewer documents, a held-out part says next to nothing


def train(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A file or folder; its training part.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder to save the model in.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"One of `longtail models`; {DEFAULT_MODEL} unless given."
        ),
    ] = None,
    valid: Annotated[
        float,
        typer.Option(metavar="FRACTION", help="Documents held out for measuring; 0 for none."),
    ] = 0.1,
    calibration: Annotated[
        Method, typer.Option(help="How the held-out documents make probabilities of scores.")
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
        typer.Option(metavar="TIME", help="How long fusion may train: 90s, 10m (as usual), 2h."),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(help="Where to train a model that torch trains; a GPU if there is one."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Same seed, same model.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with training that was stopped.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model that is in --out.")
    ] = False,
) -> None:
    """Train a model and save it.

    First trains on 90 % of the documents and measures on the other 10 %, then trains on all of
    them and saves that model. The measuring nearly doubles the time; --valid 0 leaves it out. The
    documents held out also teach how probable labels of a score are, so the model that is saved
    gives probabilities (--calibration none leaves its own scores).
    A model that torch trains keeps its log and its checkpoints in DIR.run meanwhile.
    fusion chooses its parts by the data, the machine and --budget, and says so first; it holds out
    documents anyway, so that --valid changes nothing. Parts that are done wait in DIR.run.
    """
    from longtail.data import load
    from longtail.runtime.parallel import set_threads
    from longtail.runtime.store import check_writable

    if not 0 <= valid < 1:
        raise ParameterError(f"--valid must be at least 0 and below 1. Got {valid:g} instead.")
    options = {"budget": budget, "device": device, "seed": seed}
    name, chosen = gather_settings(model, config, settings or [], options)
    new_model = _model_maker(name, chosen)
    if os.path.lexists(out) and not overwrite:
        raise ParameterError(f"{out} already exists; choose another --out, or add --overwrite")
    check_writable(out, overwrite=overwrite)
    run = RunFolder(out, resume=resume)
    if resume and not run.find_checkpoints():
        typer.echo(f"Note: there is no checkpoint in {run.path}; training begins anew.", err=True)
    elif not resume and not overwrite:
        run.require_finished()
    set_threads(threads)
    with if_interrupted(lambda: run.say_what_is_kept(out)), _only_first_process_speaks():
        documents, test = load(data)
        valid = _check_validation(valid, documents, new_model())
        began = time.perf_counter()
        report, learned = None, None
        if valid and not _measures_itself(new_model()):
            measured = run.prepare(new_model(), MEASURING)
            report, learned = _validate(measured, documents, valid, calibration)
        fitted, problem = _fit(run.prepare(new_model(), TRAINING), documents)
        if _measures_itself(fitted):
            report, learned = _take_measures(fitted, documents, calibration)
        fitted.calibration_ = learned
        if not IS_FIRST_PROCESS:
            return
        fitted.save(out, overwrite=overwrite)
        run.remove_checkpoints()
        if problem is not None:
            raise TrainingError(f"{problem}; the model with these weights is in {out}")
        _conclude(fitted, out, report, time.perf_counter() - began)
        _advise(out, "TEST_DATA" if test is None else data)


def fit_with_progress(model: "Model", documents: "Dataset") -> "Model":
    """Train `model` on `documents` under a progress bar."""
    with show_progress() as progress:
        return model.fit(documents, progress=progress)


def _fit(model: "Model", documents: "Dataset") -> tuple["Model", TrainingError | None]:
    """Train `model`; return it with what stopped its training, if something did."""
    try:
        return fit_with_progress(model, documents), None
    except TrainingError as error:
        if not model.is_fitted:
            raise
        return model, error


@contextmanager
def _only_first_process_speaks() -> Iterator[None]:
    """Silence all but the first of the processes that torchrun started."""
    if IS_FIRST_PROCESS:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _model_maker(name: str, settings: dict[str, Any]) -> Any:
    """Return a function that makes an untrained model, after checking that it can."""
    from longtail.models import get_model_class

    model_class = get_model_class(name)
    taken = signature(model_class).parameters
    if "device" not in taken and settings.pop("device", "cpu") == "cuda":
        raise ParameterError(f"{name} is trained on the CPU only; leave out --device cuda")
    if "budget" not in taken and "budget" in settings:
        raise ParameterError(f"{name} trains as long as it takes; --budget is for fusion")
    model_class.from_settings(settings).check_parameters()
    return lambda: model_class.from_settings(settings)


def _check_validation(valid: float, documents: "Dataset", model: "Model") -> float:
    """Return `valid`, or 0 with a note where documents that are held out would say nothing."""
    if valid and model.may_know_documents:
        typer.echo(
            "Note: nothing is measured and no probabilities are learned, as the model that this "
            "one builds on may have been trained on the same documents; longtail evaluate and "
            "calibrate do both, with others.",
            err=True,
        )
        return 0.0
    if valid and len(documents) < FEWEST_TO_VALIDATE:
        typer.echo(
            f"Note: {len(documents)} documents are too few to hold some out for measuring "
            f"(at least {FEWEST_TO_VALIDATE} are needed).",
            err=True,
        )
        return 0.0
    return valid


def _validate(
    model: "Model", documents: "Dataset", valid: float, method: Method
) -> tuple[dict[str, float], "Calibration | None"]:
    """Return how good `model` is on a part of `documents` after training on the rest."""
    kept, held_out = documents.split(valid)
    typer.echo(
        f"Measuring: training on {len(kept):,} of {len(documents):,} documents, "
        f"testing on {len(held_out):,} (--valid 0 skips this)",
        err=True,
    )
    fitted, _ = _fit(model, kept)
    report, calibration = _measure(fitted, held_out, method)
    precision = ", ".join(f"P@{k} {report[f'P@{k}']:.1f}" for k in (1, 3, 5))
    typer.echo(f"Measured: {precision}. Now training on all documents", err=True)
    return report, calibration


def _measure(
    model: "Model", held_out: "Dataset", method: Method
) -> tuple[dict[str, float], "Calibration | None"]:
    """Return the metrics on the held-out documents, and what they say about probabilities.

    The metrics are those of probabilities, each document's by what the others taught.
    """
    from longtail.evaluation.calibration import choose_depth

    top = predict_with_progress(model, held_out, choose_depth(held_out.Y), calibrated=False)
    return _judge(top, held_out, model.training_counts_, method)


def _measures_itself(model: "Model") -> bool:
    """Return whether training gives lists for held-out documents by itself, as fusion does."""
    return hasattr(model, "held_out_")


def _take_measures(
    model: Any, documents: "Dataset", method: Method
) -> tuple[dict[str, float] | None, "Calibration | None"]:
    """Return what `_measure` does, by the lists that training has left."""
    if model.held_out_ is None:
        return None, None
    held_out = documents.take(model.held_out_.rows)
    return _judge(model.held_out_.top, held_out, model.training_counts_, method)


def _judge(
    top: "TopK", held_out: "Dataset", counts: "TrainingCounts", method: Method
) -> tuple[dict[str, float], "Calibration | None"]:
    """Return the metrics of lists, and what makes probabilities of their scores."""
    from longtail.evaluation.calibration import Calibration

    calibration, threshold = None, None
    if method != "none":
        try:
            calibration, top = Calibration.fit_and_predict(top, held_out.Y, method, counts=counts)
            threshold = calibration.find_threshold("auto")
        except DataError as error:
            typer.echo(f"Note: no probabilities: {error}", err=True)
    return report_on(top, held_out, counts, threshold=threshold), calibration


def _conclude(model: "Model", out: Path, report: dict[str, float] | None, seconds: float) -> None:
    """Say how good the model is and where."""
    from longtail.cli.show import metric_table, probability_blocks, show

    if report is not None:
        n_valid = int(report["n_documents"])
        show(metric_table(report, title=f"On {n_valid:,} held-out documents, in percent"))
        show(*probability_blocks(report, calibrated=model.calibration_ is not None))
    counts = model.training_counts_
    n_labels = int((counts.label_counts > 0).sum())
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    show(
        f"The {model.name} model of {counts.n_documents:,} documents and {n_labels:,} labels "
        f"is in {out} ({size:.1f} MB, {seconds:.1f} s)."
    )


def _advise(out: Path, test_data: Path | str) -> None:
    """Say what to type next."""
    typer.echo("\nNext:")
    typer.echo(f"  longtail evaluate {quote(str(out))} {quote(str(test_data))}")
    typer.echo(f"  longtail predict {quote(str(out))} NEW_DOCUMENTS")
