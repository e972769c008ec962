"""What the numbers were measured on, without naming the machine."""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from longtail.version import __version__

PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "torch")


def describe(threads: int) -> dict[str, object]:
    """Return processor, cores, memory and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": dict(_versions()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    yield "longtail", __version__
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
