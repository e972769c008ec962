"""How long members take here and now: measured, by training them on a few of the documents.

A member that torch trains makes a few of its real steps, of the size and with the network that all
documents will have, and all that comes before and after them. Any other member is trained on larger
and larger samples. Two numbers of documents tell by which power of them the time grows; the farther
it is from the largest sample to all documents, the more a formula (`Model.estimate_cost`) counts.

On a CPU that others may use as well, the time of a moment says little. What torch does not train is
measured in seconds of the processor, and all of it together tells how long such a second takes at
present. Torch's threads wait for each other, so that only the clock tells what its steps take.

Measuring takes a small share of the budget (SHARE), beside what loads code, which training needs as
well; on a busy machine it ends after a larger share by the clock (CLOCK). A member that is out of
reach, or for which no time is left, is estimated by the formula alone.
"""

import time
from statistics import median, median_low
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset
from longtail.errors import reraise_interrupt
from longtail.models.base import Model
from longtail.models.cost import Cost, Facts
from longtail.models.fusion.limits import NO_LIMITS, Limits
from longtail.models.fusion.member import lane_of
from longtail.models.fusion.training import documents_for
from longtail.models.fusion.weight import time_documents
from longtail.models.neural import Neural
from longtail.models.registry import get_model_class
from longtail.progress import TRAINING, OutOfTimeError, Silent
from longtail.runtime.mapped import in_memory

SHARE = 0.03  # of the budget, for all members together
LOADING = 0.08  # of the budget, after which no more code is loaded in order to measure
CLOCK = 0.1  # of the budget, by the clock, to measure: the processor may be busy elsewhere
LOADING_CLOCK = 0.2  # of the budget, by the clock, to load the code of one model
HOPE = 0.4  # of what its formula says, a member may take in the end
STEPS = 4  # of a member that torch trains
POWERS = (0.7, 1.2)  # of the number of documents, by which time may grow
REST_POWERS = (0.0, 0.9)  # the same for what is done beside steps
LEAST = 64  # documents to learn anything from
MOST_SHARE = 0.5  # of the documents, in a sample
FAR = 100  # times the documents of the largest sample; from there on the formula alone counts
LARGER = 2.5  # times as long, and longer, may a sample of twice as many documents take
SLOWEST = 20.0  # seconds that a second of the processor may take


class Stopwatch(Silent):
    """A Progress that tells the training loop's steps from the rest, and stops when time is over.

    Attributes:
        passed: documents that passed through steps.
    """

    def __init__(self, limit: float, by_processor: bool, end: float = np.inf) -> None:
        self.limit = limit  # seconds, by the same clock
        self.end = end  # by time.monotonic()
        self._clock = time.process_time if by_processor else time.monotonic
        self._began = self._clock()
        self.passed = 0.0
        self._first = 0.0  # seconds in the first steps of loops
        self._later: list[float] = []  # seconds for a document in each of the later ones
        self._is_loop, self._is_first, self._last = False, False, 0.0

    @property
    def seconds(self) -> float:
        """What was spent so far."""
        return self._clock() - self._began

    @property
    def each(self) -> float:
        """Seconds for a document in a usual step; first ones count only if there are no others."""
        if self._later:
            return median(self._later)
        return self._first / self.passed if self.passed else 0.0

    def stage(self, name: str, total: float) -> None:
        """Begin another stage."""
        self._check()
        self._is_loop, self._is_first, self._last = name == TRAINING, True, self._clock()

    def advance(self, amount: float) -> None:
        """Count a step, if it is one."""
        if self._is_loop:
            now = self._clock()
            took, self._last = now - self._last, now
            self.passed += amount
            if self._is_first:
                self._first += took
            elif amount > 0:
                self._later.append(took / amount)
            self._is_first = False
        self._check()

    def _check(self) -> None:
        if self.seconds > self.limit or time.monotonic() > self.end:
            raise OutOfTimeError("the time for measuring is over")


class Trial(NamedTuple):
    """What a training on a sample took.

    Attributes:
        n_documents: of the sample.
        seconds: in all.
        passes: how often each document passed through the training loop's steps.
        each: seconds for a document in a step; 0 if none was made.
        is_whole: whether it came to its end.
        n_bytes: of the model that it made, where there are limits.
        milliseconds: that one document takes there.
    """

    n_documents: int
    seconds: float
    passes: float
    each: float
    is_whole: bool
    n_bytes: int = 0
    milliseconds: float = 0.0

    @property
    def rest(self) -> float:
        """Seconds that were spent on other things than steps."""
        return max(0.0, self.seconds - self.each * self.passes * self.n_documents)


class Prober:
    """Measures members on the documents that they will be trained on."""

    def __init__(
        self,
        dataset: Dataset,
        X: sp.csr_matrix,
        facts: Facts,
        *,
        budget: float | None,
        began: float,
        device: str,
        seed: int,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.dataset, self.X, self.facts, self.limits = dataset, X, facts, limits
        self.budget, self.began, self.device, self.seed = budget, began, device, seed
        self.seconds = self.loading = 0.0  # spent on measuring, and on loading code
        self._by_clock = 0.0  # spent on measuring, if the processor is busy elsewhere as well
        labelled = np.flatnonzero(np.diff(dataset.Y.indptr))
        self._order = np.random.default_rng(seed).permutation(labelled)
        self._costs: dict[tuple[str, str | None], Cost] = {}
        self._loaded: set[str] = set()  # models whose code has been loaded
        self._slow: list[float] = []  # times as long by the clock as of the processor, by trial

    def __call__(self, name: str, preset: str | None) -> Cost:
        """Return how long a training of the model takes on all documents."""
        if (name, preset) not in self._costs:
            self._costs[name, preset] = self._find(name, preset)
        return self._costs[name, preset]

    def _find(self, name: str, preset: str | None) -> Cost:
        model = self._make(name, preset)
        guess = self._guess(model, preset)
        if not self._has_time(name, guess):
            return guess
        return self._measure(model, preset) or self._guess(model, preset)

    def _guess(self, model: Model, preset: str | None) -> Cost:
        """Return what the formula says, as slow as the processor is at present."""
        on_gpu = lane_of(model.name, self.facts.device) == "cuda"
        slowness = 1.0 if on_gpu else max(1.0, self._slowness)
        seconds = slowness * type(model).estimate_cost(self.facts, preset)
        return Cost.guess(seconds, model.choose_epochs(self.facts.n_documents))

    def _has_time(self, name: str, guess: Cost) -> bool:
        """Whether there is time to measure a member, and hope to train it."""
        if self.budget is None or self.seconds >= SHARE * self.budget:
            return False
        if self._by_clock >= CLOCK * self.budget:
            return False
        if name not in self._loaded and self.loading >= LOADING * self.budget:
            return False
        return HOPE * guess.seconds() <= self.began + self.budget - time.monotonic()

    @property
    def _slowness(self) -> float:
        """How long a second of the processor takes by the clock.

        The usual one of all trials: some may wait for another process that compiles the same code.
        """
        return min(SLOWEST, median_low(self._slow)) if self._slow else 1.0

    def _make(self, name: str, preset: str | None) -> Model:
        settings = {"seed": self.seed, **({} if preset is None else {"preset": preset})}
        if get_model_class(name).has_parameter("device"):
            settings["device"] = self.device
        return get_model_class(name).from_settings(settings)

    def _measure(self, model: Model, preset: str | None) -> Cost | None:
        """Return what trials say; None if they say nothing."""
        budget, most = self.budget or 0.0, int(MOST_SHARE * len(self._order))
        epochs = model.choose_epochs(self.facts.n_documents)
        if most < LEAST:
            return None
        if isinstance(model, Neural):
            n = self.facts.n_documents
            model = model.sized_for(n, self.facts.device).with_parameters(epochs=1)
        if model.name not in self._loaded:
            began = time.monotonic()
            first = self._try(model, LEAST, LOADING * budget)
            self._loaded.add(model.name)
            self.loading += time.monotonic() - began
            if first is not None and not first.is_whole:
                return None  # what is still to be loaded would count as training
        limit = SHARE * budget - self.seconds
        if isinstance(model, Neural):
            return self._measure_steps(model, epochs, most, limit / 2)
        return self._measure_samples(model, preset, most, limit / 8)

    def _measure_samples(
        self, model: Model, preset: str | None, most: int, limit: float
    ) -> Cost | None:
        """Train on samples, each twice as large as the one before, while there is time."""
        trials: list[Trial] = []
        size = min(model.least_sample, most)
        while size <= most:
            trial = self._try(model, size, limit)
            if not trials and trial is not None and LARGER * trial.seconds > limit:
                # It may have loaded code that few documents do not need.
                self.seconds -= trial.seconds
                self.loading += trial.seconds
                trial = self._try(model, size, limit)
            if trial is None or not trial.is_whole:
                break
            trials.append(trial)
            limit -= trial.seconds
            if LARGER * trial.seconds > limit:
                break
            size *= 2
        if not trials:
            return None
        first, last = trials[max(0, len(trials) - 3)], trials[-1]
        power = 1.0
        if first.n_documents < last.n_documents:
            power = _find_power(
                (first.n_documents, first.seconds), (last.n_documents, last.seconds), POWERS
            )
        times = self.facts.n_documents / last.n_documents
        seconds = self._slowness * last.seconds * times**power
        if type(model).has_estimate():
            far = min(1.0, float(np.log(times) / np.log(FAR)))
            seconds = seconds ** (1 - far) * self._guess(model, preset).rest ** far
        return Cost(seconds, n_bytes=last.n_bytes, milliseconds=last.milliseconds)

    def _measure_steps(self, model: Neural, epochs: int, most: int, limit: float) -> Cost | None:
        """Make a few steps, then one, with all that comes before and after them."""
        n, batch_size = self.facts.n_documents, model.batch_size or 1
        many, few = (int(np.clip(steps * batch_size, LEAST, most)) for steps in (STEPS, 1))
        last = self._try(model, many, limit)
        if last is None or not last.each:
            return None
        first = None
        if last.is_whole and few < many:
            first = self._try(model, few, limit - last.seconds)
        power = 0.0
        if first is not None and first.is_whole:
            power = _find_power((few, first.rest), (many, last.rest), REST_POWERS)
        inner = model.inner_passes(self.facts)  # that the trial made
        all_inner = model.with_parameters(epochs=epochs).inner_passes(self.facts)
        return Cost(
            last.rest * (n / many) ** power + last.each * all_inner * n,
            last.each * max(1.0, last.passes - inner) * n,
            epochs,
            last.n_bytes,
            last.milliseconds,
        )

    def _try(self, model: Model, n_documents: int, limit: float) -> Trial | None:
        """Train a copy on some documents; None if that fails, or if there is no time at all."""
        if limit <= 0:
            return None
        rows = np.sort(self._order[:n_documents])
        documents = documents_for(model, self.dataset, self.X, rows)
        by_processor = not model.needs_torch
        began = time.monotonic()
        is_loaded = model.name in self._loaded
        budget = self.budget or 0.0
        end = CLOCK * budget - self._by_clock if is_loaded else LOADING_CLOCK * budget
        watch, copy, is_whole = (
            Stopwatch(limit, by_processor, began + end),
            model.with_parameters(),
            True,
        )
        try:
            copy.fit(documents, progress=watch)
            if not is_loaded:  # the code that labels and scores is needed as well
                asked = in_memory(copy.check_documents(documents))
                found = copy.predict_documents(asked, 1).labels
                copy.score_documents(asked, np.maximum(found, 0))
        except OutOfTimeError:
            is_whole = False
        except Exception as error:  # what fails on a sample may work on all, or fail there
            reraise_interrupt(error)
            return None
        finally:
            self._by_clock += time.monotonic() - began if is_loaded else 0.0
        took = watch.seconds
        if is_loaded:  # what loads code may wait for another process to compile it
            self.seconds += took
            if by_processor and took > 0:
                self._slow.append((time.monotonic() - began) / took)
        passes = watch.passed / len(rows) if is_whole else 1.0
        trial = Trial(len(rows), took, passes, watch.each, is_whole)
        if not is_whole or not self.limits.any:
            return trial
        asked = in_memory(copy.check_documents(documents))
        takes = time_documents(lambda i: copy.predict_documents(asked[i : i + 1], 1), len(rows))
        return trial._replace(n_bytes=copy.to_files().n_bytes, milliseconds=takes)


def _find_power(
    first: tuple[int, float], last: tuple[int, float], limits: tuple[float, float]
) -> float:
    """Return by which power of the documents the seconds have grown, within limits."""
    grown = np.log(max(last[1], 1e-6) / max(first[1], 1e-6)) / np.log(last[0] / first[0])
    return float(np.clip(grown, *limits))
