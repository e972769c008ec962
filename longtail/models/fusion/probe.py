"""How long members take here and now: measured, by training them on a few of the documents.

A member that torch trains makes a few of its real steps, of the size and with the network that all
documents will have, and all that comes before and after them, for two numbers of documents: what
grows with the documents is told apart from what does not. Any other member is trained on larger and
larger samples, which tell by which power of the documents its time grows.

Measuring takes a small share of the budget (SHARE). A member for which there is no time is
estimated by a formula (`Model.estimate_cost`), corrected by what the formulas of others were worth;
so is one that is far out of reach.
"""

import time
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.errors import reraise_interrupt
from longtail.models.base import Model
from longtail.models.cost import Cost, Facts
from longtail.models.fusion.limits import NO_LIMITS, Limits, time_documents
from longtail.models.fusion.training import documents_for
from longtail.models.neural import Neural
from longtail.models.registry import get_model_class
from longtail.progress import TRAINING, OutOfTimeError, Silent

SHARE = 0.03  # of the budget, for all members together
FAR = 2.5  # a member whose formula says so many times the budget is not tried
STEPS = 4  # of a member that torch trains
FIRST_SAMPLE = 500  # documents of any other member; then twice as many, while there is time
POWERS = (0.7, 1.2)  # of the number of documents, by which time may grow
LEAST = 64  # documents to learn anything from
MOST_SHARE = 0.5  # of the documents, in a sample


class Stopwatch(Silent):
    """A Progress that tells the training loop's steps from the rest, and stops when time is over.

    Attributes:
        steps: seconds that were spent in steps.
        passed: documents that passed through them.
        each: seconds for a document, without each loop's first step, which takes longer.
    """

    def __init__(self, stop_at: float) -> None:
        self.stop_at, self.began = stop_at, time.monotonic()
        self.steps = self.passed = 0.0
        self._timed = self._timed_documents = 0.0
        self._last: float | None = None  # when the last step of this loop was over
        self._in_loop = False

    @property
    def each(self) -> float:
        """Return the seconds for a document; of the first step, if there was no other."""
        if self._timed_documents:
            return self._timed / self._timed_documents
        return self.steps / self.passed if self.passed else 0.0

    def stage(self, name: str, total: float) -> None:
        """Begin another stage."""
        self._check()
        self._in_loop, self._last = name == TRAINING, None
        self._entered = time.monotonic()

    def advance(self, amount: float) -> None:
        """Count a step."""
        now = time.monotonic()
        if self._in_loop:
            took = now - (self._entered if self._last is None else self._last)
            self.steps, self.passed = self.steps + took, self.passed + amount
            if self._last is not None:
                self._timed, self._timed_documents = (
                    self._timed + took,
                    self._timed_documents + amount,
                )
            self._last = now
        self._check()

    def _check(self) -> None:
        if time.monotonic() > self.stop_at:
            raise OutOfTimeError("the time for measuring is over")


class Trial(NamedTuple):
    """What a training on a sample took.

    Attributes:
        n_documents: of the sample.
        seconds: in all.
        rest: seconds without the training loop's steps.
        passes: how often each document passed through the steps.
        each: seconds for a document in a step; 0 if none was made.
        is_whole: whether it came to its end.
        n_bytes: of the model that it made, where there are limits; 0 if it made none.
        milliseconds: that one document takes there.
    """

    n_documents: int
    seconds: float
    rest: float
    passes: float
    each: float
    is_whole: bool
    n_bytes: int = 0
    milliseconds: float = 0.0


class Prober:
    """Measures members on the documents that they will be trained on."""

    def __init__(
        self,
        dataset: Dataset,
        X: sp.csr_matrix,
        facts: Facts,
        *,
        budget: float | None,
        device: str,
        seed: int,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.dataset, self.X, self.facts, self.limits = dataset, X, facts, limits
        self.budget, self.device, self.seed = budget, device, seed
        self.seconds = 0.0  # spent on measuring
        labelled = np.flatnonzero(np.diff(dataset.Y.indptr))
        self._order = np.random.default_rng(seed).permutation(labelled)
        self._costs: dict[tuple[str, str | None], Cost] = {}
        self._worth: dict[bool, list[float]] = {True: [], False: []}  # of formulas, by needs_torch

    def __call__(self, name: str, preset: str | None) -> Cost:
        """Return how long a training of the model takes on all documents."""
        if (name, preset) not in self._costs:
            self._costs[name, preset] = self._find(name, preset)
        return self._costs[name, preset]

    def _find(self, name: str, preset: str | None) -> Cost:
        model = self._make(name, preset)
        formula = type(model).estimate_cost(self.facts, preset)
        left = np.inf if self.budget is None else SHARE * self.budget - self.seconds
        if self.budget is None or formula > FAR * self.budget or left <= 0:
            return self._guess(model, formula)
        began = time.monotonic()
        measured = self._measure(model, began + left / 2)
        self.seconds += time.monotonic() - began
        if measured is None:
            return self._guess(model, formula)
        self._worth[model.needs_torch].append(measured.seconds() / formula)
        return measured

    def _guess(self, model: Model, formula: float) -> Cost:
        """Correct a formula by what others were worth."""
        seconds = formula * float(np.median(self._worth[model.needs_torch] or [1.0]))
        return Cost.guess(seconds, model.choose_epochs(self.facts.n_documents))

    def _make(self, name: str, preset: str | None) -> Model:
        settings = {"seed": self.seed, **({} if preset is None else {"preset": preset})}
        if get_model_class(name).has_parameter("device"):
            settings["device"] = self.device
        return get_model_class(name).from_settings(settings)

    def _measure(self, model: Model, stop_at: float) -> Cost | None:
        """Return what trials say; None if they say nothing."""
        if isinstance(model, Neural):
            return self._measure_steps(model, stop_at)
        return self._measure_samples(model, stop_at)

    def _measure_samples(self, model: Model, stop_at: float) -> Cost | None:
        most = int(MOST_SHARE * len(self._order))
        if most < LEAST:
            return None
        self._try(model, LEAST, stop_at)  # which loads compiled code
        trials: list[Trial] = []
        size = min(FIRST_SAMPLE, most)
        while size <= most:
            trial = self._try(model, size, stop_at)
            if trial is None or not trial.is_whole:
                break
            trials.append(trial)
            if time.monotonic() + 3 * trial.seconds > stop_at:
                break
            size *= 2
        if not trials:
            return None
        last, before = trials[-1], trials[max(0, len(trials) - 3)]
        power = 1.0
        if before.n_documents < last.n_documents:
            grown = np.log(last.seconds / before.seconds)
            power = float(np.clip(grown / np.log(last.n_documents / before.n_documents), *POWERS))
        seconds = last.seconds * (self.facts.n_documents / last.n_documents) ** power
        return Cost(seconds, n_bytes=last.n_bytes, milliseconds=last.milliseconds)

    def _measure_steps(self, model: Neural, stop_at: float) -> Cost | None:
        n = self.facts.n_documents
        epochs = model.choose_epochs(n)
        sized = model.sized_for(n, self.facts.device)
        if sized.batch_size is None:
            return None
        small = sized.with_parameters(epochs=1)
        few, many = (
            max(LEAST, min(steps * sized.batch_size, int(MOST_SHARE * len(self._order))))
            for steps in (1, STEPS)
        )
        trials = [self._try(small, size, stop_at) for size in (few, few, many)]
        found = [trial for trial in trials if trial is not None and trial.each]
        if not found:
            return None
        last = found[-1]
        epoch = last.each * last.passes * n
        if not last.is_whole:  # then steps are so slow that they decide
            return Cost(last.rest, epoch, epochs, last.n_bytes, last.milliseconds)
        before = found[-2] if len(found) > 1 and found[-2].is_whole else last
        grown = max(0.0, last.rest - before.rest) / max(1, last.n_documents - before.n_documents)
        rest = last.rest + grown * (n - last.n_documents)
        return Cost(rest, epoch, epochs, last.n_bytes, last.milliseconds)

    def _try(self, model: Model, n_documents: int, stop_at: float) -> Trial | None:
        """Train a copy on some documents; None if that fails or is out of the question."""
        rows = np.sort(self._order[:n_documents])
        documents = documents_for(model, self.dataset, self.X, rows)
        watch = Stopwatch(stop_at)
        is_whole = True
        try:
            watch.stage("beginning", 1)
            copy = model.with_parameters()
            copy.fit(documents, progress=watch)
        except OutOfTimeError:
            is_whole = False
        except Exception as error:  # what fails on a sample may work on all, or fail there
            reraise_interrupt(error)
            return None
        seconds = time.monotonic() - watch.began
        rest = max(0.0, seconds - watch.each * watch.passed)
        passes = watch.passed / len(rows) if is_whole else 1.0
        trial = Trial(len(rows), seconds, rest, passes, watch.each, is_whole)
        if not is_whole or not self.limits.any:
            return trial
        asked = copy.check_documents(documents)
        takes = time_documents(lambda i: copy.predict_documents(asked[i : i + 1], 1), len(rows))
        return trial._replace(n_bytes=copy.to_files().n_bytes, milliseconds=takes)
