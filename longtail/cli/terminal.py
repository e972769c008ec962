"""The standard streams of a command, and the door to the terminal (`longtail.terminal`)."""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from longtail.errors import LongtailError
from longtail.terminal import echo, echo_block, is_terminal, open_console

__all__ = [
    "echo",
    "echo_block",
    "flush",
    "is_terminal",
    "mend_streams",
    "open_console",
    "open_stdin",
    "open_stdout",
    "silence",
]


class Unheard(io.TextIOWrapper):
    """Standard error that may be full, or have no reader left: what it cannot take is lost.

    Nobody's training should end because its progress finds no listener any more.
    """

    def write(self, text: str) -> int:
        """Write as far as that is possible."""
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush as far as that is possible."""
        with suppress(OSError):
            super().flush()


def mend_streams() -> None:
    """Make the standard streams usable whatever they are; Python has None for a closed one."""
    if type(sys.stderr) is io.TextIOWrapper:
        encoding = sys.stderr.encoding
        sys.stderr = Unheard(sys.stderr.detach(), encoding, "backslashreplace", line_buffering=True)
    for number in range(3):  # or the next file that is opened would become standard output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show ä must not stop us
        sys.stdout.reconfigure(errors="backslashreplace")


def open_stdout() -> TextIO:
    """Return standard output, to write results to."""
    if sys.stdout is None:
        raise LongtailError("standard output is closed; write to a file instead, or to a pipe")
    return sys.stdout


def open_stdin() -> TextIO:
    """Return standard input, to read documents from."""
    if sys.stdin is None:
        raise LongtailError("standard input is closed; name a file instead of -")
    return sys.stdin


def flush() -> None:
    """Write out what standard output still holds."""
    if sys.stdout is not None:
        sys.stdout.flush()


def silence() -> None:
    """Send what is still buffered nowhere, or Python would complain about it when it ends."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            _redirect_to_nowhere(stream)


def _redirect_to_nowhere(stream: TextIO) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return
