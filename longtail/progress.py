"""How long-running work reports where it stands, without knowing who listens."""

from typing import Protocol


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
