"""`longtail data`: look at a data set, or write it in another format."""

from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.exits import Commands, if_interrupted
from longtail.cli.output import check_json, write_json
from longtail.cli.terminal import echo_block

app = typer.Typer(
    name="data", cls=Commands, rich_markup_mode=None, help="Look at data sets and convert them."
)


@app.callback(invoke_without_command=True)
def start(ctx: typer.Context) -> None:
    """Look at data sets and convert them."""
    if ctx.invoked_subcommand is None:
        echo_block(ctx.get_help())


FORMAT = typer.Option(
    metavar="NAME",
    help="The format of DATA, if it is not recognized: jsonl, csv, tsv, parquet, fasttext, sparse.",
)


@app.command()
def info(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A file or folder in any readable format.")
    ],
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the counts as JSON; - for stdout.")
    ] = None,
    format: Annotated[str | None, FORMAT] = None,
) -> None:
    """Show counts, frequency bands and problems."""
    from longtail.cli.show import description_blocks, show
    from longtail.data import load
    from longtail.data.describe import describe

    check_json(json)
    description = describe(load(data, format=format))
    write_json(description.as_dict(), json)
    if json != "-":
        show(*description_blocks(description))


@app.command()
def convert(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A file or folder in any readable format.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new file or folder.")],
    format: Annotated[str | None, FORMAT] = None,
) -> None:
    """Write a data set in another format.

    The name of OUT says which: x.jsonl, x.csv, x.tsv, x.parquet, x.txt (fastText for texts, sparse
    rows for features), each but Parquet also with .gz, or a folder for training and test split.
    """
    from longtail.cli.show import show
    from longtail.data.writer import convert

    with if_interrupted(f"{out} was not written."):
        splits = convert(data, out, format=format)
    n_documents = sum(len(split) for split in splits if split is not None)
    show(f"{n_documents:,} documents with {splits.train.n_labels:,} labels are in {out}")
