"""`longtail feedback`: what people corrected, as documents to learn from, and counted."""

from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.exits import Commands, if_interrupted
from longtail.cli.output import check_apart, check_json, check_output, open_output, write_json
from longtail.cli.terminal import echo, echo_block
from longtail.errors import ParameterError
from longtail.visible import spell_count

app = typer.Typer(
    name="feedback",
    cls=Commands,
    rich_markup_mode=None,
    help="Export and count what people accepted and rejected.",
)

STORE = typer.Argument(metavar="FILE.db", help="What longtail serve --feedback wrote.")
MODEL = typer.Option(metavar="NAME", help="Only feedback on this model.")


@app.callback(invoke_without_command=True)
def start(ctx: typer.Context) -> None:
    """Export and count what people accepted and rejected."""
    if ctx.invoked_subcommand is None:
        echo_block(ctx.get_help())


@app.command()
def export(
    path: Annotated[Path, STORE],
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="A new file.")],
    model: Annotated[str | None, MODEL] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT.jsonl if it exists.")
    ] = False,
) -> None:
    """Write the corrected documents as JSON lines, which train and update read.

    `labels` are those that were accepted or added. Of several corrections of one text the last one
    is written.
    """
    check_apart(out, "OUT", path)
    check_output(out, "OUT", overwrite=overwrite)
    from longtail.serve.feedback import keep_last, read_feedback
    from longtail.visible import as_json

    corrections = keep_last(list(read_feedback(path, model).values()))
    with if_interrupted(f"{out} was not written."), open_output(out) as file:
        file.writelines(as_json(each.to_dict()) + "\n" for each in corrections)
    n = len(corrections)
    echo(f"{spell_count(n, 'document')} {'is' if n == 1 else 'are'} in {out}")


@app.command()
def report(
    path: Annotated[Path, STORE],
    model: Annotated[str | None, MODEL] = None,
    n: Annotated[int, typer.Option("-n", metavar="N", help="How many labels to name.")] = 10,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the counts as JSON; - for stdout.")
    ] = None,
) -> None:
    """Show how many suggestions were right, month by month, and which labels were corrected."""
    from longtail.cli.show import feedback_blocks, show
    from longtail.serve.feedback import count_feedback, read_feedback

    if n < 0:
        raise ParameterError(f"-n must be at least 0. Got {n} instead.")
    check_apart(json, "--json", path)
    check_json(json)
    found = count_feedback(list(read_feedback(path, model).values()), n)
    write_json(found.to_dict(), json)
    if json != "-":
        show(*feedback_blocks(found))
