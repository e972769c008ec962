"""A saved model on every node: the folder itself where a node sees it, else a copy.

A node that does not see the folder takes the files from the object store and writes them once, into
a folder of temporary files that bears the model's hash. Workers of a node map the same files, so
the node holds their pages once.
"""

import hashlib
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from longtail.cluster.tasks import RayWorkers
from longtail.errors import LongtailError
from longtail.runtime.private import make_private, name_private
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
    if _are_all_here(workers):
        return ModelFolder(str(absolute), _find_digest(absolute) or "", {})
    contents = {file.name: file.read_bytes() for file in absolute.iterdir()}
    digest = _hash(contents[MANIFEST]) if MANIFEST in contents else ""
    shared = {name: workers.share(content) for name, content in contents.items()}
    return ModelFolder(str(absolute), digest, shared)


def _are_all_here(workers: RayWorkers) -> bool:
    """Whether every node runs on this machine."""
    own = socket.gethostname()
    nodes = [node for node in workers.ray.nodes() if node["Alive"]]
    return all(node["NodeManagerHostname"] == own for node in nodes)


@lru_cache(maxsize=1)
def _load(path: str, digest: str) -> "Model":
    """Load a model once a worker; LongtailError if another is at its path by now."""
    from longtail.models import load_model

    model = load_model(path)
    if _find_digest(Path(path)) != digest:
        raise LongtailError(
            f"{path}: the model was replaced while the cluster labelled documents with it; run "
            "the command again"
        )
    return model


def open_model(folder: ModelFolder) -> "Model":
    """Return the model, on a node."""
    path = Path(folder.path)
    if folder.files and _find_digest(path) != folder.digest:
        path = copy_model(folder)
    return _load(str(path), folder.digest)


def copy_model(folder: ModelFolder) -> Path:
    """Return the copy of a model on this node, written whole by whoever comes first."""
    import ray

    target = _make_home() / folder.digest[:32]
    if _find_digest(target) == folder.digest:
        return target
    with temporary_folder(target) as place:
        for name, ticket in folder.files.items():
            (place / name).write_bytes(ray.get(ticket))
        with suppress(OSError):  # another worker was first
            move_in(place, target)
    return target


def _make_home() -> Path:
    """Make the folder of this user's copies on this node."""
    try:
        home = name_private("models")
        make_private(home)
    except OSError as error:
        raise LongtailError(
            f"a node has no folder for the copy of the model ({error}); remove what is there, or "
            "set TMPDIR on that node"
        ) from error
    return home


def _find_digest(path: Path) -> str | None:
    """Return the hash of a folder's manifest; None without one."""
    try:
        return _hash((path / MANIFEST).read_bytes())
    except OSError:
        return None


def _hash(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()
