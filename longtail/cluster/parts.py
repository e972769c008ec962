"""A folder of predictions in parts: `part-000000.parquet` and so on, in the order of the documents.

A part appears whole or not at all, and holds the hash of the documents that it answers. So a run
that was stopped goes on: a part with the right hash is finished, any other is made again.
`_run.json` says what the parts were made with, and at the end how many documents there are.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

from longtail.data import Dataset
from longtail.errors import ParameterError
from longtail.runtime.store import locked
from longtail.runtime.unfinished import unfinished_file
from longtail.storage import RemotePath
from longtail.visible import as_json

RUN = "_run.json"  # readers of a folder of Parquet files leave out names that begin so
DOCUMENTS = b"longtail.documents"  # in the metadata of a part
_PART = re.compile(r"part-(\d{6,})\.parquet")


class PartsFolder:
    """The folder that a run writes."""

    def __init__(self, path: Path, made_with: Mapping[str, Any]) -> None:
        self.path, self.made_with = path, json.loads(json.dumps(made_with))

    @contextmanager
    def opened(self, *, overwrite: bool) -> Iterator[None]:
        """Make the folder, or make sure that its parts are of the same run; for us alone."""
        if isinstance(self.path, RemotePath):
            self.path.check_writable()
        elif not self.path.parent.is_dir():
            raise ParameterError(
                f"{self.path} cannot be written: there is no folder {self.path.parent}"
            )
        with locked(self.path):
            self._prepare(overwrite=overwrite)
            yield

    def _prepare(self, *, overwrite: bool) -> None:
        if self.path.exists():
            if not self.path.is_dir():
                raise ParameterError(f"{self.path} is a file; with --cluster, --out is a folder")
            before = self._read_run()
            is_same = before is not None and before.get("made with") == self.made_with
            if any(self.path.iterdir()) and (overwrite or not is_same):
                if not overwrite or before is None:
                    what = "other files" if before is None else _say_change(before, self.made_with)
                    hint = "" if before is None else ", or add --overwrite"
                    raise ParameterError(
                        f"{self.path} already exists, with {what}; choose another --out{hint}"
                    )
                self._remove()
        self.path.mkdir(exist_ok=True)
        for left in self.path.glob(".part-*.tmp"):
            left.unlink()
        self._write_run({"made with": self.made_with})

    def _remove(self) -> None:
        if isinstance(self.path, RemotePath):
            self.path.remove_all()
        else:
            rmtree(self.path)

    def _read_run(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.path / RUN).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _write_run(self, run: Mapping[str, Any]) -> None:
        with unfinished_file(self.path / RUN) as place:
            place.write_text(as_json(run, indent=2) + "\n")

    def name_part(self, number: int) -> Path:
        """Return where a part lies."""
        return self.path / f"part-{number:06}.parquet"

    def read_schema(self, number: int, digest: str) -> Any:
        """Return the columns of a part that answers the documents of `digest`; else None."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self.name_part(number).open("rb") as file:
                schema = pq.read_schema(file)
        except (OSError, pa.ArrowException):
            return None
        return schema if (schema.metadata or {}).get(DOCUMENTS) == digest.encode() else None

    def write(self, number: int, contents: bytes) -> None:
        """Write a part."""
        with unfinished_file(self.name_part(number)) as place:
            place.write_bytes(contents)

    def finish(self, n_parts: int, n_documents: int) -> None:
        """Remove parts of a run over more documents, and say that all are there."""
        for file in self.path.iterdir():
            name = _PART.fullmatch(file.name)
            if name and int(name[1]) >= n_parts:
                file.unlink()
        counts = {"documents": n_documents, "parts": n_parts}
        self._write_run({"made with": self.made_with, **counts})


def _say_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say what differs between the run that made a folder and this one."""
    old = before.get("made with")
    old = old if isinstance(old, dict) else {}
    changed = [name for name in now if old.get(name) != now[name]]
    return f"predictions of another run (with another {', '.join(changed) or 'format'})"


def hash_documents(batches: Sequence[Dataset]) -> str:
    """Return a hash of documents, with their ids and all columns that are kept."""
    digest = hashlib.blake2b(digest_size=16)
    for batch in batches:
        digest.update(f"{len(batch)}\n".encode())
        if batch.X is not None:
            for array in (batch.X.indptr, batch.X.indices, batch.X.data):
                digest.update(array.tobytes())
        for values in (batch.texts, batch.ids):
            for value in values or ():
                digest.update(value.encode(errors="surrogatepass") + b"\0")
        if batch.columns is not None:
            digest.update(repr(sorted(batch.columns.items())).encode(errors="surrogatepass"))
    return digest.hexdigest()
