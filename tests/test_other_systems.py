"""macOS and Windows, as far as they can be had here: what Python lacks there is taken away."""

import json
import subprocess
import sys

import pytest
from command_line import write_texts

# Libraries are imported before, as they have other files for other systems.
STAND_IN = """
import errno, os, signal, sys, types
import numba, numpy, pyarrow, rich.console, rich.progress, scipy.sparse, sklearn.utils, typer
import asyncio, subprocess, tempfile, multiprocessing, concurrent.futures

system = sys.argv.pop(1)
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
main()
"""


def run(system, *args, code=0):
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN, system, *map(str, args)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_train_replace_update_predict(system, tmp_path):
    data, model = write_texts(tmp_path / "train.jsonl", 60, seed=0), tmp_path / "model"
    train = ["train", data, "--out", model, "--model", "knn", "--valid", "0"]
    run(system, *train)
    run(system, *train, "--overwrite")
    assert "already exists" in run(system, *train, code=2).stderr
    assert "now has 120 documents" in run(system, "update", model, data).stdout
    assert "is complete: a knn model" in run(system, "verify", model).stdout
    out = tmp_path / "out.jsonl"
    run(system, "predict", model, data, "--out", out)
    assert len(out.read_text().splitlines()) == 60
    assert json.loads(out.read_text().splitlines()[0])["labels"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model",
        "out.jsonl",
        "train.jsonl",
    ]
    (model / "weights.safetensors").write_bytes(b"")
    assert run(system, "verify", model, code=2).stderr.startswith("Error: ")
