"""A virtual environment for each peer, because what they pin collides."""

import subprocess
import sys
import venv
from pathlib import Path

from longtail.compare.process import shorten
from longtail.peers import OURS

CONSTRAINTS = Path(__file__).with_name("constraints.txt")


class PeerError(Exception):
    """A peer cannot be installed, or failed on a data set; the message is short."""


def python_of(package: str, folder: Path) -> Path:
    """Return the interpreter that can import `package`, after installing it when needed."""
    if package == OURS:
        return Path(sys.executable)
    return install(package, [package, "scipy"], folder)


def install(name: str, packages: list[str], folder: Path) -> Path:
    """Return the interpreter of the environment `name`, with these packages."""
    home = folder / name
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists() or ready.read_text() != CONSTRAINTS.read_text():
        print(f"installing {name}", flush=True)
        _install(packages, home, python)
        ready.write_text(CONSTRAINTS.read_text())
    return python


def _install(packages: list[str], home: Path, python: Path) -> None:
    venv.create(home, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(CONSTRAINTS), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"cannot be installed: {shorten(done.stderr)}")
