"""An attack: one kind of hostile input, of which every seed makes a case."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Literal, NamedTuple

Outcome = Literal["answered", "refused"]
Attempt = Callable[[Random], Outcome]


class Attack(NamedTuple):
    """A promise, and how to try to break it.

    Attributes:
        name: what `--only` calls it.
        promise: what holds for every case, one sentence.
        prepare: is called once with an empty folder of its own, and returns what tries one case:
            "answered" if longtail did what was asked, rightly; "refused" if it said in one of its
            own errors why not. Whatever is raised is a failure, and so is a crash or a hang.
        seconds: how long one case may take.
        environment: variables of the process that tries it.
    """

    name: str
    promise: str
    prepare: Callable[[Path], Attempt]
    seconds: float = 20.0
    environment: Mapping[str, str] = MappingProxyType({})
