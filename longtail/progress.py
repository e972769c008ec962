"""How long-running work reports where it stands, without knowing who listens."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from longtail.errors import LongtailError, ParameterError

TRAINING = "training"  # the stage of the training loop, which advances by documents


class Progress(Protocol):
    """Receives the stages of a piece of work; the command line shows them as bars."""

    def stage(self, name: str, total: float) -> None:
        """Begin the stage `name`, which is done after `total` units of work."""

    def advance(self, amount: float) -> None:
        """Report `amount` more units of the current stage as done."""

    def note(self, text: str) -> None:
        """Show where the current stage stands, such as its loss, in place of the last note."""

    def say(self, text: str) -> None:
        """Show a line that stays, such as what training will take."""


class Silent:
    """A Progress that shows nothing."""

    def stage(self, name: str, total: float) -> None:
        """Show nothing."""

    def advance(self, amount: float) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""


SILENT = Silent()


def shown(progress: Progress | bool) -> AbstractContextManager[Progress]:
    """Return what `progress` means, for a `with` statement: True is bars, or lines in a log."""
    if progress is True:
        from longtail.bars import choose_progress

        return choose_progress(shown_after=0)
    if progress is False:
        return nullcontext(SILENT)
    if not hasattr(progress, "stage"):
        raise ParameterError(
            "The 'progress' parameter must be True, False or a longtail.progress.Progress. "
            f"Got {progress!r:.40} instead."
        )
    return nullcontext(progress)


class OutOfTimeError(LongtailError):
    """The time that the work may take is over."""


class DeadlineProgress:
    """A Progress that shows stages under a name, and stops the work when its time is over.

    It also stops where `is_ended` says so: Ctrl-C reaches the main thread alone.
    """

    def __init__(
        self,
        progress: Progress,
        name: str,
        deadline: float,
        is_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self.progress, self.name, self.deadline = progress, name, deadline
        self.is_ended = is_ended

    def _check(self) -> None:
        if self.is_ended():
            raise OutOfTimeError("the training was stopped")
        if time.monotonic() > self.deadline:
            raise OutOfTimeError("the budget is spent")

    def stage(self, name: str, total: float) -> None:
        """Begin a stage, if there is time."""
        self._check()
        self.progress.stage(f"{self.name}: {name}", total)

    def advance(self, amount: float) -> None:
        """Go on, if there is time."""
        self._check()
        self.progress.advance(amount)

    def note(self, text: str) -> None:
        """Show where the stage stands."""
        self.progress.note(text)

    def say(self, text: str) -> None:
        """Show nothing: whoever set the deadline says what matters."""
