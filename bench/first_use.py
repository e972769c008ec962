"""How long our first fit takes in a new process, before and after its code is compiled."""

import os
import subprocess
import sys
import tempfile
import time

SMALL_JOB = """
from bench.run_longtail import Longtail
from pathlib import Path
Longtail({"model": "linear"}, 2, Path()).warm_up()
"""


def first_use_seconds() -> dict[str, float]:
    """Return seconds of a new process that fits a few rows: nothing compiled, all compiled."""
    with tempfile.TemporaryDirectory() as cache:
        return {"cold": _start(cache), "compiled": _start(cache)}


def _start(cache: str) -> float:
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", SMALL_JOB], env=environment, check=True)
    return time.perf_counter() - start
