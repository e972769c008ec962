"""`longtail compare`: train several methods on the same documents and write one report."""

import sys
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longtail.bars import Bars, Lines
from longtail.cli.exits import if_interrupted, stop_if_pressed
from longtail.cli.reading import reads, say_reading
from longtail.cli.settings import parse_pairs
from longtail.cli.terminal import echo, is_terminal
from longtail.errors import LongtailError, ParameterError
from longtail.reading import ReadOptions

if TYPE_CHECKING:
    from longtail.compare.folder import ReportFolder

Device = Literal["auto", "cpu", "cuda"]

MOST_SEEDS = 1000


@reads
def compare(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A file, folder or URL; both its splits.")
    ],
    models: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Such as linear,glas:preset=fast,dim=64; see `longtail models`."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="REPORT", help="The folder to write the report in.")
    ],
    valid: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Measure on this share of the training documents, not on the test split; "
            "0.2 if there is no test split.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first seed, or the only one; 0 if not given."),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="How many seeds, counted up from --seed, or a list (3,5,8): every method is "
            "trained with each, and shown as mean ± standard deviation.",
        ),
    ] = "1",
    noise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=RATES",
            help="Also train with spoiled labels: missing=0.2,0.4,0.6 removes 20, 40 and 60 % "
            "of them; may be repeated.",
        ),
    ] = None,
    noise_invalid: Annotated[
        str | None,
        typer.Option(
            metavar="RATES", help="The same, with a wrong label in place of each removed one."
        ),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also run omikuji, napkinxc and libpecos, if installed.")
    ] = False,
    peers_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Look for peers in DIR/PACKAGE, each an environment of its own."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="MODEL.KEY=VALUE", help="A parameter; may be repeated."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Training time for models that plan it, such as 10m."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop a method that takes longer than this."),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(help="Where torch trains; a GPU if there is one."),
    ] = None,
    propensity: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Constants of the PS metrics: default, wikipedia or amazon."
        ),
    ] = "default",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="How many threads; all cores unless given.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", help="Run so many methods at once, which share the threads.")
    ] = 1,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Run methods on a Ray cluster: local, auto or ray://HOST:10001; a node each, "
            "unless --threads gives them fewer cores.",
        ),
    ] = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep the trained models in REPORT/models.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a comparison, or add methods to it.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the comparison that is in --out.")
    ] = False,
    *,
    reading: ReadOptions,
) -> None:
    """Compare models, and peers, on the same documents.

    Every method is trained in its own process on the training split of DATA and measured on the
    test split. REPORT gets report.html (one page that works offline), table.md, results.json and
    the predictions of every method. A method that fails is reported, and the others go on.
    --resume continues after an interruption; it also accepts more models.
    With --noise, a fifth of the training documents stays clean and is not trained on; the labels of
    the others are spoiled at each rate, and the report shows what that costs each method.
    """
    from longtail.compare.noise import parse_noise
    from longtail.compare.recipe import compare, open_folder, prepare

    if cluster is not None:
        from longtail.cluster import check_address

        check_address(cluster)
        if jobs != 1:
            raise ParameterError("--jobs follows from the cores of --cluster; leave it out")
    comparison = prepare(
        data,
        models,
        valid=valid,
        seeds=_parse_seeds(seeds, seed),
        peers=peers,
        peers_from=peers_from,
        settings=parse_pairs(settings or []),
        budget=budget,
        timeout=timeout,
        device=device,
        propensity=propensity,
        threads=threads,
        jobs=jobs,
        keep_models=keep_models,
        noises=parse_noise(noise or [], noise_invalid),
        reading=reading,
    )
    say_reading(comparison.split.train.read_as)
    for each in comparison.missing:
        echo(f"Note: {each.package} is not installed ({each.command}).", err=True)
    folder = open_folder(out, comparison, resume=resume, overwrite=overwrite)
    bars = ComparisonBars(len(comparison.entries)) if is_terminal(sys.stderr) else None
    with (
        if_interrupted(lambda: _say_what_is_kept(folder)),
        bars or Lines(stop_if_pressed) as progress,
    ):
        results = compare(
            comparison,
            folder,
            data,
            command=join(["longtail", *sys.argv[1:]]),
            progress=progress,
            after_run=bars.finish_run if bars else lambda: None,
            cluster=cluster,
        )
    _conclude(results, out)


class ComparisonBars(Bars):
    """A bar for the whole comparison, and below it one for the current stage."""

    def __init__(self, n_runs: int) -> None:
        super().__init__(stop_if_pressed)
        self._whole = self._bars.add_task("the whole comparison", total=n_runs, note="")

    def finish_run(self) -> None:
        """Move the upper bar."""
        self._bars.advance(self._whole)

    def _finish(self) -> None:
        """Remove the bar of a finished stage: there are too many to keep them all."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = None


def _parse_seeds(text: str, first: int | None) -> list[int]:
    """Return the seeds of a list, or as many as `text` says, counted up from `first`."""
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) > 1 and first is not None:
        raise ParameterError("--seed is the first of a number of seeds; leave it out beside a list")
    if len(numbers) == 1 and 1 <= numbers[0] <= MOST_SEEDS:
        begin = 0 if first is None else first
        numbers = list(range(begin, begin + numbers[0]))
    elif len(numbers) < 2 or len(set(numbers)) < len(numbers):
        raise ParameterError(
            f"--seeds must be how many there are, from 1 to {MOST_SEEDS}, or a list of different "
            f"ones, such as 3,5,8. Got '{text}' instead."
        )
    for number in numbers:
        if not 0 <= number < 2**32:
            raise ParameterError(f"A seed must be from 0 to {2**32 - 1}. Got {number} instead.")
    return numbers


def _say_what_is_kept(folder: "ReportFolder") -> str:
    n = len(list(folder.path.glob("runs/*/*/run.json")))
    runs = "no run is" if not n else "1 run is" if n == 1 else f"{n} runs are"
    return f"{runs} finished in {folder.path}; the same command with --resume continues there."


def _conclude(results: dict[str, Any], out: Path) -> None:
    """Show the tables, who is ahead, and where the report is."""
    from longtail.cli.show import comparison_tables, show
    from longtail.compare.table import finished, summarize

    if not finished(results):
        raise LongtailError(f"no method has finished; {out}/report.html says why")
    show(*comparison_tables(results))
    for metric in ("P@1", "P@5", "PSP@5"):
        for sentence in summarize(results, metric):
            show(sentence)
    show("", f"The report is {out}/report.html; table.md and results.json are beside it.")
