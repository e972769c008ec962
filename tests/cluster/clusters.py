"""Small Ray clusters for tests, and what kills parts of them."""

import gc
import os
import secrets
import signal
import subprocess
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

from longtail.cluster.connection import import_ray

STORE = 200_000_000  # bytes of a node's object store


# A token of this test run alone; Ray looks for it once, when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(24))
pytest.importorskip("ray")


@contextmanager
def one_node(cores=2):
    """Start one node and connect to it; the one of other tests in this process, if it is there."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            "local",
            num_cpus=cores,
            object_store_memory=STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
    try:
        yield ray
    finally:
        ray.shutdown()
        forget_processes()


def forget_processes():
    """Wait for the processes that Ray started and left: Python warns about each of them."""
    gc.collect()
    for process in list(subprocess._active):
        process.wait()


def find_workers(raylet):
    """Return the processes that do tasks below a raylet, by its number."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            name = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == raylet and name.startswith(b"ray::") and b"Agent" not in name:
            found.append(int(folder.name))
    return found


def kill(process):
    """Kill a process that may have ended."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
