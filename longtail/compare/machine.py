"""The machine that the numbers were measured on, without its name."""

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
        "memory_gb": _memory_gb(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": dict(_versions()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    yield "longtail", __version__
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _memory_gb() -> int | None:
    """Return the memory of the machine, None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf, macOS not every name
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
