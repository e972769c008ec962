"""The system fails at any call, a process is killed at any moment, a model is replaced."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import numpy as np

from attack.case import Attack, Attempt, Outcome
from attack.commands import run_command, write_documents
from longtail import load_model
from longtail import train as train_model
from longtail.errors import LongtailError, ModelFileError
from longtail.runtime.store import Files, atomic, read_folder, verify_folder, write_folder

# What Python's own file functions end in, and what this package calls.
CALLS = [
    *("write", "fsync", "open", "close", "rename", "replace", "mkdir", "rmdir", "unlink"),
    *("lstat", "stat", "fstat", "listdir", "scandir"),
]
REASONS = [
    *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE),
    *(errno.ENOMEM, errno.ESTALE),
]
EXCHANGE = "exchange"  # renameat2, or what stands for it


@dataclass
class Fault:
    """The n-th of all calls fails with an error, and if `stays` each later one of its kind."""

    number: int
    code: int = errno.EIO
    stays: bool = False
    counted: int = 0
    failed: str = ""  # the call that failed

    def at(self, name: str) -> None:
        """Count a call, and fail if it is the one."""
        self.counted += 1
        if self.counted == self.number or (self.stays and name == self.failed):
            self.failed = name
            raise OSError(self.code, os.strerror(self.code))


@contextmanager
def failing(fault: Fault, *, can_exchange: bool = True) -> Iterator[None]:
    """Let the system fail inside; without `can_exchange` it cannot exchange two names at once."""
    with patch.multiple(os, **{name: _count(fault, name) for name in CALLS}):
        real = atomic._exchange

        def exchange(first: Path, second: Path) -> bool:
            fault.at(EXCHANGE)
            return can_exchange and real(first, second)

        with patch.object(atomic, "_exchange", exchange):
            yield


def _count(fault: Fault, name: str) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        if name == "close":
            real(*args, **options)  # as the system does: the descriptor is gone in any case
            fault.at(name)
            return None
        fault.at(name)
        return real(*args, **options)

    return call


# -- saving and loading -----------------------------------------------------------------------


def make_files(number: int) -> Files:
    """Return a small model that tells its number."""
    arrays = {"values": np.full(500, number), "more": np.ones(number % 7 + 1)}
    return Files({"model": "attacked", "number": number}, arrays, {"names": ["a", "b"]})


def read_number(path: Path) -> int:
    """Return the number of the model that is there, whole and of one version."""
    files = read_folder(path)
    number = int(files.config["number"])
    if not (files.arrays["values"] == number).all():
        raise AssertionError(f"{path} mixes two models")
    return number


def check_sentence(said: str, target: Path, old: int | None, new: int) -> None:
    """Make sure that a save's error says what is at `target` now: the old model, the new, none."""
    now = None
    try:
        now = read_number(target)
    except ModelFileError:
        if os.path.lexists(target):
            raise
    if "the new model is there" in said:
        right = now == new
    elif "no model is there" in said:
        right = now is None and old is None
    elif "what was there before is in " in said:
        right = now is None and read_number(Path(said.rpartition(" is in ")[2])) == old
    elif "cannot be told" in said:
        right = now in (old, new)
    else:  # it was untouched, or the error says that nothing was tried
        right = now == old
    if not right:
        raise AssertionError(f"'{said}', but the model there is {now}, was {old}, new is {new}")


def save_with(fault: Fault, target: Path, *, replaces: bool, can_exchange: bool) -> Outcome:
    """Save a model under a fault, and check what is said about it."""
    for left in target.parent.iterdir():
        rmtree(left)
    if replaces:
        write_folder(target, make_files(1))
    old = 1 if replaces else None
    try:
        with failing(fault, can_exchange=can_exchange):
            write_folder(target, make_files(2), overwrite=replaces)
    except LongtailError as error:
        check_sentence(str(error), target, old, 2)
        return "refused"
    if read_number(target) != 2:
        raise AssertionError("a save that did not fail has saved nothing")
    return "answered"


def load_with(fault: Fault, target: Path, random: Random) -> Outcome:
    """Load a whole model under a fault."""
    if not target.exists():
        write_folder(target, make_files(1))
    try:
        with failing(fault):
            random.choice([read_number, verify_folder])(target)
    except ModelFileError:
        return "refused"
    return "answered"


# -- the attacks ------------------------------------------------------------------------------


def _prepare_faults(folder: Path) -> Attempt:
    data = write_documents(folder / "data.jsonl", 120)
    run_command("train", data, "--out", folder / "model", "--model", "linear", "--valid", "0")
    target = folder / "saves" / "model"
    target.parent.mkdir()

    def attempt(random: Random) -> Outcome:
        fault = Fault(random.randrange(1, 120), random.choice(REASONS), random.random() < 0.5)
        action = random.choice(["save", "save", "load", "train", "predict", "verify"])
        if action == "save":
            exchange, replaces = random.random() < 0.5, random.random() < 0.7
            return save_with(fault, target, replaces=replaces, can_exchange=exchange)
        if action == "load":
            return load_with(fault, target, random)
        return _command_with(fault, action, folder, data)

    return attempt


def _command_with(fault: Fault, action: str, folder: Path, data: Path) -> Outcome:
    out = folder / "out"
    commands = {
        "train": ["train", data, "--out", out, "--model", "linear", "--overwrite"],
        "predict": ["predict", folder / "model", data, "--out", folder / "p.jsonl", "--overwrite"],
        "verify": ["verify", folder / "model"],
    }
    with failing(fault):
        outcome = run_command(*commands[action])
    if action == "train" and out.exists():
        load_model(out)
    return outcome


def _prepare_kills(folder: Path) -> Attempt:
    data = write_documents(folder / "data.jsonl", 60)
    target = folder / "model"
    trained = folder / "trained"
    train_model(data, model="linear", valid=0, out=trained)
    first = load_model(trained).predict(["hops malt"]).scores.tolist()

    def save(can_exchange: bool) -> None:
        with failing(Fault(0), can_exchange=can_exchange):
            for number in range(2, 1000):
                write_folder(target, make_files(number), overwrite=True)

    def train(can_exchange: bool) -> None:
        with failing(Fault(0), can_exchange=can_exchange):
            while True:
                train_model(data, model="linear", valid=0, out=trained, overwrite=True)

    def attempt(random: Random) -> Outcome:
        can_exchange = random.random() < 0.7
        if random.random() < 0.2:
            _kill_in(lambda: train(can_exchange), random.uniform(0, 0.5))
            _rename_back(trained)
            if load_model(trained).predict(["hops malt"]).scores.tolist() != first:
                raise AssertionError("another model than that of either training")
            return "answered"
        _kill_in(lambda: save(can_exchange), random.uniform(0, 0.05))
        _rename_back(target)
        if target.exists():
            read_number(target)
        write_folder(target, make_files(1), overwrite=True)
        left = [each.name for each in folder.iterdir() if each.name.startswith(".model.")]
        if left:
            raise AssertionError(f"the save after a kill leaves {left}")
        return "answered"

    return attempt


def _kill_in(work: Callable[[], None], seconds: float) -> None:
    """Let a process work and kill it after so many seconds."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _rename_back(target: Path) -> None:
    """Do what the error says of a save that was killed between two renames."""
    try:
        read_folder(target)
    except ModelFileError as error:
        old = atomic.find_old(target)
        if old is None or target.exists():
            if "no such model folder" in str(error):
                return
            raise
        if str(old) not in str(error):
            raise AssertionError("the error does not say where the old model is") from error
        old.rename(target)


def _prepare_swaps(folder: Path) -> Attempt:
    target = folder / "model"
    write_folder(target, make_files(0))

    def replace(can_exchange: bool) -> None:
        with failing(Fault(0), can_exchange=can_exchange):
            for number in range(20):
                write_folder(target, make_files(number), overwrite=True)

    def attempt(random: Random) -> Outcome:
        can_exchange = random.random() < 0.5
        child = os.fork()
        if not child:
            try:
                replace(can_exchange)
                os._exit(0)
            finally:
                os._exit(1)
        ended = (0, 0)
        while not ended[0]:
            read_number(target)
            ended = os.waitpid(child, os.WNOHANG)
        if ended[1]:
            raise AssertionError("a save failed while the model was read")
        return "answered"

    return attempt


ATTACKS = [
    Attack(
        "faults",
        "a system call that fails ends in one true sentence, or is made good",
        _prepare_faults,
    ),
    Attack(
        "kills",
        "after kill -9 the model is the old or the new one, whole",
        _prepare_kills,
    ),
    Attack(
        "swaps",
        "a model that is replaced while it is read is read as one version",
        _prepare_swaps,
    ),
]
