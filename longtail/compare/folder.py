"""The folder of a comparison: which runs are finished, and whether it can be continued.

REPORT/
    comparison.json         identifies the data
    runs/NAME/seed-0/       job.json, run.json, top.npz, output.txt
    runs/NAME/missing=0.2-seed-0/   the same, of a run with --noise
    models/NAME/seed-0/     the trained models, with --keep-models
    results.json  table.md  report.html
    scratch/                only while it runs
"""

import hashlib
import json
import re
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from longtail.compare.process import Job
from longtail.errors import LongtailError, ParameterError
from longtail.runtime.store import download_folder, upload_folder
from longtail.runtime.store.cache import stand_in
from longtail.storage import RemotePath
from longtail.topk import TopK

IDENTITY = "comparison.json"
RESULTS = "results.json"
FINISHED = "run.json"  # what a run measured; written last
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,+-]+")


class ReportFolder:
    """Where a comparison keeps its finished runs."""

    def __init__(self, out: Path) -> None:
        # What is to be at a URL is made in the cache, from where it is uploaded when it is done.
        self.place = out if isinstance(out, RemotePath) else None
        self.path = out if self.place is None else stand_in(self.place, "reports")
        self.shown = out

    @property
    def scratch(self) -> Path:
        """Where the documents are that methods read."""
        return self.path / "scratch"

    def open(self, identity: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Make the folder, or continue the comparison that is there.

        Raises:
            ParameterError: the path holds something else, or a comparison on other data.
        """
        if self.place is not None:
            self._borrow(self.place, resume=resume, overwrite=overwrite)
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ParameterError(f"{self.shown} is not a folder; choose another --out")
        holds = self.path.is_dir() and any(self.path.iterdir())
        if holds and not (self.path / IDENTITY).is_file():
            raise self._refuse_other()
        if holds and overwrite:
            shutil.rmtree(self.path)
        elif holds:
            self._check_same(identity, resume)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / IDENTITY, json.dumps(identity, indent=1))
            shutil.rmtree(self.scratch, ignore_errors=True)
        except OSError as error:
            raise LongtailError(f"{self.path}: cannot write here: {error.strerror}") from error

    def _borrow(self, place: RemotePath, *, resume: bool, overwrite: bool) -> None:
        """Make sure that a URL can be written, and fetch the comparison that is to go on there."""
        place.check_writable()
        if self.path.exists() or not place.exists():  # one that was interrupted, or none
            return
        if not (place / IDENTITY).exists():
            raise self._refuse_other()
        if not (resume or overwrite):
            raise self._refuse_second()
        if not overwrite:
            download_folder(place, self.path)

    def publish(self) -> None:
        """Upload what is to be at a URL, results last; nothing of an earlier comparison stays."""
        if self.place is not None:
            self.place.remove_all()
            upload_folder(self.path, self.place, RESULTS)
            shutil.rmtree(self.path)

    def _refuse_other(self) -> ParameterError:
        return ParameterError(
            f"{self.shown} already exists and holds no comparison; choose another --out"
        )

    def _refuse_second(self) -> ParameterError:
        return ParameterError(
            f"{self.shown} already holds a comparison; add --resume to continue it, "
            "--overwrite to start again, or choose another --out"
        )

    def _check_same(self, identity: dict[str, Any], resume: bool) -> None:
        if not resume:
            raise self._refuse_second()
        try:
            earlier = json.loads((self.path / IDENTITY).read_text())
        except ValueError:
            earlier = None
        if earlier != identity:
            raise ParameterError(
                f"{self.shown} holds a comparison on other documents, so it cannot be "
                "continued; choose another --out, or add --overwrite to start again"
            )

    def run_folder(self, name: str, seed: int, noise: str = "") -> Path:
        """Return the folder of one run."""
        return self.path / "runs" / as_file_name(name) / f"{noise}{'-' * bool(noise)}seed-{seed}"

    def begin(self, job: Job, contents: dict[str, Any]) -> None:
        """Record what a run will do; the files of an earlier attempt at the same run stay."""
        if _read(job.out / "job.json") != contents:
            shutil.rmtree(job.out, ignore_errors=True)
        job.out.mkdir(parents=True, exist_ok=True)
        write_whole(job.out / "job.json", json.dumps(contents, indent=1))

    def finish(self, job: Job, measured: dict[str, Any], *, keep_model: bool) -> None:
        """Record that a run is finished; remove its checkpoints, and its model unless kept."""
        if keep_model:
            kept = self.path / "models" / job.out.relative_to(self.path / "runs")
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(job.out / "model", kept)
        write_whole(job.out / FINISHED, json.dumps(measured, indent=1))
        for name in ("model", "training", "measured.json"):
            _remove(job.out / name)

    def find_finished(self, out: Path, contents: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a finished run with these contents measured, None if there is none."""
        measured = _read(out / FINISHED)
        if measured is None or _read(out / "job.json") != contents or read_top(out) is None:
            return None
        return measured


def read_top(out: Path) -> TopK | None:
    """Return the predictions of a run, None if there are none."""
    try:
        with np.load(out / "top.npz", allow_pickle=False) as found:
            return TopK(found["labels"], found["scores"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
    unfinished.replace(path)


def as_file_name(name: str) -> str:
    """Return the name of a method as the name of a folder, which no other method's is."""
    plain = _UNSAFE.sub("-", name).strip(".-") or "method"
    readable = name.replace(":", "-", 1) if "=" in name else name.replace(" ", "-")
    if plain == readable:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        contents: dict[str, Any] = json.loads(path.read_text())
        return contents
    return None
