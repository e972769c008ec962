"""`longtail data`: look at a data set, or write it in another format."""

from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.exits import Commands

app = typer.Typer(
    name="data", cls=Commands, rich_markup_mode=None, help="Look at data sets and convert them."
)


@app.callback(invoke_without_command=True)
def start(ctx: typer.Context) -> None:
    """Look at data sets and convert them."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def info(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A file or folder in any readable format.")
    ],
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the counts as JSON; - for stdout.")
    ] = None,
) -> None:
    """Show counts, frequency bands and problems."""
    from longtail.cli.show import description_parts, show, write_json
    from longtail.data import describe, load

    description = describe(load(data))
    if json is not None:
        write_json(description.as_dict(), json)
    if json != "-":
        show(*description_parts(description))
