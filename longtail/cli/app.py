"""The `longtail` command: its subcommands and the options they share."""

import atexit
import signal
import warnings
from typing import Annotated

import typer

from longtail.cli.calibrate import calibrate
from longtail.cli.compare import compare
from longtail.cli.data import app as data_app
from longtail.cli.demo import demo
from longtail.cli.evaluate import evaluate
from longtail.cli.exits import INTERRUPTED, Commands, quit_now
from longtail.cli.explain import explain
from longtail.cli.feedback import app as feedback_app
from longtail.cli.info import info
from longtail.cli.labels import labels
from longtail.cli.models import models
from longtail.cli.places import takes_urls
from longtail.cli.plan import plan
from longtail.cli.predict import predict
from longtail.cli.serve import serve
from longtail.cli.terminal import echo, mend_streams
from longtail.cli.train import train
from longtail.cli.update import update
from longtail.cli.verify import verify
from longtail.cli.vocab import app as vocab_app
from longtail.version import __version__
from longtail.visible import visible

FIRST_STEPS = (
    "longtail gives each document the right few out of thousands to millions of labels.",
    "",
    "  longtail demo                               try it on data that come with it",
    "  longtail train DATA --out MODEL             learn from your labelled documents",
    "  longtail predict MODEL NEW --out OUT.csv    label new ones",
    "",
    "longtail --help lists all commands, longtail COMMAND --help explains one, and",
    "longtail --install-completion lets the Tab key complete them.",
)

app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,  # plain help needs half the time and pipes well
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(models)
app.add_typer(data_app)
app.command()(takes_urls(train))
app.command()(takes_urls(evaluate))
app.command()(takes_urls(calibrate))
app.command()(takes_urls(predict))
app.command()(takes_urls(compare))
app.command()(plan)
app.command()(takes_urls(explain))
app.command()(takes_urls(update))
app.command()(takes_urls(serve))
app.add_typer(feedback_app)
app.command()(takes_urls(info))
app.command()(takes_urls(verify))
app.add_typer(vocab_app)
app.command()(takes_urls(labels))


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="LONGTAIL_DEBUG", help="Show the traceback of an error."),
    ] = False,
) -> None:
    """Give each document the right few out of thousands to millions of labels."""
    if version:
        echo(f"longtail {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        echo(*FIRST_STEPS)


def main() -> None:
    """Run the command line and exit."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {visible(str(message))}\n"
    mend_streams()
    try:
        app(prog_name="longtail")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            quit_now(INTERRUPTED)
        # The command is done: a Ctrl-C while Python ends must not look like a failure.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        raise
