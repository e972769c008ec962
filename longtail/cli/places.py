"""URLs where a command takes a path: data, models and results that lie in a storage."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from longtail.storage import as_place


def takes_urls(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command get, for each path that is a URL, what reads and writes there."""

    @wraps(command)
    def run(**given: Any) -> None:
        command(**{name: _locate(value) for name, value in given.items()})

    return run


def _locate(value: Any) -> Any:
    if isinstance(value, Path):
        return as_place(value)
    return [_locate(each) for each in value] if isinstance(value, list) else value
