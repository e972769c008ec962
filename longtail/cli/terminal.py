"""The one door to the terminal: whatever passes it has its hidden characters spelled out."""

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from longtail.errors import LongtailError
from longtail.visible import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console


def echo(*lines: str, err: bool = False) -> None:
    """Print each of `lines` as one line on stdout, or on stderr."""
    for line in lines:
        _echo(visible(line), err)


def echo_block(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, such as a help page."""
    _echo(visible_lines(text), err)


def _echo(text: str, err: bool) -> None:
    # Named, as typer would else open the stream anew where the locale is a poor one.
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        typer.echo(text, file=stream)


def open_console(*, err: bool = False) -> "Console":
    """Return what prints tables and colors on stdout, or on stderr."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """Takes every text as it is: `[x]` is a label, not markup, and so is `:beer:`."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # rich would end the process, with another exit code

    stream = sys.stderr if err else sys.stdout
    return Plain(file=stream, markup=False, emoji=False, highlight=False, quiet=stream is None)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people see what is written to `stream`."""
    return stream is not None and stream.isatty()


# -- streams that are not there ---------------------------------------------------------------


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
