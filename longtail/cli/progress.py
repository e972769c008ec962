"""Progress of a command, which Ctrl-C stops at its next step."""

from longtail.bars import Bars, Lines, choose_progress
from longtail.cli.exits import stop_if_pressed


def show_progress() -> Bars | Lines:
    """Return the progress that suits stderr, to be used in a `with` statement."""
    return choose_progress(stop_if_pressed)
