"""Every error a user can cause; none of them knows the command line or the server.

A message says what is wrong, where, what was found, and what to do about it.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class LongtailError(Exception):
    """The root of all errors that this package raises on purpose."""


class DataError(LongtailError):
    """The data cannot be used as it is; carries the file and the line where that is known."""

    def __init__(self, message: str, *, path: str | Path | None = None, line: int | None = None):
        self.path = Path(path) if isinstance(path, str) else path
        self.line = line
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + message)


class ParameterError(LongtailError, ValueError):
    """A parameter has a name that does not exist or a value outside its range."""


class NotFittedError(LongtailError):
    """The model has to be trained before it can do this."""


class ModelFileError(LongtailError):
    """A model folder is incomplete, altered, from a newer version, or not a model at all."""


class StorageError(LongtailError, OSError):
    """A storage named by a URL does not do what is asked; as any OSError, with its file."""

    def __str__(self) -> str:
        """Return the URL and what is wrong."""
        return f"{self.filename}: {self.strerror}"


class TrainingError(LongtailError):
    """Training cannot go on, such as with a loss that is not a number."""


class LostProcessError(LongtailError):
    """Another of the processes that train together cannot be reached."""


class MemoryPlanError(ParameterError):
    """Training with these parameters will not fit into memory; the message says what will."""


class MissingExtraError(LongtailError, ImportError):
    """An optional package is missing; the message holds the pip command that installs it."""

    @classmethod
    def of(cls, what: str, extra: str) -> "MissingExtraError":
        """Return the error for what a package is missing for, such as "GLaS needs torch"."""
        return cls(f"{what}, which is not installed; {install_hint(extra)}")


def install_hint(extra: str) -> str:
    """Return how to install an extra; no index has the package yet, so from its source."""
    return f"install it with: pip install '.[{extra}]', in the folder with longtail's source"


def reraise_interrupt(error: BaseException) -> None:
    """Raise KeyboardInterrupt if one is behind `error`: compiled code makes a SystemError of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        cause = cause.__cause__ or cause.__context__


def suggest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name nearest to `name`, or an empty string."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
