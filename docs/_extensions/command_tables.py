"""Reference of the commands, out of the code of the command line.

    ```{command} data convert
    ```

shows how a command is called, what it does, and its arguments and options with their defaults. A
command that does not exist is an error.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
from docutils import nodes
from parameter_tables import build_table, mark_code
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from longtail.cli import app as longtail


@cache
def read_commands() -> dict[str, Any]:
    """Return all commands by their names, such as `train` and `data info`."""
    return dict(_walk(typer.main.get_command(longtail), ""))


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for below, each in command.commands.items():
        if not each.hidden:
            yield from _walk(each, f"{name} {below}".strip())


def read_options(name: str) -> list[tuple[str, str, str]]:
    """Return how each argument and option of a command is written, its default and its meaning."""
    command = read_commands()[name]
    context = typer.Context(command, info_name=name)
    records = [each.get_help_record(context) for each in command.params]
    return [_split(*record) for record in records if record is not None]  # None is a hidden one


def _split(written: str, help_text: str) -> tuple[str, str, str]:
    """Take default and type, which help pages show in brackets, out of the texts."""
    found = re.search(r"\s*\[(?:default: (.*)|(required))\]$", help_text)
    default = (found[1] or found[2]) if found else ""
    meaning = help_text[: found.start()] if found else help_text
    if not written.startswith("-"):
        written = re.sub(r" <.*>$", "", written)
    return written, default, meaning


def write_usage(name: str) -> str:
    """Return the line that calls a command with what it must be given."""
    options = read_options(name)
    arguments = [
        written if default == "required" or written[0] == "[" else f"[{written}]"
        for written, default, _ in options
        if written[0] != "-"
    ]
    needed = [
        written for written, default, _ in options if written[0] == "-" and default == "required"
    ]
    return " ".join(["longtail", name, *arguments, *needed, "[OPTIONS]"])


class Command(SphinxDirective):
    """`{command} NAME`: usage, description, arguments and options."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the usage line, the description and the table."""
        name = self.arguments[0]
        if name not in read_commands():
            raise self.error(f"there is no command '{name}'")
        usage = nodes.literal_block(text=write_usage(name), language="text")
        paragraphs = (read_commands()[name].help or "").split("\n\n")
        about = [nodes.paragraph("", "", *mark_code(" ".join(p.split()))) for p in paragraphs]
        rows = read_options(name)
        table = [build_table(("option", "default", "meaning"), (28, 12, 60), rows)] if rows else []
        return [usage, *about, *table]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
