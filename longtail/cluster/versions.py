"""The versions of a node: other ones could give other bits, or fail in the middle of the work."""

import platform
from functools import cache
from importlib.metadata import version
from typing import NamedTuple

from longtail.errors import LongtailError
from longtail.version import __version__

PACKAGES = ("numpy", "scipy", "numba")  # another version of these may round otherwise


class ClusterError(LongtailError):
    """The cluster cannot be reached, or its nodes do not suit."""


class Versions(NamedTuple):
    """What must be the same on all nodes for the same result."""

    longtail: str
    python: str
    packages: tuple[str, ...]

    def differ(self, other: "Versions") -> str:
        """Return what differs first, such as "longtail 0.2 where this machine has 0.3"."""
        for name, theirs, ours in (
            ("longtail ", other.longtail, self.longtail),
            ("Python ", other.python, self.python),
            *(("", *pair) for pair in zip(other.packages, self.packages, strict=True)),
        ):
            if theirs != ours:
                return f"{name}{theirs} where this machine has {ours}"
        return ""


def find_versions() -> Versions:
    """Return the versions of this process."""
    return _find_versions()


@cache  # Ray takes plain functions only, and every task asks
def _find_versions() -> Versions:
    python = ".".join(platform.python_version_tuple()[:2])
    return Versions(__version__, python, tuple(f"{name} {version(name)}" for name in PACKAGES))


def require_versions(expected: Versions) -> None:
    """Raise ClusterError on a node with others; it may have joined after the work began."""
    if differs := expected.differ(find_versions()):
        raise ClusterError(
            f"the node {platform.node()} has {differs}; install the same versions on all nodes"
        )
