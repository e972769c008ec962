"""Where results go: stdout, or a file that appears whole or not at all."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from longtail.errors import ParameterError


def check_output(path: Path | None, *, overwrite: bool) -> None:
    """Make sure that `path` can be written, before any work goes into it."""
    if path is None:
        return
    if path.is_dir():
        raise ParameterError(f"{path} is a folder; --out must be a file")
    if path.exists() and not overwrite:
        raise ParameterError(f"{path} already exists; choose another --out, or add --overwrite")
    if not path.parent.is_dir():
        raise ParameterError(f"{path} cannot be written: there is no folder {path.parent}")


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open stdout for None, else a file that gets its name `path` only when all went well."""
    if path is None:
        yield sys.stdout
        return
    if path.exists() and not path.is_file():  # /dev/null or a named pipe
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
