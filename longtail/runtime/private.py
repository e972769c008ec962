"""Folders of the user's own among the temporary files, where others may put what they like."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def name_private(what: str) -> Path:
    """Return the path of the user's folder for something; OSError where there can be none."""
    if not hasattr(os, "getuid"):  # Windows, where users have a folder of their own
        raise OSError("users have no numbers here")
    return Path(tempfile.gettempdir()) / f"longtail-{what}-{os.getuid()}"


def make_private(folder: Path) -> None:
    """Make a folder for this user alone; OSError if what bears its name may be another's.

    Whoever can write there can change what we read: code that runs, or a model.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_closed = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_closed):
        raise OSError(f"{folder} may be another user's")
