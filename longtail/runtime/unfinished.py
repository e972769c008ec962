"""A single file that appears whole or not at all, on a disk or at a URL."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from longtail.storage import RemotePath

FULL = (errno.ENOSPC, errno.EDQUOT)


def is_special(path: Path) -> bool:
    """Whether `path` is there and no plain file, such as /dev/null or a named pipe."""
    return not isinstance(path, RemotePath) and path.exists() and not path.is_file()


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """Return where to write what gets its name `path` only when all went well."""
    if is_special(path):
        yield path
        return
    if isinstance(path, RemotePath):
        with TemporaryDirectory(prefix="longtail-") as folder:
            unfinished = Path(folder) / path.name
            yield unfinished
            path.put(unfinished)
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.touch(exist_ok=False)
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        if error.filename == str(unfinished) or (error.filename is None and error.errno in FULL):
            error.filename = str(path)  # the name that people know
        raise
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
