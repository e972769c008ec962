"""The whole recipe of training: hold out, measure, calibrate, train on everything, save.

`longtail train` parses its options, calls `train` and prints what it returns; a program calls the
same function. `Model.fit` is the plain step inside.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import numpy as np

from longtail.data import Dataset, ReadOptions, Splits, as_dataset, read_splits
from longtail.data.folder import estimate_bytes
from longtail.errors import DataError, ParameterError, TrainingError
from longtail.evaluation.calibration import Calibration, choose_depth
from longtail.evaluation.metrics import TrainingCounts, evaluate
from longtail.evaluation.reliability import error_of_first
from longtail.labels.adopting import adopt
from longtail.labels.state import LabelState
from longtail.labels.vocabulary import Vocabulary
from longtail.labels.vocabulary_files import read_vocabulary
from longtail.models.base import Model
from longtail.models.card import Card
from longtail.models.registry import DEFAULT_MODEL, get_model_class, names_of_models
from longtail.progress import SILENT, Progress, shown
from longtail.reading import ANYTHING
from longtail.runtime.mapped import scratch_in
from longtail.runtime.memory import format_bytes, free_ram
from longtail.runtime.parallel import n_threads
from longtail.runtime.settings import parse_time
from longtail.runtime.store import check_writable, identify, locked
from longtail.runtime.store.cache import stand_in
from longtail.runtime.store.manifest import MANIFEST
from longtail.storage import RemotePath, as_place
from longtail.topk import TopK
from longtail.visible import spell_count

TIMED, TIMED_ALONE = 256, 5  # documents that are labelled to see how fast that is
LARGE = 0.5  # share of the free memory from which data go into files
FEWEST_TO_VALIDATE = 100  # with fewer documents, those held out say next to nothing

CalibrationMethod = Literal["isotonic", "logistic", "none"]
Report = dict[str, float]
# Trains a model; returns it with what stopped its training, if something did.
Fit = Callable[[Model, Dataset, Progress], tuple[Model, str | None]]


@dataclass(frozen=True)
class Trained:
    """A trained model, and what is known of it.

    Attributes:
        model: trained on all documents, with probabilities if some could be held out.
        report: its metrics on held-out documents, in percent; None if none were held out.
        seconds: that it took.
        problem: why training stopped early, with usable weights; None if it did not.
        test: the test split of the data, if they were read from a path that has one.
    """

    model: Model
    report: Report | None
    seconds: float
    problem: str | None = None
    test: Dataset | None = None


def train(
    data: Any,
    labels: Any = None,
    *,
    text: str | Sequence[str] | None = None,
    reading: ReadOptions = ANYTHING,
    model: str | type[Model] = DEFAULT_MODEL,
    settings: Mapping[str, Any] | None = None,
    budget: str | None = None,
    max_size: str | None = None,
    max_latency: str | None = None,
    device: str | None = None,
    seed: int | None = None,
    vocab: str | Path | Vocabulary | None = None,
    language: str | None = None,
    valid: float = 0.1,
    calibration: CalibrationMethod = "isotonic",
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_every: str = "5m",
    command: str | None = None,
    cluster: str | None = None,
    processes: int | None = None,
    began: float | None = None,
    progress: Progress | bool = SILENT,
) -> Trained:
    """Train a model on documents, measured and calibrated on some that were held out first.

    Args:
        data: a Dataset, the path of one, a frame, or texts or rows with `labels`.
        labels: the labels of texts or rows, as `Model.fit` takes them, or the name of a column.
        text: the column that holds the text, or several.
        reading: what else is known about the file at the path.
        model: the name of a model, or its class.
        settings: parameters of the model, and `preset`, as `--set` takes them.
        budget: how long a model that plans its time may take in all, such as 10m.
        max_size: how large the folder of a model that has members may be, such as 300MB.
        max_latency: how long such a model may take for one document, such as 5ms.
        device: where to train: auto, cpu or cuda.
        seed: fixes everything that is random.
        vocab: a vocabulary of the labels, or its file: it replaces deprecated labels, gives names
            to models that look for names, and travels with the model.
        language: name labels in this language of the vocabulary; as the data do unless given.
        valid: share of the documents held out for measuring; 0 for none.
        calibration: how the held-out documents make probabilities of scores.
        out: the folder to save the model in; its checkpoints go beside it, into OUT.run.
        overwrite: replace the model that is in `out`.
        resume: go on with training that was stopped, from the checkpoints in OUT.run.
        checkpoint_every: time between two checkpoints, such as 30s; the first comes after a minute
            at most.
        command: the command line that asks for this, to stand in the model's card.
        cluster: train on a Ray cluster: "local", "auto" or "ray://HOST:10001".
        processes: how many of the cluster train a network together; one for each of its GPUs, or
            nodes where there are none, unless given.
        began: when the budget began, by `time.monotonic()`; now, unless given.
        progress: is shown what takes long; True shows it on stderr.
    """
    if not 0 <= valid < 1:
        raise ParameterError(
            f"The 'valid' parameter of train must be at least 0 and below 1. Got {valid:g} instead."
        )
    options = {
        "budget": budget,
        "max_size": max_size,
        "max_latency": max_latency,
        "device": device,
        "seed": seed,
    }
    budget_began = time.monotonic() if began is None else began
    maker = ModelMaker.check(model, {**(settings or {}), **_given(options)})
    vocabulary = _find_vocabulary(vocab, language)
    run = RunFolder(out, resume, parse_time(checkpoint_every, "time between checkpoints"))
    with (
        shown(progress) as progress,
        run.opened(overwrite=overwrite, progress=progress),
        scratch_in(run.scratch),
        _on_cluster(cluster, maker.model_class, processes, progress) as fit,
    ):
        is_path = isinstance(data, str | Path)
        if is_path and (note := say_large(data, run.scratch)) is not None:
            progress.say(note)
            reading = replace(reading, in_files=True)
        dataset, test = _read(data, labels, text, reading)
        if is_path and dataset.read_as:
            progress.say(f"Note: {dataset.read_as}")
        if vocabulary is not None:
            dataset, notes = adopt(dataset, vocabulary, language)
            for note in notes:
                progress.say(f"Note: {note}.")
        began = time.perf_counter()
        report, learned = None, None
        if _can_validate(maker.make(), dataset, valid, progress):
            report, learned = _validate(maker, run, dataset, valid, calibration, fit, progress)
        model_to_fit = run.prepare(maker.make(), TRAINING)
        model_to_fit.began = budget_began
        fitted, problem = fit(model_to_fit, dataset, progress)
        if fitted.held_out_ is not None:
            report, learned = measure_held_out(fitted, dataset, calibration, progress)
        fitted.calibration_ = learned
        if vocabulary is not None:
            fitted.label_state_ = LabelState.of(vocabulary, dataset)
        seconds = time.perf_counter() - began
        fitted.card_ = _complete_card(
            fitted, dataset, report, seconds, command, str(data) if is_path else None
        )
        run.save(fitted, overwrite=overwrite, keep_log=problem is not None)
    return Trained(fitted, report, seconds, problem, test)


@contextmanager
def _on_cluster(
    cluster: str | None, model: type[Model], processes: int | None, progress: Progress
) -> Iterator[Fit]:
    """Give what trains, here or on a cluster if one is asked for."""
    if cluster is None:
        if processes is not None:
            raise ParameterError("processes are those of a cluster; name it as well")
        yield _fit
        return
    if not model.uses_cluster:
        able = names_of_models(lambda each: each.uses_cluster)
        raise ParameterError(
            f"{model.name} is not trained on a cluster; leave out --cluster, or train one of {able}"
        )
    if processes is not None:
        check_processes(model, processes)
    from longtail.cluster import NetworkTrainer, connected

    with connected(cluster) as workers:
        progress.say(f"Cluster: {workers.describe()}")
        if not model.needs_torch:
            yield _fit
            return
        with closing(NetworkTrainer(workers, processes)) as trainer:
            yield trainer.fit


def check_processes(model: type[Model], count: int) -> None:
    """Raise ParameterError if so many processes cannot train a model together."""
    if not model.needs_torch:
        raise ParameterError(
            f"{model.name} is trained by one process, on all its cores; leave out --processes"
        )
    if count < 1:
        raise ParameterError(f"--processes must be at least 1. Got {count} instead.")


def _read(data: Any, labels: Any, text: str | Sequence[str] | None, reading: ReadOptions) -> Splits:
    """Return the splits of a path, or documents in memory as the training split."""
    if not isinstance(data, str | Path):
        return Splits(as_dataset(data, labels, text=text), None)
    if not isinstance(labels, str | None):
        raise DataError("the labels of a file stand in it; name their column", path=data)
    return read_splits(data, ReadOptions(text, labels).over(reading))


def say_large(data: str | Path, folder: Path | None) -> str | None:
    """Say that data at a path are too large for memory, and so go into files; None if not so."""
    needed, free = estimate_bytes(data), free_ram()
    if free is None or needed <= LARGE * free:
        return None
    where = f"in {folder}" if folder is not None else "in the folder for temporary ones"
    return (
        f"Note: the data would take about {format_bytes(needed)} of the {format_bytes(free)} of "
        f"memory that is free, so they are packed into files {where} while the model is trained; "
        "longtail data pack DATA OUT does so once for all trainings"
    )


def _find_vocabulary(
    vocab: str | Path | Vocabulary | None, language: str | None
) -> Vocabulary | None:
    """Return the vocabulary, after a look at whether it has names in the language."""
    if vocab is None:
        if language is not None:
            raise ParameterError("a language is that of a vocabulary's names; give it with --vocab")
        return None
    found = vocab if isinstance(vocab, Vocabulary) else read_vocabulary(vocab)
    if language is not None:
        found.find_language(language)
    return found


def _complete_card(
    model: Model,
    dataset: Dataset,
    report: Report | None,
    seconds: float,
    command: str | None,
    source: str | None,
) -> Card:
    """Return the model's card with what training measured."""
    card = model.make_card()
    return replace(
        card,
        command=command,
        seconds=round(seconds, 1),
        data={"source": source, **card.data},
        metrics={name: round(value, 5) for name, value in (report or {}).items()},
        speed=_measure_speed(model, dataset),
    )


def _measure_speed(model: Model, dataset: Dataset) -> dict[str, float]:
    """Return how fast the model labels some of the documents, with the threads it may use."""
    some = dataset.take(np.arange(min(len(dataset), TIMED)))
    one = some.take(np.arange(1))
    for asked in (one, some):  # what is compiled, loaded or built on first use is not counted
        model.predict(asked)
    began = time.perf_counter()
    model.predict(some)
    batch = time.perf_counter() - began
    singles = []
    for _ in range(TIMED_ALONE):
        began = time.perf_counter()
        model.predict(one)
        singles.append(time.perf_counter() - began)
    return {
        "documents per second": round(len(some) / batch, 1),
        "milliseconds for one document": round(1000 * sorted(singles)[TIMED_ALONE // 2], 3),
        "threads": n_threads(),
    }


def plan(
    data: Any,
    labels: Any = None,
    *,
    text: str | Sequence[str] | None = None,
    reading: ReadOptions = ANYTHING,
    model: str | type[Model] = DEFAULT_MODEL,
    settings: Mapping[str, Any] | None = None,
    cluster: str | None = None,
) -> list[str]:
    """Return the lines of the plan by which `train` would train, without training.

    Args:
        data: a Dataset, the path of one, a frame, or texts or rows with `labels`.
        labels: the labels of texts or rows, as `Model.fit` takes them, or the name of a column.
        text: the column that holds the text, or several.
        reading: what else is known about the file at the path.
        model: the name of a model that plans, or its class.
        settings: its parameters, as `train` takes them.
        cluster: plan for a Ray cluster: "local", "auto" or "ray://HOST:10001".
    """
    began = time.monotonic()
    made = ModelMaker.check(model, dict(settings or {})).make()
    if not made.plans:
        raise ParameterError(f"{made.name} has no plan to show; leave out --plan, or train fusion")
    made.began = began
    with _on_cluster(cluster, type(made), None, SILENT):
        return made.plan_lines(_read(data, labels, text, reading).train)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class ModelMaker:
    """Makes untrained models of one class with the same settings."""

    model_class: type[Model]
    settings: Mapping[str, Any]

    @classmethod
    def check(cls, model: str | type[Model], settings: dict[str, Any]) -> "ModelMaker":
        """Make sure that the settings are those of the model and lie in their ranges."""
        model_class = get_model_class(model) if isinstance(model, str) else model
        if not model_class.has_parameter("device") and settings.pop("device", "cpu") == "cuda":
            raise ParameterError(
                f"{model_class.name} is trained on the CPU only; leave out the device cuda"
            )
        if "budget" in settings and not model_class.has_parameter("budget"):
            raise ParameterError(
                f"{model_class.name} does not plan its time; leave out the budget, or train fusion"
            )
        for name in ("max_size", "max_latency"):
            if name in settings and not model_class.has_parameter(name):
                raise ParameterError(
                    f"{model_class.name} has no members to leave out; leave out {name}, or train "
                    "fusion"
                )
        maker = cls(model_class, settings)
        maker.make()
        return maker

    def make(self) -> Model:
        """Return an untrained model."""
        return self.model_class.from_settings(self.settings)


# -- measuring --------------------------------------------------------------------------------


def _can_validate(model: Model, dataset: Dataset, valid: float, progress: Progress) -> bool:
    """Whether documents should be held out for a model that does not do so itself."""
    if not valid or model.holds_out:
        return False
    if model.may_know_documents:
        progress.say(
            "Note: nothing is measured and no probabilities are learned, as the model that this "
            "one builds on may have been trained on the same documents; longtail evaluate and "
            "calibrate do both, with others."
        )
        return False
    if len(dataset) < FEWEST_TO_VALIDATE:
        progress.say(
            f"Note: {spell_count(len(dataset), 'document')} {'is' if len(dataset) == 1 else 'are'} "
            f"too few to hold some out for measuring (at least {FEWEST_TO_VALIDATE} are needed)."
        )
        return False
    return True


def _validate(
    maker: ModelMaker,
    run: "RunFolder",
    dataset: Dataset,
    valid: float,
    method: CalibrationMethod,
    fit: Fit,
    progress: Progress,
) -> tuple[Report, Calibration | None]:
    """Train on a part of the documents and measure on the others."""
    kept, held_out = dataset.split(valid)
    progress.say(
        f"Measuring: training on {len(kept):,} of {len(dataset):,} documents, "
        f"testing on {len(held_out):,} (--valid 0 skips this)"
    )
    fitted, _ = fit(run.prepare(maker.make(), MEASURING), kept, progress)
    depth = choose_depth(held_out.Y)
    top = fitted.predict(held_out, depth, calibrated=False, progress=progress)
    report, learned = measure(top, held_out, fitted.training_counts_, method, progress)
    precision = ", ".join(f"P@{k} {report[f'P@{k}']:.1f}" for k in (1, 3, 5))
    progress.say(f"Measured: {precision}. Now training on all documents")
    return report, learned


def measure_held_out(
    model: Model,
    dataset: Dataset,
    method: CalibrationMethod = "isotonic",
    progress: Progress = SILENT,
) -> tuple[Report | None, Calibration | None]:
    """Do what `measure` does, with the predictions that training made for held-out documents."""
    if model.held_out_ is None:
        return None, None
    held_out = dataset.take(model.held_out_.rows)
    return measure(model.held_out_.top, held_out, model.training_counts_, method, progress)


def measure(
    top: TopK,
    held_out: Dataset,
    counts: TrainingCounts,
    method: CalibrationMethod = "isotonic",
    progress: Progress = SILENT,
) -> tuple[Report, Calibration | None]:
    """Return the metrics of predictions, and what makes probabilities of their scores.

    The metrics are those of probabilities, each document's by what the other documents taught.
    """
    calibration, threshold = None, None
    if method != "none":
        try:
            calibration, top = Calibration.fit_and_predict(top, held_out.Y, method, counts=counts)
            threshold = calibration.find_threshold("auto")
        except DataError as error:
            progress.say(f"Note: no probabilities: {error}")
    return report_on(top, held_out, counts, threshold=threshold), calibration


def report_on(
    top: TopK,
    test: Dataset,
    counts: TrainingCounts,
    threshold: float | None = None,
) -> Report:
    """Return all metrics; those of a threshold only with one."""
    report = evaluate(top, test, train=counts, threshold=threshold)
    report["ECE"] = round(error_of_first(top, test.Y), 5)
    return report if threshold is None else report | {"threshold": threshold}


def _fit(model: Model, dataset: Dataset, progress: Progress) -> tuple[Model, str | None]:
    """Train `model`; return it with what stopped its training, if something did."""
    try:
        return model.fit(dataset, progress=progress), None
    except TrainingError as error:
        if not model.is_fitted:
            raise
        return model, str(error)


# -- the run folder ---------------------------------------------------------------------------

MEASURING, TRAINING = "measuring", "training"


class RunFolder:
    """Where a model goes, and beside it OUT.run: log and checkpoints while it is trained.

    It goes once the model is saved; where training stopped early, the log stays. Models that train
    in a minute or two have no use for it, and then the folder is never made.
    """

    def __init__(
        self, out: str | Path | None, resume: bool = False, checkpoint_seconds: float = 300.0
    ) -> None:
        self.out = None if out is None else as_place(out)
        # For a URL, a folder of the cache: checkpoints are read and written all the time.
        beside = stand_in(self.out, "runs") if isinstance(self.out, RemotePath) else self.out
        self.path = None if beside is None else beside.with_name(beside.name + ".run")
        self.resume, self.checkpoint_seconds = resume, checkpoint_seconds
        self.before = None if self.out is None else identify(self.out)
        # Beside the model, where there is room for large things, and not in memory.
        self.scratch = None if beside is None else beside.absolute().parent

    @contextmanager
    def opened(self, *, overwrite: bool, progress: Progress) -> Iterator[None]:
        """Make sure that the model can be written, by us alone, and that no earlier run is lost."""
        if self.out is None and self.resume:
            raise ParameterError(
                "there is nothing to resume without out, beside which checkpoints are"
            )
        if self.out is None:
            yield
            return
        is_model = self.before is not None
        is_taken = is_model if isinstance(self.out, RemotePath) else os.path.lexists(self.out)
        if is_taken and not overwrite:
            raise ParameterError(
                f"{self.out} already exists; choose another --out, or add --overwrite"
            )
        check_writable(self.out, overwrite=overwrite)
        with locked(self.out) if is_first_process() else nullcontext():
            self._check_kept(overwrite=overwrite, progress=progress)
            yield

    def _check_kept(self, *, overwrite: bool, progress: Progress) -> None:
        kept = self.find_checkpoints()
        if self.resume and not kept:
            progress.say(f"Note: there is no checkpoint in {self.path}; training begins anew.")
        elif kept and not self.resume and not overwrite:
            raise ParameterError(
                f"{self.path} holds checkpoints of a run that was stopped; add --resume to go on "
                "with it, or --overwrite to begin again"
            )

    def find_checkpoints(self) -> list[Path]:
        """Return the folders of all checkpoints, whole or not, and of members that are done."""
        if self.path is None:
            return []
        steps = [folder for folder in self.path.glob("**/step-*") if folder.is_dir()]
        done = {file.parent.parent for file in self.path.glob(f"*/members/*/{MANIFEST}")}
        return steps + sorted(done)

    def prepare(self, model: Model, stage: str) -> Model:
        """Let `model` write into the folder of the stage, if it is one that can resume."""
        if model.can_resume and self.path is not None:
            model.run_dir, model.resume = self.path / stage, self.resume
            model.checkpoint_seconds = self.checkpoint_seconds
        return model

    def save(self, model: Model, *, overwrite: bool, keep_log: bool = False) -> None:
        """Write the model, in the first of the processes that train it, and tidy up."""
        if self.out is None or self.path is None or not is_first_process():
            return
        model.save(self.out, overwrite=overwrite)
        stages = [self.path / stage for stage in (MEASURING, TRAINING)]
        for folder in self.find_checkpoints() if keep_log else stages:
            rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not there, or with something in it that is not ours
            self.path.rmdir()

    def say_what_is_kept(self) -> str:
        """Return what to tell a user who stopped training."""
        if self.out is not None and identify(self.out) not in (None, self.before):
            return f"the new model is in {self.out}."
        kept = f"no model was saved and {self.out} is as it was before"
        if not self.find_checkpoints():
            return f"{kept}."
        return f"{kept}; the same command with --resume goes on from where it stopped."


def is_first_process() -> bool:
    """Whether this is the first, or the only one, of the processes that train a model."""
    return os.environ.get("RANK", "0") == "0"
