"""Compiled code is kept where it can be, and works where it cannot."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import caching

from longtail.runtime import compiled

ADD = """
import sys
import numba
numba.config.CACHE_DIR = sys.argv[1]
from longtail.runtime.compiled import njit

@njit(nogil=True, cache=True)
def add(a, b):
    return a + b

if __name__ == "__main__":
    print(add(1, 2), sum(add.stats.cache_hits.values()))
"""

INTERRUPTED = """
import os, signal, threading
from typing import NamedTuple
import numpy as np
from longtail.runtime.compiled import njit

class Found(NamedTuple):
    first: np.ndarray
    second: np.ndarray

@njit(nogil=True)
def add(n):
    total = np.zeros(1)
    for i in range(n):
        total[0] += np.sin(i)
    return total

@njit(nogil=True)
def find_tuple(n):
    return add(n), np.ones(2), 3

@njit(nogil=True)
def find_named(n):
    return Found(add(n), np.ones(2))

assert find_tuple(1)[1].tolist() == find_named(1).second.tolist() == [1, 1]
assert find_tuple(1)[2] == 3 and type(find_named(1)) is Found
for find in (find_tuple, find_named):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        find(30_000_000)  # some tenths of a second, of which the press is in the midst
    except KeyboardInterrupt:
        print(find.__name__)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "add.py"
    path.write_text(ADD)
    return path


def run(script, cache):
    command = [sys.executable, "-W", "always", str(script), str(cache)]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr.count("compiled code cannot be kept")


def test_the_second_start_finds_what_the_first_compiled(script, tmp_path):
    os.utime(script, (1_000_000_000.75, 1_000_000_000.75))
    assert run(script, tmp_path / "cache") == (["3", "0"], 0)
    os.utime(script, (1_000_000_000, 1_000_000_000))  # as in an image
    assert run(script, tmp_path / "cache") == (["3", "1"], 0)


def test_a_ctrl_c_while_a_tuple_is_made_is_raised(tmp_path):
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    assert run(tmp_path / "interrupted.py", "") == (["find_tuple", "find_named"], 0)


def test_damaged_files_are_compiled_again(script, tmp_path):
    run(script, tmp_path / "cache")
    for path in (tmp_path / "cache").rglob("*.nb[ic]"):
        path.write_bytes(path.read_bytes()[:20])
    assert run(script, tmp_path / "cache") == (["3", "0"], 1)


NAMED = """
import os
from longtail.runtime.compiled import njit

def show_name():
    @njit(nogil=True)
    def add(a, b):
        return a + b

    add(1, 2)
    os.write(1, add.overloads[add.signatures[0]].fndesc.mangled_name.encode() + b"\\n")

if os.fork() == 0:
    show_name()
    os._exit(0)
os.wait()
show_name()
"""


def test_what_two_processes_compile_never_bears_one_name():
    """Else whoever loads both has the first in place of the second, as with sort and argsort."""
    runs = [
        subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    names = [name for run in runs for name in run.stdout.split()]
    assert len(names) == 4
    assert len(set(names)) == 4


def test_code_for_other_types_under_the_same_name_is_not_taken(monkeypatch, tmp_path):
    """As two processes leave it that both were first to compile the function."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def make():
        return compiled.njit(cache=True)(lambda numbers: numbers.sum())

    one = make()
    assert one(np.array([1, 2])) == 3
    assert one(np.array([0.5, 2.0])) == 2.5
    ints, floats = sorted(tmp_path.rglob("*.nbc"))
    shutil.copy(floats, ints)
    again = make()
    assert again(np.array([1, 2])) == 3
    assert again(np.array([0.5, 2.0])) == 2.5
    assert sum(again.stats.cache_hits.values()) == 1


def test_code_that_checks_no_index_is_not_taken_for_code_that_does(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def make():
        return compiled.njit(cache=True)(lambda numbers, place: numbers[place])

    make()(np.zeros(3), 2)
    again = make()
    again(np.zeros(3), 2)
    assert sum(again.stats.cache_hits.values()) == 1
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    with pytest.raises(IndexError, match="out of bounds"):
        make()(np.zeros(3), 5)


@pytest.fixture
def add(monkeypatch, tmp_path):
    """Make a function with an empty cache."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_reasons", [])

    def make():
        return compiled.njit(cache=True)(lambda a, b: a + b)

    return make


def said(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [str(each.message) for each in caught]


def test_no_folder_at_all(add, monkeypatch):
    def no_folder(locator):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", no_folder)
    function, warned = said(add)
    assert warned == [
        "compiled code cannot be kept (no folder for it can be used), so each start takes some "
        "seconds longer; set NUMBA_CACHE_DIR to a folder that can be written"
    ]
    assert said(function, 1, 2) == (3, [])
    assert said(add)[1] == []


def test_a_full_disk(add, monkeypatch):
    def full(index, *args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    result, warned = said(add(), 1, 2)
    assert result == 3
    assert len(warned) == 1
    assert "cannot be kept (No space left on device)" in warned[0]


# A read-only installation, without a home


@pytest.fixture
def read_only(tmp_path):
    """Put the script where nobody can write; return it, and what runs it with a given TMPDIR.

    Root could write all the same, so the script is run by another user then.
    """
    script = tmp_path / "installed" / "add.py"
    script.parent.mkdir()
    script.write_text(ADD.replace("numba.config.CACHE_DIR = sys.argv[1]\n", ""))
    other = ["setpriv", "--reuid=65534", "--clear-groups"] if os.getuid() == 0 else []
    if other and not shutil.which("setpriv"):
        pytest.skip("needs setpriv, to be another user than root")
    below = tmp_path.relative_to(tempfile.gettempdir()).parts
    for n in range(len(below)):  # another user has to get there
        Path(tempfile.gettempdir(), *below[: n + 1]).chmod(0o755)
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)

    def run_it(temporary):
        surroundings = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "no home"),
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [*other, sys.executable, "-W", "always", str(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=surroundings, cwd=script.parent
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split(), done.stderr.count("compiled code cannot be kept")

    script.parent.chmod(0o555)
    yield script, run_it
    script.parent.chmod(0o755)


posix = pytest.mark.skipif(sys.platform == "win32", reason="has other permissions")


@posix
def test_where_nothing_else_can_be_written_a_temporary_folder_keeps_it(read_only, tmp_path):
    _, run_it = read_only
    assert run_it(tmp_path / "ours") == (["3", "0"], 0)
    assert run_it(tmp_path / "ours") == (["3", "1"], 0)
    (folder,) = (tmp_path / "ours").iterdir()
    assert folder.name.startswith("longtail-compiled-")
    assert folder.stat().st_mode & 0o777 == 0o700


@posix
def test_a_temporary_folder_that_others_can_write_is_not_used(read_only, tmp_path):
    _, run_it = read_only
    run_it(tmp_path / "ours")
    (folder,) = (tmp_path / "ours").iterdir()
    folder.chmod(0o777)
    assert run_it(tmp_path / "ours") == (["3", "0"], 1)


@posix
def test_what_was_compiled_beside_a_read_only_package_is_used(read_only, tmp_path):
    script, run_it = read_only
    script.parent.chmod(0o755)
    (script.parent / "__pycache__").mkdir()
    (script.parent / "__pycache__").chmod(0o777)
    assert run_it(tmp_path / "ours") == (["3", "0"], 0)
    for folder in (script.parent / "__pycache__", script.parent):
        folder.chmod(0o555)
    assert run_it(tmp_path / "others") == (["3", "1"], 0)


def test_what_lies_beside_the_package_is_used_even_if_nothing_can_be_written(script, monkeypatch):
    function = type("F", (), {"__code__": compile("0", str(script), "exec")})
    locate = compiled._ReadOnlyLocator.from_function
    assert locate(function, str(script)) is None
    (script.parent / "__pycache__").mkdir()
    (script.parent / "__pycache__" / "add.add-8.py311.1.nbi").touch()
    assert locate(function, str(script)).get_cache_path() == str(script.parent / "__pycache__")
    monkeypatch.setattr("tempfile.gettempdir", Path("/no such folder").stat)
    assert compiled._TemporaryLocator.from_function(function, str(script)) is None


def test_a_change_in_what_is_called_is_compiled_too(tmp_path):
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").write_text("")
    inner = (
        "from longtail.runtime.compiled import njit\n@njit(cache=True)\ndef one():\n    return {}\n"
    )
    (package / "inner.py").write_text(inner.format("1"))
    (package / "outer.py").write_text(
        "from longtail.runtime.compiled import njit\nfrom planted.inner import one\n"
        "@njit(cache=True)\ndef twice():\n    return 2 * one()\n"
    )
    (tmp_path / "main.py").write_text(
        "import sys, numba\nnumba.config.CACHE_DIR = sys.argv[1]\n"
        "from planted.outer import twice\nprint(twice(), sum(twice.stats.cache_hits.values()))\n"
    )
    cache = tmp_path / "cache"
    assert run(tmp_path / "main.py", cache) == (["2", "0"], 0)
    assert run(tmp_path / "main.py", cache) == (["2", "1"], 0)
    (package / "inner.py").write_text(inner.format("21"))
    assert run(tmp_path / "main.py", cache) == (["42", "0"], 0)
