"""One writer at a time, on systems with locks of one kind, of another, and without any."""

import errno
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from longtail.errors import LongtailError
from longtail.runtime.store import lock, locked

HOLD = """
import sys
from longtail.runtime.store import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def target(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def holder(target):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def refused(target):
    with pytest.raises(LongtailError) as caught, locked(target):
        pass
    return str(caught.value)


def test_the_owner_is_named_until_it_ends(target, holder):
    assert refused(target) == (
        f"{target}: process {holder.pid} is at work on it; wait until that has ended, or "
        "choose another path"
    )
    holder.communicate(b"")
    with locked(target):
        assert [path.name for path in target.parent.iterdir()] == [".model.lock"]
    assert not list(target.parent.iterdir())


def test_a_killed_owner_blocks_nobody(target, holder):
    holder.kill()
    holder.wait()
    assert (target.parent / ".model.lock").exists()
    with locked(target):
        pass
    assert not list(target.parent.iterdir())


def no_locks(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_system_without_locks(target, holder, monkeypatch):
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    assert f"process {holder.pid} is at work" in refused(target)
    holder.kill()
    holder.wait()
    with locked(target):
        pass


@pytest.mark.parametrize("owner", ["", "12", "x host", f"{10**20} {socket.gethostname()}"])
def test_what_is_no_owner_blocks_nobody_without_locks(target, owner, monkeypatch):
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    (target.parent / ".model.lock").write_text(owner)
    with locked(target):
        pass


def test_another_machine_is_named_without_locks(target, monkeypatch):
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    (target.parent / ".model.lock").write_text("12 elsewhere")
    path = target.parent / ".model.lock"
    said = f"process 12 on elsewhere (if it has ended, remove {path}) is at work on it"
    assert said in refused(target)


def test_windows(target, monkeypatch):
    held = set()

    def locking(descriptor, mode, n_bytes):
        assert os.lseek(descriptor, 0, os.SEEK_CUR) > 1000
        if held:
            raise PermissionError(errno.EACCES, "Permission denied")
        held.add(descriptor)

    windows = SimpleNamespace(LK_NBLCK=2, locking=locking)
    monkeypatch.setattr(lock, "msvcrt", windows, raising=False)
    monkeypatch.setattr(lock, "sys", SimpleNamespace(platform="win32"))
    with locked(target):
        assert f"process {os.getpid()} is at work on it" in refused(target)
    assert not list(target.parent.iterdir())


def test_a_lock_that_was_removed_while_it_was_taken(target, monkeypatch):
    path = target.parent / ".model.lock"
    flock, removals = lock.fcntl.flock, iter([path])

    def late(descriptor, operation):
        for each in removals:
            each.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", late)
    with locked(target):
        assert path.read_text().split()[0] == str(os.getpid())


def test_a_folder_that_does_not_exist(tmp_path):
    assert refused(tmp_path / "no" / "model").endswith(
        "model: cannot write a model here: No such file or directory"
    )
