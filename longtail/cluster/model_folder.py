"""A saved model on every node: the folder itself where a node sees it, else a copy.

A node that does not see the folder takes the files from the object store and writes them once, into
a folder of temporary files that bears the model's hash. Workers of a node map the same files, so
the node holds their pages once.
"""

import hashlib
import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from longtail.cluster.tasks import RayWorkers
from longtail.runtime.store.atomic import move_in, temporary_folder

if TYPE_CHECKING:
    from longtail.models.base import Model

MANIFEST = "manifest.json"


class ModelFolder(NamedTuple):
    """What tells a node which model is meant, and where it may get it.

    Attributes:
        path: the folder, as the machine that asks sees it.
        digest: of its manifest, which holds the hashes of all other files.
        files: by name, tickets of the contents; empty if all nodes are on that machine.
    """

    path: str
    digest: str
    files: Mapping[str, Any]


def offer_model(path: Path, workers: RayWorkers) -> ModelFolder:
    """Describe a folder for the nodes; its files are shared if some node is on another machine."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link
    digest = _find_digest(absolute)
    files = {}
    if not _are_all_here(workers):
        files = {file.name: workers.share(file.read_bytes()) for file in absolute.iterdir()}
    return ModelFolder(str(absolute), digest or "", files)


def _are_all_here(workers: RayWorkers) -> bool:
    """Whether every node runs on this machine."""
    own = socket.gethostname()
    nodes = [node for node in workers.ray.nodes() if node["Alive"]]
    return all(node["NodeManagerHostname"] == own for node in nodes)


@lru_cache(maxsize=1)
def _load(path: str, digest: str) -> "Model":
    """Load a model once a worker; the digest tells it from another at the same path."""
    from longtail.models import load_model

    return load_model(path)


def open_model(folder: ModelFolder) -> "Model":
    """Return the model, on a node."""
    path = Path(folder.path)
    if folder.files and _find_digest(path) != folder.digest:
        path = copy_model(folder)
    return _load(str(path), folder.digest)


def copy_model(folder: ModelFolder) -> Path:
    """Return the copy of a model on this node, written whole by whoever comes first."""
    import ray

    home = Path(tempfile.gettempdir()) / f"longtail-models-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    target = home / folder.digest[:32]
    if _find_digest(target) == folder.digest:
        return target
    with temporary_folder(target) as place:
        for name, ticket in folder.files.items():
            (place / name).write_bytes(ray.get(ticket))
        with suppress(OSError):  # another worker was first
            move_in(place, target)
    return target


def _find_digest(path: Path) -> str | None:
    """Return the hash of a folder's manifest; None without one."""
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None
