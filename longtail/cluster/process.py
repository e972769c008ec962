"""One of the processes that train a network together; it lives in a worker of Ray.

It is told its place among them by the variables that torchrun would set, and then trains as it
would there. Meanwhile the machine that asked for the training looks in now and then: it gets what
is to be shown, and the checkpoints, if it does not see the folder in which they are written.
"""

import os
import socket
import tempfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from longtail.cluster.versions import Versions, require_versions
from longtail.data import Dataset
from longtail.errors import TrainingError
from longtail.models.base import Model
from longtail.runtime.store import Files

Contents = Mapping[str, bytes]  # of files, by their paths in a folder
MANIFEST = "manifest.json"


class Place(NamedTuple):
    """Where a process stands among those that train together, and what it has."""

    rank: int
    n_processes: int
    address: str
    port: int
    cores: int
    has_gpu: bool


class Fitted(NamedTuple):
    """A trained network, and what stopped its training, if something did."""

    files: Files
    problem: str | None


class News(NamedTuple):
    """What happened since the last look.

    Attributes:
        shown: calls of a Progress, by name and with arguments.
        changed: files that are new or were changed.
        names: of all files that there are.
    """

    shown: list[tuple[str, tuple[Any, ...]]]
    changed: Contents
    names: frozenset[str]


class Noting:
    """A Progress that keeps what is to be shown until somebody asks."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def stage(self, name: str, total: float) -> None:
        """Keep the beginning of a stage."""
        self._calls.append(("stage", (name, total)))

    def advance(self, amount: float) -> None:
        """Keep the sum of what is done."""
        calls = self._calls
        before = calls.pop()[1][0] if calls and calls[-1][0] == "advance" else 0.0
        calls.append(("advance", (before + amount,)))

    def note(self, text: str) -> None:
        """Keep a note."""
        self._calls.append(("note", (text,)))

    def say(self, text: str) -> None:
        """Keep a line."""
        self._calls.append(("say", (text,)))

    def take(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return what was kept, once."""
        taken, self._calls = self._calls, []
        return taken


class TrainingProcess:
    """Trains its share of a network; Ray calls its methods, `look` while `fit` is at work."""

    def __init__(self) -> None:
        self._progress = Noting()
        self._copy: Path | None = None  # the folder of checkpoints that others do not see
        self._known: dict[str, tuple[int, int]] = {}  # time and size of files that were told

    def locate(self, expected: Versions, seen: str | None) -> tuple[str, int, bool]:
        """Return this node's address, a free port, and whether it sees a path."""
        import ray

        require_versions(expected)
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return ray.util.get_node_ip_address(), port, seen is not None and Path(seen).exists()

    def fit(
        self, model: Model, dataset: Dataset, place: Place, checkpoints: Contents | None
    ) -> Fitted | None:
        """Train the model with the others; the first returns it.

        Args:
            model: untrained.
            dataset: all documents; each process takes its share of every batch.
            place: among the processes.
            checkpoints: what is in the folder of the run, if this node does not see it.
        """
        from longtail.runtime.parallel import set_threads

        _take(place)
        set_threads(place.cores)
        if checkpoints is not None:
            model.run_dir = self._write(checkpoints)
        problem = None
        try:
            model.fit(dataset, progress=self._progress)
        except TrainingError as error:
            if not model.is_fitted:
                raise
            problem = str(error)
        return None if place.rank else Fitted(model.to_files(), problem)

    def look(self) -> News:
        """Return what happened since the last call."""
        if self._copy is None:
            return News(self._progress.take(), {}, frozenset())
        found = list_files(self._copy)
        new = [name for name in found if self._known.get(name) != found[name]]
        self._known = found
        return News(self._progress.take(), read_files(self._copy, new), frozenset(found))

    def tidy(self) -> None:
        """Remove what nobody needs after the training."""
        if self._copy is not None:
            rmtree(self._copy, ignore_errors=True)

    def _write(self, checkpoints: Contents) -> Path:
        """Put what is in the folder of the run into one of this node; return that."""
        self.tidy()
        self._copy = Path(tempfile.mkdtemp(prefix="longtail-run-"))
        write_files(self._copy, checkpoints)
        self._known = list_files(self._copy)
        return self._copy


def _take(place: Place) -> None:
    """Tell the training loop its place, as torchrun would."""
    told: dict[str, object] = {"RANK": place.rank, "WORLD_SIZE": place.n_processes}
    told |= {
        "MASTER_PORT": place.port,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
    }  # its GPU is its own
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ["MASTER_ADDR"] = place.address
    if not place.has_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


# -- files of a folder ----------------------------------------------------------------------------


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return time and size of all files in a folder, by their paths in it."""
    found = {}
    for file in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # an old checkpoint, gone meanwhile
            if file.is_file():
                state = file.stat()
                found[str(file.relative_to(folder))] = state.st_mtime_ns, state.st_size
    return found


def read_files(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of files, but of those that are gone."""
    contents = {}
    for name in names:
        with suppress(FileNotFoundError):
            contents[name] = (folder / name).read_bytes()
    return contents


def write_files(folder: Path, contents: Contents) -> None:
    """Write files into a folder; manifests last, as they make a checkpoint count."""
    for name in sorted(contents, key=lambda name: name.endswith(MANIFEST)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents[name])


def mirror_files(folder: Path, changed: Contents, names: Collection[str]) -> None:
    """Give a folder the files of another: what was changed there, and nothing but `names`."""
    write_files(folder, changed)
    for name in list_files(folder).keys() - set(names):
        (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # other files are in it
            (folder / name).parent.rmdir()
