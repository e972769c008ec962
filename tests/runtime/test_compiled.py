"""Compiled code is kept where it can be, and works where it cannot."""

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numba
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
    assert run(script, tmp_path / "cache") == (["3", "0"], 0)
    assert run(script, tmp_path / "cache") == (["3", "1"], 0)


def test_damaged_files_are_compiled_again(script, tmp_path):
    run(script, tmp_path / "cache")
    for path in (tmp_path / "cache").rglob("*.nb[ic]"):
        path.write_bytes(path.read_bytes()[:20])
    assert run(script, tmp_path / "cache") == (["3", "0"], 1)


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
