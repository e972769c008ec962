"""The one door to the terminal: whatever passes it has its hidden characters spelled out."""

import sys
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

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
