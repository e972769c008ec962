"""The options that every command which reads documents has, out of `longtail.reading`."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.terminal import echo
from longtail.reading import ReadOptions, option_table

if TYPE_CHECKING:
    from longtail.models.base import Model


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how its input is read; it gets them as `reading`."""
    options = [
        inspect.Parameter(
            each["name"],
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(f"--{each['name']}", metavar=each["metavar"], help=each["help"]),
            ],
        )
        for each in option_table()
    ]
    own = inspect.signature(command)
    others = [each for each in own.parameters.values() if each.name != "reading"]

    @wraps(command)
    def run(**given: Any) -> None:
        said = {option.name: given.pop(option.name) for option in options}
        command(**given, reading=ReadOptions(**said))

    # typer reads the options of a command from these two.
    run.__signature__ = own.replace(parameters=[*others, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*others, *options)}
    return run


def as_trained(reading: ReadOptions, model: "Model") -> ReadOptions:
    """Return the options, by which the columns of the model's training are taken where there."""
    return replace(reading, like=model.columns_)


def say_reading(read_as: str) -> None:
    """Say on stderr how the input was read, where something was guessed."""
    if read_as:
        echo(f"Note: {read_as}", err=True)
