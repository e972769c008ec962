"""macOS and Windows, as far as they can be had here: what Python lacks there is taken away."""

import json
import shutil
import subprocess
import sys

import pytest
from command_line import write_texts

# Libraries are imported before, as they have other files for other systems.
STAND_IN = """
import contextlib, errno, io, json, os, signal, sys, types
import numba, numpy, pyarrow, rich.console, rich.progress, scipy.sparse, sklearn.utils, typer
import asyncio, subprocess, tempfile, multiprocessing, concurrent.futures

system, commands = sys.argv[1], json.loads(sys.argv[2])
gone = ["sched_getaffinity", "sched_setaffinity"]
if system == "win32":
    gone += ["fork", "register_at_fork", "killpg", "sysconf", "O_NOFOLLOW", "O_DIRECTORY"]
    gone += ["O_NONBLOCK", "O_CLOEXEC", "pread", "pwrite", "getuid", "getpgid", "setsid"]
    for name in ("SIGPIPE", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGALRM"):
        delattr(signal, name)
    for module in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[module] = None
    locks = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *args: None)
    sys.modules["msvcrt"] = locks
    os.supports_dir_fd.clear()
    os.supports_fd.clear()
    rename, open_file = os.rename, os.open

    def rename_as_windows(source, target, **options):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        rename(source, target)

    def open_as_windows(path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, flags, mode)

    os.rename, os.open = rename_as_windows, open_as_windows
for name in gone:
    if hasattr(os, name):
        delattr(os, name)
sys.platform = system
from longtail.cli import main

ended = []
for command in commands:
    sys.argv[1:], said, complaint = command, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint):
        try:
            main()
        except SystemExit as end:
            ended.append((end.code or 0, said.getvalue(), complaint.getvalue()))
print(json.dumps(ended))
"""


def run(system, *commands):
    """Run commands in one process; return what each said, of one that fails its error."""
    given = json.dumps([[str(arg) for arg in command] for command, _ in commands])
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN, system, given],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert [code for code, _, _ in ended] == [code for _, code in commands], ended
    return [error if code else said for code, said, error in ended]


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_train_replace_update_predict(system, tmp_path, tmp_path_factory):
    data, model = write_texts(tmp_path / "train.jsonl", 60, seed=0), tmp_path / "model"
    damaged, out = tmp_path_factory.mktemp("damaged") / "model", tmp_path / "out.jsonl"
    train = ["train", data, "--out", model, "--model", "knn", "--valid", "0"]
    run(system, (train, 0))
    shutil.copytree(model, damaged)
    (damaged / "weights.safetensors").write_bytes(b"")
    _, exists, updated, verified, _, broken = run(
        system,
        ([*train, "--overwrite"], 0),
        (train, 2),
        (["update", model, data], 0),
        (["verify", model], 0),
        (["predict", model, data, "--out", out], 0),
        (["verify", damaged], 2),
    )
    assert "already exists" in exists
    assert "now has 120 documents" in updated
    assert "is complete: a knn model" in verified
    assert len(out.read_text().splitlines()) == 60
    assert json.loads(out.read_text().splitlines()[0])["labels"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model",
        "out.jsonl",
        "train.jsonl",
    ]
    assert broken.startswith("Error: ")
