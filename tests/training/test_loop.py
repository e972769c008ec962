"""The training loop: what it learns, that it repeats itself, stops, resumes and shares its work."""

import csv
import errno
import os
import subprocess
import sys
import threading
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")

from planted_task import CONFIG, PlantedTask, weights  # noqa: E402

from longtail.errors import ParameterError, TrainingError  # noqa: E402
from longtail.runtime.store import read_folder  # noqa: E402
from longtail.training import loop  # noqa: E402
from longtail.training.checkpoint import find_checkpoints, pack_state  # noqa: E402
from longtail.training.config import TrainingConfig  # noqa: E402
from longtail.training.history import Pacer  # noqa: E402
from longtail.training.loop import limit_gradients, train  # noqa: E402
from longtail.training.processes import Processes, choose_device  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "planted_task.py"


def train_on_cpu(task, config=CONFIG, **options):
    return train(task, config, device="cpu", **options)


def assert_same(first, second):
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


class Recorder:
    def __init__(self):
        self.stages, self.done, self.notes, self.said = [], 0, [], []

    def stage(self, name, total):
        self.stages.append((name, total))

    def advance(self, amount):
        self.done += amount

    def note(self, text):
        self.notes.append(text)

    def say(self, text):
        self.said.append(text)


def test_it_learns_what_is_planted():
    task = PlantedTask(n=400)
    history = train_on_cpu(task, replace(CONFIG, epochs=20, learning_rate=0.05))
    assert history.best["P@1"] > 90
    assert history.n_steps == 20 * 10
    assert not task.module.training


def test_same_seed_same_weights_another_seed_others():
    runs = [PlantedTask() for _ in range(3)]
    for task, seed in zip(runs, (1, 1, 2), strict=True):
        torch.manual_seed(np.random.default_rng().integers(1000))  # the caller's must not matter
        train_on_cpu(task, seed=seed)
    assert_same(weights(runs[0]), weights(runs[1]))
    assert not np.array_equal(*[weights(task)["output.weight"] for task in runs[1:]])


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    task = PlantedTask()
    torch.manual_seed(5)
    train_on_cpu(task)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_every_document_comes_once_an_epoch():
    task, seen = PlantedTask(n=101), []
    build = task.batch
    task.batch = lambda rows, rng, mine: seen.extend(rows) or build(rows, rng, mine)
    train_on_cpu(task, replace(CONFIG, epochs=2))
    assert sorted(seen[:101]) == sorted(seen[101:]) == list(range(101))
    assert seen[:101] != seen[101:]


# ------------------------------------------------------------------------ schedules and gradients


def test_schedules_by_hand():
    constant = TrainingConfig(warmup=0.0)
    assert [constant.rate(step, 4) for step in range(4)] == [1, 1, 1, 1]
    linear = TrainingConfig(schedule="linear", warmup=0.5)
    np.testing.assert_allclose(
        [linear.rate(step, 8) for step in range(8)], [0.2, 0.4, 0.6, 0.8, 1, 0.75, 0.5, 0.25]
    )
    cosine = TrainingConfig(schedule="cosine")
    np.testing.assert_allclose(
        [cosine.rate(step, 4) for step in range(4)], [1, 0.853553, 0.5, 0.146447], rtol=1e-5
    )


def test_the_learning_rate_reaches_every_group():
    task, rates = PlantedTask(), []
    optimizers = task.optimizers(0.02)
    optimizers[1].param_groups[0]["lr"] = 0.01  # a model may give a group a rate of its own
    task.optimizers = lambda rate: optimizers
    task.on_loss = lambda step, loss: (
        rates.append([each.param_groups[0]["lr"] for each in optimizers]) or loss
    )
    train_on_cpu(task, replace(CONFIG, epochs=1, warmup=0.0, schedule="linear"))
    np.testing.assert_allclose(rates, [[0.02 * (1 - i / 6), 0.01 * (1 - i / 6)] for i in range(6)])


def test_gradients_dense_and_sparse_are_limited_together():
    dense, sparse = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(4, 1))
    dense.grad = torch.tensor([3.0, 0.0])
    # row 1 stands twice: its gradient is 1.5 + 2.5
    sparse.grad = torch.sparse_coo_tensor([[1, 1]], [[1.5], [2.5]], (4, 1), check_invariants=True)
    untouched = torch.nn.Parameter(torch.zeros(3))
    assert float(limit_gradients([dense, sparse, untouched], 1.0)) == 5
    np.testing.assert_allclose(dense.grad, [0.6, 0], rtol=1e-5)
    np.testing.assert_allclose(sparse.grad.to_dense(), [[0], [0.8], [0], [0]], rtol=1e-5)
    assert float(limit_gradients([dense], 10.0)) == pytest.approx(0.6)
    np.testing.assert_allclose(dense.grad, [0.6, 0], rtol=1e-5)


# --------------------------------------------------------------------------- validation, averaging


def scripted(values):
    """Return a task whose validations give these values, and the weights it had at each."""
    task, seen, left = PlantedTask(), [], iter(values)

    def validate():
        assert not task.module.training
        seen.append({name: array.copy() for name, array in weights(task).items()})
        value = next(left)
        return {"P@1": value, "nDCG@5": -value}

    task.validate = validate
    return task, seen


def test_the_best_weights_come_back():
    task, seen = scripted([10, 30, 20])
    history = train_on_cpu(task, replace(CONFIG, metric="P@1", validate_every=None))
    assert (history.best, history.best_step) == ({"P@1": 30, "nDCG@5": -30}, 12)
    assert_same(weights(task), seen[1])


def test_the_metric_decides_what_is_best():
    task, seen = scripted([10, 30, 20])
    history = train_on_cpu(task, replace(CONFIG, metric="nDCG@5", validate_every=None))
    assert history.best_step == 6
    assert_same(weights(task), seen[0])


def test_patience_ends_training():
    task, seen = scripted([10, 30, 20, 30, 40])
    config = replace(CONFIG, metric="P@1", patience=2, validate_every=1)
    history = train_on_cpu(task, config)
    assert history.stopped_early
    assert history.n_steps == 4
    assert_same(weights(task), seen[1])


def test_without_validation_the_last_weights_stay():
    task, last = PlantedTask(), {}
    task.validate = lambda: last.update(
        {name: array.copy() for name, array in weights(task).items()}
    )
    history = train_on_cpu(task, replace(CONFIG, averaging=None, patience=1))
    assert history.best is None
    assert history.n_steps == 18
    assert_same(weights(task), last)


def test_the_mean_of_the_late_weights():
    plain, averaged, passed = PlantedTask(), PlantedTask(), []
    plain.validate = lambda: passed.append(weights(plain)["output.weight"].copy())
    averaged.validate = lambda: None
    config = replace(CONFIG, averaging=None, validate_every=1)
    train_on_cpu(plain, config)
    train_on_cpu(averaged, replace(CONFIG, averaging="mean", averaging_start=0.5))
    # 18 steps: the mean begins at step 9 and takes every second one
    expected = np.mean([passed[step - 1] for step in (10, 12, 14, 16, 18)], axis=0)
    np.testing.assert_allclose(weights(averaged)["output.weight"], expected, rtol=1e-5, atol=1e-7)


def test_bf16_on_a_cpu_trains_too():
    task = PlantedTask()
    dtypes = set()
    task.on_loss = lambda step, loss: (
        dtypes.add(task.module.output(torch.ones(1, 16)).dtype) or loss
    )
    history = train_on_cpu(task, replace(CONFIG, precision="bf16"))
    assert dtypes == {torch.bfloat16}
    assert weights(task)["output.weight"].dtype == np.float32
    assert history.best["P@1"] > 0


# ------------------------------------------------------------------------------- display and log


def test_progress_and_notes(monkeypatch):
    monkeypatch.setattr("longtail.training.history.NOTE_SECONDS", 0)
    progress = Recorder()
    train_on_cpu(PlantedTask(), progress=progress)
    assert progress.stages == [("training", 3 * 201)]
    assert progress.done == 3 * 201
    assert len(progress.notes) == 18
    first, last = progress.notes[0], progress.notes[-1]
    assert first.startswith("loss 0.")
    assert first.endswith(" documents/s")
    assert "P@1" not in first
    assert [part.split()[0] for part in last.split(", ")[:3]] == ["loss", "P@1", "nDCG@5"]


def test_the_log_is_a_table(tmp_path):
    history = train_on_cpu(PlantedTask(), run_dir=tmp_path / "run")
    with (tmp_path / "run" / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 19))
    assert float(rows[5]["epoch"]) == 1
    assert rows[0]["nDCG@5"] == ""
    assert float(rows[3]["nDCG@5"]) == history.records[3]["nDCG@5"]
    assert float(rows[0]["learning_rate"]) == pytest.approx(0.02 / 2.8)
    assert all(float(row["documents_per_second"]) > 0 for row in rows)
    assert 0 <= history.waiting <= history.seconds


# --------------------------------------------------------------------------------------- resuming


def interrupted(run_dir, at_step, **options):
    """Train until an exception in the loss of a step, leaving checkpoints behind."""
    task = PlantedTask()

    def stop(step, loss):
        if step == at_step:
            raise KeyboardInterrupt
        return loss

    task.on_loss = stop
    with pytest.raises(KeyboardInterrupt):
        train_on_cpu(task, run_dir=run_dir, checkpoint_seconds=0, **options)


def test_resuming_changes_nothing(tmp_path):
    whole, resumed = PlantedTask(), PlantedTask()
    history = train_on_cpu(whole)
    interrupted(tmp_path, at_step=11)
    interrupted(tmp_path, at_step=4, resume=True)  # again, three steps later
    again = train_on_cpu(resumed, run_dir=tmp_path, resume=True)
    assert resumed.steps == 18 - 10 - 3
    assert_same(weights(whole), weights(resumed))
    assert (again.best, again.best_step) == (history.best, history.best_step)
    assert [record["step"] for record in again.records] == list(range(1, 19))
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert len(lines) == 1 + 18


def test_resuming_changes_nothing_where_batches_go_by_length(tmp_path, monkeypatch):
    lengths = np.random.default_rng(3).integers(1, 50, 201)
    monkeypatch.setattr(PlantedTask, "lengths", lengths, raising=False)
    whole, resumed = PlantedTask(), PlantedTask()
    train_on_cpu(whole)
    interrupted(tmp_path, at_step=11)
    train_on_cpu(resumed, run_dir=tmp_path, resume=True)
    assert resumed.steps == 18 - 10
    assert_same(weights(whole), weights(resumed))
    monkeypatch.delattr(PlantedTask, "lengths")
    other = PlantedTask()
    train_on_cpu(other)
    assert not np.array_equal(weights(whole)["output.weight"], weights(other)["output.weight"])


def test_resuming_a_finished_run_returns_its_weights(tmp_path):
    first, again = PlantedTask(), PlantedTask(seed=0)
    history = train_on_cpu(first, run_dir=tmp_path)
    assert train_on_cpu(again, run_dir=tmp_path, resume=True).best == history.best
    assert again.steps == 0
    assert_same(weights(first), weights(again))


def test_resuming_a_run_that_was_out_of_patience(tmp_path):
    config = replace(CONFIG, metric="P@1", patience=1, validate_every=1)
    task, _ = scripted([10, 5])
    train_on_cpu(task, config, run_dir=tmp_path)
    again, _ = scripted([])
    history = train_on_cpu(again, config, run_dir=tmp_path, resume=True)
    assert history.stopped_early
    assert_same(weights(task), weights(again))


def test_resuming_with_nothing_there_begins(tmp_path):
    task = PlantedTask()
    train_on_cpu(task, run_dir=tmp_path / "new", resume=True)
    assert task.steps == 18


def test_training_anew_forgets_the_old_run(tmp_path):
    interrupted(tmp_path, at_step=11)
    interrupted(tmp_path, at_step=3)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-00000001",
        "step-00000002",
    ]


def test_resuming_another_run_says_what_differs(tmp_path):
    interrupted(tmp_path, at_step=5, fingerprint={"data": "a1", "dim": 8})
    with pytest.raises(ParameterError) as error:
        train_on_cpu(
            PlantedTask(),
            replace(CONFIG, learning_rate=0.5),
            run_dir=tmp_path,
            resume=True,
            fingerprint={"data": "b2", "dim": 8},
        )
    assert str(error.value) == (
        f"{tmp_path / 'step-00000004'}: belongs to another run: learning_rate was 0.02, is 0.5; "
        "data was a1, is b2; set these back, or train again without --resume"
    )


def test_where_a_run_is_kept_is_no_part_of_it(tmp_path):
    interrupted(tmp_path, at_step=5, fingerprint={"run_dir": "a", "resume": False, "dim": 8})
    again = PlantedTask()
    facts = {"run_dir": "b", "resume": True, "dim": 8}
    train_on_cpu(again, run_dir=tmp_path, resume=True, fingerprint=facts)
    assert again.steps == 18 - 4


def test_resuming_without_a_folder():
    with pytest.raises(ParameterError, match="nothing to resume: training had no folder"):
        train_on_cpu(PlantedTask(), resume=True)


@pytest.mark.slow
def test_kill_9_at_any_write_loses_nothing(tmp_path):
    subprocess.run([sys.executable, SCRIPT, "kill", tmp_path], check=True, timeout=300)
    with np.load(tmp_path / "resumed.npz") as resumed, np.load(tmp_path / "whole.npz") as whole:
        assert_same(dict(resumed), dict(whole))


# ------------------------------------------------------------------------------ several processes


def test_two_processes_learn_what_one_learns(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, SCRIPT, "several", tmp_path], check=True, timeout=300)
    alone = PlantedTask()
    train_on_cpu(alone)
    with np.load(tmp_path / "rank0.npz") as first, np.load(tmp_path / "rank1.npz") as second:
        assert_same(dict(first), dict(second))
        for name, array in weights(alone).items():
            np.testing.assert_allclose(first[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    assert (tmp_path / "run" / "log.csv").exists()
    for rank in (0, 1):  # a thread of gloo that is left may abort the process at its end
        assert "gloo" not in (tmp_path / f"threads{rank}.txt").read_text()


# --------------------------------------------------------------------------------------- mistakes


def spoil_at(step_to_spoil):
    return lambda step, loss: loss * float("nan") if step == step_to_spoil else loss


def test_a_loss_that_is_no_number_stops_before_it_does_harm():
    task, good = PlantedTask(), PlantedTask()
    task.on_loss = spoil_at(8)
    good.validate = task.validate = lambda: None
    history = train_on_cpu(task, replace(CONFIG, averaging=None))
    assert history.problem == (
        "the loss became nan at step 8 of 18 (epoch 2); the weights from before that step are "
        "kept; try a smaller learning rate"
    )
    assert history.n_steps == 7
    good.on_loss = lambda step, loss: loss if step < 8 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        train_on_cpu(good, replace(CONFIG, averaging=None))
    assert_same(weights(task), weights(good))


def test_the_best_weights_are_those_kept_when_the_loss_breaks():
    task = PlantedTask()
    task.on_loss = spoil_at(8)
    history = train_on_cpu(task, replace(CONFIG, averaging=None))
    assert "at step 8 of 18 (epoch 2); the best weights, those of step 4, are kept" in (
        history.problem
    )


def test_weights_that_give_no_loss_are_left_for_the_checkpoint_before(tmp_path):
    task = PlantedTask()
    task.validate = lambda: None

    def explode(step, loss):
        if step == 5:
            with torch.no_grad():
                task.module.output.bias.fill_(float("inf"))
        return loss

    task.on_loss = explode
    history = train_on_cpu(
        task, replace(CONFIG, averaging=None), run_dir=tmp_path, checkpoint_seconds=0
    )
    assert "the weights of step 4 are kept" in history.problem
    assert all(np.isfinite(array).all() for array in weights(task).values())


def test_a_loss_that_never_was_a_number():
    task = PlantedTask()
    task.on_loss = lambda step, loss: loss + (task.module.output.bias[0] * 0).sqrt()
    with pytest.raises(TrainingError) as error:
        train_on_cpu(task)
    assert str(error.value) == (
        "the gradient became nan at step 1 of 18 (epoch 1), and no earlier weights are of use; "
        "try a smaller learning rate"
    )


def test_an_error_in_the_batch_thread_arrives():
    task = PlantedTask()
    task.batch = lambda rows, rng, mine: 1 / 0
    with pytest.raises(ZeroDivisionError):
        train_on_cpu(task)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", 0, "must be at least 1. Got 0 instead."),
        ("batch_size", 0, "must be at least 1. Got 0 instead."),
        ("learning_rate", 0.0, "must be above 0. Got 0.0 instead."),
        ("schedule", "step", "must be one of constant, linear, cosine. Got 'step' instead."),
        ("warmup", 1.0, "must be at least 0 and below 1. Got 1.0 instead."),
        ("clip", -1.0, "must be above 0 or none. Got -1.0 instead."),
        ("averaging", "ema", "must be 'mean' or none. Got 'ema' instead."),
        ("averaging_start", -0.1, "must be at least 0 and below 1. Got -0.1 instead."),
        ("averaging_every", 0, "must be at least 1. Got 0 instead."),
        ("patience", 0, "must be at least 1 or none. Got 0 instead."),
        ("validate_every", 0, "must be at least 1 or none. Got 0 instead."),
        ("precision", "fp16", "must be one of auto, float32, bf16. Got 'fp16' instead."),
    ],
)
def test_a_plan_out_of_range(name, value, message):
    with pytest.raises(ParameterError) as error:
        TrainingConfig(**{name: value})
    assert str(error.value) == f"The '{name}' parameter of training {message}"


def test_a_metric_that_validation_lacks():
    with pytest.raises(ParameterError) as error:
        train_on_cpu(PlantedTask(), replace(CONFIG, metric="P@7"))
    assert str(error.value) == (
        "The 'metric' parameter of training must be one of P@1, nDCG@5. Got 'P@7' instead."
    )


def test_devices(monkeypatch):
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ParameterError) as error:
        choose_device("cdua")
    assert str(error.value) == (
        "The device must be 'auto', 'cpu' or 'cuda'. Got 'cdua' instead; did you mean 'cuda'?"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ParameterError, match=r"^there is no GPU to train on: .*--device cpu"):
        train(PlantedTask(), CONFIG, device="cuda")


# A disk that is full


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(tmp_path, monkeypatch):
    whole, task, progress = PlantedTask(), PlantedTask(), Recorder()
    train_on_cpu(whole)
    write, calls = os.write, []

    def full_for_a_while(descriptor, data):
        calls.append(task.steps)
        if 5 <= task.steps < 9 or task.steps >= 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full_for_a_while)
    run = {"run_dir": tmp_path, "checkpoint_seconds": 0, "progress": progress}
    train_on_cpu(task, **run)
    assert_same(weights(whole), weights(task))
    warnings = [line for line in progress.said if line.startswith("Warning: ")]
    assert len(warnings) == 2
    assert "training goes on without a checkpoint: " in warnings[0]
    assert "No space left on device; no model is there" in warnings[0]
    kept = [folder.name for folder in find_checkpoints(tmp_path)]
    assert kept == ["step-00000011"]
    monkeypatch.undo()
    resumed = PlantedTask()
    train_on_cpu(resumed, run_dir=tmp_path, resume=True)
    assert resumed.steps == 18 - 11
    assert_same(weights(whole), weights(resumed))


def test_a_checkpoint_is_written_before_its_best_weights_are_replaced():
    task = PlantedTask()
    config = replace(CONFIG, metric="P@1")
    run = loop._Run(task, config, Processes(torch.device("cpu")), 0, Recorder(), None)
    with torch.no_grad():
        run._compare({"P@1": 1.0})
        kept = {name: tensor.clone() for name, tensor in run.best.items()}
        held = pack_state(run.best, {}).arrays
        may_write = threading.Event()

        def write():
            may_write.wait(10)
            return {name: array.copy() for name, array in held.items()}

        writing = run.writing = run.writer.submit(write)
        threading.Timer(0.2, may_write.set).start()
        for parameter in task.module.parameters():
            parameter.add_(1)
        run._compare({"P@1": 2.0})
    assert_same(writing.result(), {f"state.{name}": kept[name].numpy() for name in kept})


def test_what_is_left_of_a_run_that_has_ended_is_its_weights(tmp_path):
    task = PlantedTask()
    history = train_on_cpu(task, run_dir=tmp_path)
    newest, *_ = find_checkpoints(tmp_path)
    kept = read_folder(newest).arrays
    assert sorted(kept) == sorted(f"state.weights.{name}" for name in weights(task))
    resumed = PlantedTask()
    again = train_on_cpu(resumed, run_dir=tmp_path, resume=True)
    assert resumed.steps == 0
    assert again.best == history.best
    assert_same(weights(task), weights(resumed))


def test_a_log_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "log.csv.new").mkdir()
    progress = Recorder()
    history = train_on_cpu(PlantedTask(), run_dir=tmp_path, progress=progress)
    assert history.n_steps == 18
    assert progress.said == ["Note: training goes on without a log: Is a directory"]


def test_the_first_checkpoint_comes_after_a_minute(tmp_path, monkeypatch):
    task, saved = PlantedTask(), []
    clock = types.SimpleNamespace(monotonic=lambda: 25.0 * task.steps)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop, "write_checkpoint", lambda run_dir, step, *rest: saved.append(step))
    train_on_cpu(task, run_dir=tmp_path, checkpoint_seconds=200)
    assert saved == [3, 11, 18]  # after 75 s, 200 s later, at the end
    saved.clear()
    task = PlantedTask()
    train_on_cpu(task, run_dir=tmp_path / "often", checkpoint_seconds=50)
    assert saved == [2, 4, 6, 8, 10, 12, 14, 16, 18]


# ------------------------------------------------------------------------ training within a time


def test_a_pacer_plans_as_many_steps_as_there_is_time_for(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("longtail.training.history.time.monotonic", lambda: now[0])
    pacer = Pacer(stop_at=120.0, n_steps=50)
    now[0] = 105.0  # the first step takes long and says nothing of the others
    assert pacer.plan(1) == 50
    now[0] = 106.0
    assert pacer.plan(2) == 2 + 14
    now[0] = 106.5  # four steps in 1.5 seconds: as many as there are fit again
    assert pacer.plan(5) == 5 + int(13.5 * 4 / 1.5)
    now[0] = 121.0
    assert pacer.plan(6) == 6


def test_training_ends_in_time_with_a_learning_rate_that_fell():
    task, config = PlantedTask(n=400), replace(CONFIG, epochs=100_000, schedule="linear")
    history = train_on_cpu(task, config, seconds=2.0)
    assert 1 <= history.n_steps < 100_000 * 10
    assert history.seconds < 60
    rates = [record["learning_rate"] for record in history.records]
    assert rates[-1] < config.learning_rate


def test_a_time_that_is_long_enough_changes_nothing():
    runs = [PlantedTask(), PlantedTask()]
    train_on_cpu(runs[0])
    train_on_cpu(runs[1], seconds=3600.0)
    assert_same(weights(runs[0]), weights(runs[1]))


def test_no_time_at_all_makes_one_step():
    assert train_on_cpu(PlantedTask(), seconds=0.0).n_steps == 1
