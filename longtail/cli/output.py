"""Where results go: stdout, or a file that appears whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from longtail.cli.terminal import open_stdout
from longtail.errors import ParameterError
from longtail.runtime.unfinished import unfinished_file
from longtail.storage import RemotePath, as_place
from longtail.visible import as_json


def check_output(path: Path | None, option: str, *, overwrite: bool) -> None:
    """Make sure that the file `path` of `option` can be written, before work goes into it."""
    if path is None:
        return
    path = as_place(path)
    if path.is_dir():
        raise ParameterError(f"{path} is a folder; {option} must be a file")
    if path.exists() and not overwrite:
        raise ParameterError(f"{path} already exists; choose another {option}, or add --overwrite")
    if isinstance(path, RemotePath):
        path.check_writable()
    elif not path.parent.is_dir():
        raise ParameterError(f"{path} cannot be written: there is no folder {path.parent}")


def check_apart(path: str | Path | None, option: str, source: str | Path) -> None:
    """Make sure that the results do not replace the file that they come from."""
    if path is None or path == "-":
        return
    place, read = as_place(path), as_place(source)
    if isinstance(place, RemotePath) or isinstance(read, RemotePath):
        return
    if place.is_file() and place.resolve() == read.resolve():
        raise ParameterError(f"{path} is what is read; choose another {option}")


def check_json(path: str | None) -> None:
    """Make sure that `--json` can be written; unlike --out it replaces what is there."""
    if path == "-":
        open_stdout()
    else:
        check_output(None if path is None else as_place(path), "--json", overwrite=True)


def write_json(value: Any, path: str | None) -> None:
    """Write `value` as JSON into the file `path`, on stdout for "-", nowhere for None."""
    if path is None:
        return
    with open_output(None if path == "-" else as_place(path)) as file:
        file.write(as_json(value, indent=2) + "\n")


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open stdout for None, else a file that gets its name `path` only when all went well."""
    if path is None:
        yield open_stdout()
        return
    # Half of a surrogate pair, which JSON can hold and UTF-8 cannot, stays its JSON escape.
    with (
        unfinished_file(path) as place,
        place.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        yield file
