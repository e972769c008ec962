"""How long our first fit takes in a new process, before and after its code is compiled."""

import os
import resource
import subprocess
import sys
import tempfile
import time

SMALL_JOB = """
from pathlib import Path
from longtail.compare.ours import Ours
Ours({"model": "linear"}, 2, Path(), 5).warm_up()
"""


def measure_first_use() -> dict[str, float]:
    """Return wall and CPU seconds of a process that fits a few rows: before, and once compiled."""
    with tempfile.TemporaryDirectory() as cache:
        cold, cold_cpu = _start(cache)
        compiled, compiled_cpu = _start(cache)
    return {
        "cold_seconds": cold,
        "cold_cpu_seconds": cold_cpu,
        "compiled_seconds": compiled,
        "compiled_cpu_seconds": compiled_cpu,
    }


def _start(cache: str) -> tuple[float, float]:
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    start, cpu = time.perf_counter(), _children_seconds()
    subprocess.run([sys.executable, "-c", SMALL_JOB], env=environment, check=True)
    return time.perf_counter() - start, _children_seconds() - cpu


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
