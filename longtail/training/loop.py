"""The one training loop: CPU, one GPU, or several processes (torchrun).

Every random choice is seeded by the run's seed and the number of the step (or epoch), so the
state of all generators is the step itself: a resumed run repeats the very choices of one that was
never stopped, and the thread that prepares batches may run ahead of the step that uses them.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.errors import LongtailError, ParameterError, TrainingError
from longtail.progress import SILENT, TRAINING, Progress
from longtail.training.averaging import WeightMean
from longtail.training.batches import LOSS, Batches, Share
from longtail.training.checkpoint import (
    as_fingerprint,
    keeps_on_host,
    make_run_dir,
    optimizer_state,
    pack_state,
    read_checkpoint,
    remove_checkpoints,
    restore_optimizer,
    write_checkpoint,
)
from longtail.training.checks import Check, Guard, are_finite
from longtail.training.config import TrainingConfig
from longtail.training.draws import drawing_for
from longtail.training.graphs import StepGraphs, place_batch, set_rate
from longtail.training.history import Clock, History, Log, Pacer
from longtail.training.processes import Processes, join_processes
from longtail.training.split import SplitRows
from longtail.training.task import Batch, Task
from longtail.training.threads import follow_threads
from longtail.version import __version__

FIRST_CHECKPOINT = 60.0  # seconds after which there is one, if none is due before
MOST_RECORDS = 200  # lines of the log between its first and last step
LOWER_RATE = "try a smaller learning rate"
VERSIONS = {"longtail": __version__, "torch": torch.__version__, "numpy": np.__version__}


def train(
    task: Task,
    config: TrainingConfig,
    *,
    device: str = "auto",
    seed: int = 0,
    progress: Progress = SILENT,
    run_dir: str | Path | None = None,
    resume: bool = False,
    fingerprint: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 300.0,
    seconds: float | None = None,
) -> History:
    """Train `task.module` and return what happened; the module ends with the weights to keep.

    A loss that is no longer a number ends training with the last good weights; the history's
    `problem` then says at which step. Without any, as at the first step, TrainingError says so.

    Args:
        task: what to train, and on what.
        config: how to train.
        device: "auto", "cpu" or "cuda".
        seed: fixes the order of the documents and all random choices.
        progress: is shown loss, validation, documents/s and time left.
        run_dir: where the log and the checkpoints go; None means there are none.
        resume: go on from the newest whole checkpoint in `run_dir`, if there is one.
        fingerprint: what data and parameters this is, as JSON knows it; resuming a run with
            another one is refused, naming what differs.
        checkpoint_seconds: time between two checkpoints; the first comes after a minute at most.
        seconds: how long the steps may take; there are fewer where all would take longer, and the
            learning rate falls the sooner. Only for one process.
    """
    follow_threads()
    processes = join_processes(device)
    facts = as_fingerprint(_facts(task, config, processes, seed, fingerprint or {}))
    processes.require_same({**facts, **VERSIONS})
    _check_documents(task, processes)
    run_path = None if run_dir is None else make_run_dir(run_dir)
    run = _Run(task, config, processes, seed, progress if processes.is_main else SILENT, run_path)
    run.fingerprint = facts
    gpu = [processes.device] if processes.device.type == "cuda" else []
    # Said explicitly, or some versions of torch warn that nothing checks sparse gradients.
    unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=gpu), unchecked:
        if resume and run.restore():
            run.progress.say(f"Going on from step {run.step:,} of {run.n_steps:,}")
        elif not resume and run_path is not None and processes.is_main:
            remove_checkpoints(run_path)
        processes.wait()  # nobody writes a checkpoint before all have read theirs
        run.go(checkpoint_seconds, None if seconds is None else time.monotonic() + seconds)
        run.finish()
    return run.history


def _facts(
    task: Task, config: TrainingConfig, processes: Processes, seed: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that decides what a run computes; the number of processes does not."""
    own = {"training documents": task.n_documents, "seed": seed, "device": processes.device.type}
    facts = {**asdict(config), **given, **own}
    return {name: facts[name] for name in facts if name not in ("run_dir", "resume")}


def _check_documents(task: Task, processes: Processes) -> None:
    """Raise ParameterError if some process would never have a document."""
    if task.n_documents < processes.count:
        raise ParameterError(
            f"{processes.count} processes are too many for {task.n_documents} documents; start at "
            f"most {task.n_documents}"
        )


class _Run:
    """A training run: what changes from step to step, and what a checkpoint holds."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        processes: Processes,
        seed: int,
        progress: Progress,
        run_dir: Path | None,
    ) -> None:
        self.task, self.config, self.processes = task, config, processes
        self.seed, self.progress, self.run_dir = seed, progress, run_dir
        self.module = task.module.to(processes.device)
        self.split = SplitRows(self.module, getattr(task, "split", ()), processes)
        processes.share_weights(self.module, but=self.split.names)
        self.parameters = list(self.module.parameters())
        self.common = [each for each in self.parameters if each not in self.split]
        self.optimizers = task.optimizers(config.learning_rate)
        self.groups = [group for each in self.optimizers for group in each.param_groups]
        self.top_rates = [group["lr"] for group in self.groups]
        self.batches = Batches(task, config.batch_size, processes, seed)
        self.epoch_steps = self.batches.per_epoch
        self.n_steps = config.epochs * self.epoch_steps
        self.fingerprint: dict[str, Any] = {}
        self.history = History()
        self.step = 0  # steps made
        self.last: Share | None = None  # what the last step was made of
        guards = Guard.suits(self.optimizers, processes.device)
        self.guard = Guard(self.optimizers, processes.device) if guards else None
        self.graphs = StepGraphs.of(task, self.optimizers, processes) if guards else None
        self.unread: Check | None = None  # of the last step, if it is not known yet
        self.unimproved = 0  # validations since the best one
        self.mean = WeightMean(self.parameters)
        self.best: dict[str, Tensor] = {}
        self.clock = Clock()
        self.warned = False  # that the last checkpoint could not be written
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None  # the checkpoint that is not yet on the disk

    # -- the loop ---------------------------------------------------------------------------

    def go(self, checkpoint_seconds: float, stop_at: float | None = None) -> None:
        """Train from where the run stands to its end, which comes before `stop_at`."""
        config = self.config
        steps = range(self.step, 0 if self.history.stopped_early else self.n_steps)
        log = Log(self.run_dir if self.processes.is_main else None, self.progress)
        epochs, place = divmod(self.step, self.epoch_steps)
        n_done = epochs * self.task.n_documents + place * config.batch_size
        self.progress.stage(TRAINING, self.task.n_documents * config.epochs - n_done)
        self.clock.begin(self.history)
        due = time.monotonic() + min(checkpoint_seconds, FIRST_CHECKPOINT)
        pacer = None if stop_at is None else Pacer(stop_at, self.n_steps)
        with closing(log), closing(self.batches.prepare(steps)) as shares:
            self.module.train()
            for share in self.clock.wait_for(shares):
                self._take_step(share)
                if self.history.problem is not None:
                    break
                if pacer is not None:
                    self.n_steps = pacer.plan(self.step)
                if config.averages_at(self.step, self.n_steps):
                    self.mean.add()
                validates = config.validates_at(self.step, self.n_steps, self.epoch_steps)
                records = validates or self.step % -(-self.n_steps // MOST_RECORDS) == 0
                saves = self.step < self.n_steps and self._agree(time.monotonic() >= due, records)
                if (records or saves) and not self._catch_up():
                    break
                if validates:
                    self._validate()
                elif records:
                    self._record({})
                if records:
                    log.write(self.history)
                if self.history.stopped_early or self.step >= self.n_steps:
                    break
                if saves:
                    self.save()
                    due = time.monotonic() + checkpoint_seconds
        if steps and self._catch_up():
            self.save(last=True)
        self._finish_writing()

    def _agree(self, is_time: bool, records: bool) -> bool:
        """Whether to write a checkpoint; where rows are split, all help, when the main one says."""
        if not self.split.names:
            return is_time
        return records and self.processes.share(is_time)

    def _take_step(self, share: Share) -> None:
        for group, top_rate in zip(self.groups, self.top_rates, strict=True):
            set_rate(group, top_rate * self.config.rate(self.step, self.n_steps))
        self._draw_anew()
        compute = partial(self._compute, share=share)
        if self.graphs is None:
            found = compute(place_batch(share.batch, self.processes.device))
        else:
            found = self.graphs.take(share.batch, compute)
        check = Check.of(self.step + 1, share, found)
        if self.guard is None:
            if not self._pass(check):
                return
            self._move()
        self.step += 1
        if self.guard is not None and self._catch_up():
            self.unread = check

    def _compute(self, batch: Batch, share: Share) -> Tensor:
        """Return the loss and the norm of its gradient, (2,); move the weights if guarded."""
        loss = self._loss(batch, share)
        loss.backward()  # type: ignore[no-untyped-call]
        self.processes.sum_gradients(self.common)
        norm = limit_gradients(self.parameters, self.config.clip, self.split)
        mean_loss = self.processes.sum(loss.detach().float())
        if self.guard is not None:
            self.guard.close_unless_finite(mean_loss, norm)
            self._move()
        return torch.stack([mean_loss, norm])

    def _move(self) -> None:
        """Let the optimizers take their step."""
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def _catch_up(self) -> bool:
        """Ask how the last step went; return whether all have gone well."""
        check, self.unread = self.unread, None
        return self.history.problem is None and (check is None or self._pass(check))

    def _pass(self, check: Check) -> bool:
        """Count a step that went well; give up after one that did not."""
        loss, norm = check.read()
        if not are_finite(loss, norm):
            self._give_up(check.step, loss, norm)
            return False
        self.last = check.share
        self.clock.count(loss, check.share.n_documents)
        self.progress.advance(check.share.n_documents)
        self.clock.note(self.progress, self.history)
        return True

    def _loss(self, batch: Batch, share: Share) -> Tensor:
        """Return the loss of this process's share of a step, whose tensors are on the device."""
        device = self.processes.device
        precision = torch.autocast(device.type, torch.bfloat16, enabled=self._uses_bf16())
        with precision, drawing_for(share.part):
            return self.task.loss(batch) * share.weight

    def _draw_anew(self) -> None:
        """Seed the generators that the loss of this step draws from."""
        streams = np.random.SeedSequence([LOSS, self.seed, self.step, 0])
        self._draw_from(int(streams.generate_state(1, np.uint64)[0]))

    def _draw_from(self, seed: int) -> None:
        """Seed the generators that a loss draws from; `torch.manual_seed` takes longer for more."""
        torch.default_generator.manual_seed(seed)
        if self.processes.device.type == "cuda":
            torch.cuda.default_generators[self.processes.device.index].manual_seed(seed)

    def _uses_bf16(self) -> bool:
        on_gpu = self.processes.device.type == "cuda"
        return self.config.precision == "bf16" or (self.config.precision == "auto" and on_gpu)

    # -- a loss that is no number -----------------------------------------------------------

    def _give_up(self, step: int, loss: float, length: float) -> None:
        """End training before a step that would spoil the weights, with the last good ones."""
        self.step = step - 1
        if self.guard is not None:
            self.guard.open()
        what, value = ("gradient", length) if math.isfinite(loss) else ("loss", loss)
        where = f"step {step:,} of {self.n_steps:,}"
        problem = (
            f"the {what} became {value} at {where} (epoch {self.step // self.epoch_steps + 1})"
        )
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self.best:
            kept = f"the best weights, those of step {self.history.best_step:,}, are kept"
        elif self._is_sound():
            kept = "the weights from before that step are kept"
        elif self._return_to_checkpoint():
            kept = f"the weights of step {self.step:,} are kept"
        else:
            raise TrainingError(f"{problem}, and no earlier weights are of use; {LOWER_RATE}")
        self.history.problem = f"{problem}; {kept}; {LOWER_RATE}"

    @torch.no_grad()
    def _is_sound(self) -> bool:
        """Return whether the present weights give a loss on the documents of the last step."""
        if self.last is None:
            return False
        self._draw_anew()
        batch = place_batch(self.last.batch, self.processes.device)
        loss = self._loss(batch, self.last).float()
        return math.isfinite(self.processes.sum(loss).item())

    def _return_to_checkpoint(self) -> bool:
        """Take up the newest checkpoint whose weights are sound; return whether there is one."""
        while self.run_dir is not None and self.restore():
            if self._is_sound():
                return True
            self.processes.wait()  # nobody removes what another still reads
            if self.processes.is_main:
                remove_checkpoints(self.run_dir, 1)
            self.processes.wait()
        return False

    # -- validation -------------------------------------------------------------------------

    def _validate(self) -> None:
        """Validate in the main process; every process learns the result and keeps the best.

        Where rows are split, all of them help.
        """
        self.module.eval()
        helps = self.processes.is_main or bool(self.split.names)
        with torch.no_grad(), self.mean.in_place():
            scores = self.processes.share(self.task.validate() if helps else None)
            if scores is not None:
                self._compare(scores)
        self.module.train()
        self._record(scores or {})

    def _compare(self, scores: dict[str, float]) -> None:
        """Keep the weights if they are the best so far; stop if none were for too long."""
        if self.config.metric not in scores:
            raise ParameterError(
                f"The 'metric' parameter of training must be one of {', '.join(scores)}. "
                f"Got {self.config.metric!r} instead."
            )
        best = self.history.best
        if best is None or scores[self.config.metric] > best[self.config.metric]:
            self.history.best, self.history.best_step = scores, self.step
            self.unimproved = 0
            self._finish_writing()  # a checkpoint holds the last best as it lies
            for name, tensor in self.module.state_dict().items():
                if name in self.best:
                    self.best[name].copy_(tensor)  # into the memory of the last best
                else:
                    self.best[name] = tensor.to("cpu", copy=True)
        else:
            self.unimproved += 1
            self.history.stopped_early = self.unimproved == self.config.patience

    def _record(self, scores: dict[str, float]) -> None:
        epoch = self.step / self.epoch_steps
        rate = self.config.learning_rate * self.config.rate(self.step - 1, self.n_steps)
        facts = {"step": self.step, "epoch": round(epoch, 3), "learning_rate": rate}
        self.history.records.append({**facts, **self.clock.measure(self.history), **scores})

    def finish(self) -> None:
        """Leave the weights to keep in the module: the best, else the mean, else the last."""
        if self.best:
            self.module.load_state_dict(self.best)
        else:
            self.mean.swap()
        self.clock.measure(self.history)
        self.history.n_steps = self.step
        self.module.eval()
        if self.graphs is not None:
            self.graphs.forget()

    # -- checkpoints ------------------------------------------------------------------------

    def save(self, *, last: bool = False) -> None:
        """Write a checkpoint of the run as it stands, if it has a folder for it.

        If that fails, as on a full disk, training goes on and the checkpoints before stay. What
        lies on a GPU is written while training goes on; the last one is written at once, and holds
        nothing but the weights to keep.
        """
        if self.run_dir is None or not (self.processes.is_main or self.split.names):
            return
        self._finish_writing()
        self.clock.measure(self.history)
        state = self.split.join(self._last_state() if last else self._state(), self.optimizers)
        if not self.processes.is_main:
            return
        files = pack_state(state, self.fingerprint)
        job = partial(write_checkpoint, self.run_dir, self.step, files)
        changes_meanwhile = any(map(keeps_on_host, self.optimizers))
        if self.processes.device.type == "cuda" and not (last or changes_meanwhile):
            self.writing = self.writer.submit(job)
        else:
            self._attempt(job)

    def _finish_writing(self) -> None:
        """Wait for the checkpoint that is being written, if there is one."""
        if self.writing is not None:
            self._attempt(self.writing.result)
        self.writing = None

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (LongtailError, OSError) as error:
            if not self.warned:
                self.progress.say(f"Warning: training goes on without a checkpoint: {error}")
            self.warned = True
        else:
            self.warned = False

    def _state(self) -> dict[str, Any]:
        """Return all that the steps to come depend on."""
        return {
            "step": self.step,
            "unimproved": self.unimproved,
            "n_averaged": self.mean.n_added,
            "history": asdict(self.history),
            "weights": self.module.state_dict(),
            "average": self.mean.values,
            "best": self.best,
            "optimizers": [optimizer_state(optimizer) for optimizer in self.optimizers],
        }

    def _last_state(self) -> dict[str, Any]:
        """Return the weights to keep in place of all that led to them."""
        with self.mean.in_place():
            weights = self.best or dict(self.module.state_dict())
        nothing = {"n_averaged": 0, "average": [], "best": {}, "optimizers": []}
        return {**self._state(), "weights": weights, **nothing}

    def restore(self) -> bool:
        """Take up the newest whole checkpoint; return whether there is one."""
        if self.run_dir is None:
            raise ParameterError("there is nothing to resume: training had no folder to save to")
        self._finish_writing()
        state = read_checkpoint(self.run_dir, self.fingerprint, self.progress)
        if state is None:
            return False
        state = self.split.cut(state, self.optimizers)
        self.step, self.unimproved = state["step"], state["unimproved"]
        self.best = {name: tensor.clone() for name, tensor in state["best"].items()}
        self.history = History(**state["history"])
        self.module.load_state_dict(state["weights"])
        self.mean.restore(state["n_averaged"], state["average"])
        for optimizer, memory in zip(self.optimizers, state["optimizers"], strict=False):
            restore_optimizer(optimizer, memory)  # none where nothing is left to do
        return True


def limit_gradients(
    parameters: Iterable[torch.nn.Parameter], limit: float | None, split: SplitRows | None = None
) -> Tensor:
    """Scale all gradients, dense or sparse, so that their norm is at most `limit`; return it.

    Of parameters that are `split`, all processes' rows count.
    """
    gradients, are_split = [], []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            gradients.append(parameter.grad.values())
        elif parameter.grad is not None:
            gradients.append(parameter.grad)
        if parameter.grad is not None:
            are_split.append(split is not None and parameter in split)
    norms = torch.stack(torch._foreach_norm(gradients))
    if split is not None and split.names:
        norms = split.sum_norms(norms, are_split)
    norm: Tensor = torch.linalg.vector_norm(norms).float()
    if limit is not None:
        scale = (limit / (norm + 1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, scale)
    return norm
