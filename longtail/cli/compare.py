"""`longtail compare`: train several methods on the same documents, and write one report of them."""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longtail.cli.exits import if_interrupted
from longtail.cli.progress import Bars, Lines
from longtail.cli.settings import parse_pairs
from longtail.errors import LongtailError, ParameterError, suggest

if TYPE_CHECKING:
    from longtail.compare.contenders import Missing
    from longtail.compare.folder import ReportFolder
    from longtail.compare.run import Plan

Device = Literal["auto", "cpu", "cuda"]


def compare(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A file or folder; both its parts.")],
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
            help="Measure on so many of the training documents instead of the test part; "
            "0.2 if there is none.",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option("--seeds", "--seed", metavar="N,N,…", help="Train once with each of them."),
    ] = "0",
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
        typer.Option(metavar="TIME", help="For models that plan their time, such as 10m."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop a method that takes longer than this."),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(help="Where to train models that torch trains; a GPU if there is one."),
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
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep the trained models in REPORT/models.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a comparison, or add methods to it.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the comparison that is in --out.")
    ] = False,
) -> None:
    """Compare models, and peers, on the same documents.

    Every method is trained in a process of its own on the training part of DATA and measured on its
    test part. REPORT gets report.html (one page that works offline), table.md, results.json and
    the predictions of every method. A method that fails is a line in the report. What was
    interrupted goes on with --resume, which also takes further models.
    """
    from longtail.compare.contenders import find_entrants, parse_models, text_settings
    from longtail.compare.folder import ReportFolder
    from longtail.compare.run import Plan
    from longtail.compare.split import read_split
    from longtail.evaluation.metrics import PROPENSITIES
    from longtail.runtime.parallel import n_threads, set_threads

    _check_options(valid, timeout, propensity, PROPENSITIES)
    all_seeds, pairs = _parse_seeds(seeds), parse_pairs(settings or [])
    contenders = parse_models(models, pairs, {"device": device, "budget": budget})
    entrants, missing = find_entrants(contenders, peers=peers, environments=peers_from)
    for each in missing:
        typer.echo(f"Note: {each.package} is not installed ({each.command}).", err=True)
    set_threads(threads)
    split = read_split(data, valid)
    folder = ReportFolder(out)
    folder.open(_identity(split), resume=resume, overwrite=overwrite)
    plan = Plan(
        split=split,
        entrants=entrants,
        seeds=all_seeds,
        threads=n_threads(),
        timeout=timeout,
        tfidf=text_settings(pairs),
        keep_models=keep_models,
    )
    with if_interrupted(lambda: _say_what_is_kept(folder)):
        results = _compare(plan, folder, data, missing, propensity)
    _conclude(results, out)


class Whole(Bars):
    """The bar of the comparison as a whole, and below it that of the stage at hand."""

    def __init__(self, n_runs: int) -> None:
        super().__init__()
        self._whole = self._bars.add_task("the whole comparison", total=n_runs, note="")

    def finish_run(self) -> None:
        """Move the upper bar."""
        self._bars.advance(self._whole)

    def _finish(self) -> None:
        """Remove the bar of a stage that is over: there are too many for all to stay."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = None


def _check_options(
    valid: float | None, timeout: float | None, propensity: str, propensities: Any
) -> None:
    if valid is not None and not 0 < valid < 1:
        raise ParameterError(f"--valid must be above 0 and below 1. Got {valid:g} instead.")
    if timeout is not None and timeout <= 0:
        raise ParameterError(f"--timeout must be above 0. Got {timeout:g} instead.")
    if propensity not in propensities:
        raise ParameterError(
            f"--propensity must be one of {', '.join(propensities)}. "
            f"Got '{propensity}' instead{suggest(propensity, propensities)}"
        )


def _parse_seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**32 for seed in seeds):
        raise ParameterError(
            "--seeds must be different whole numbers from 0 on, such as 1,2,3. "
            f"Got '{text}' instead."
        )
    return seeds


def _identity(split: Any) -> dict[str, Any]:
    """Return what must be the same for a comparison to be gone on with."""
    described = split.describe()
    return {"format": 1, "origin": described["origin"], "sha256": described["sha256"]}


def _compare(
    plan: "Plan", folder: "ReportFolder", data: Path, missing: "list[Missing]", propensity: str
) -> dict[str, Any]:
    """Run everything and write the report."""
    from longtail.compare.folder import RESULTS, write_whole
    from longtail.compare.machine import describe
    from longtail.compare.report import write_report
    from longtail.compare.results import assemble
    from longtail.compare.run import run_all
    from longtail.compare.split import checksum_files
    from longtail.compare.table import write_table

    began, started = time.perf_counter(), datetime.now(UTC)
    n_runs = len(plan.entrants) * len(plan.seeds)
    with Whole(n_runs) if sys.stderr.isatty() else Lines() as progress:
        runs = []
        for run in run_all(plan, folder, progress):
            runs.append(run)
            if isinstance(progress, Whole):
                progress.finish_run()
        progress.stage("comparing", 0)
        results = assemble(runs, plan.split, propensity)
        results |= {
            "command": join(["longtail", *sys.argv[1:]]),
            "date": started.strftime("%Y-%m-%d %H:%M UTC"),
            "seconds": round(time.perf_counter() - began, 1),
            "seeds": list(plan.seeds),
            "depth": plan.depth,
            "data": {"name": data.resolve().name, **plan.split.describe()},
            "files": checksum_files(data),
            "machine": describe(plan.threads),
            "missing": [each._asdict() for each in missing],
        }
    write_whole(folder.path / RESULTS, json.dumps(results, indent=1, ensure_ascii=False))
    write_whole(folder.path / "table.md", write_table(results))
    write_whole(folder.path / "report.html", write_report(results))
    return results


def _say_what_is_kept(folder: "ReportFolder") -> str:
    n = len(list(folder.path.glob("runs/*/*/run.json")))
    runs = "no run is" if not n else "1 run is" if n == 1 else f"{n} runs are"
    return f"{runs} finished in {folder.path}; the same command with --resume goes on from there."


def _conclude(results: dict[str, Any], out: Path) -> None:
    """Show the table, say what can be said of it, and where the report is."""
    from longtail.cli.show import comparison_tables, show
    from longtail.compare.table import finished, summarize

    if not finished(results):
        raise LongtailError(
            f"no method has finished; what is known of each is in {out}/report.html"
        )
    show(*comparison_tables(results))
    for metric in ("P@1", "P@5", "PSP@5"):
        for sentence in summarize(results, metric):
            show(sentence)
    show("", f"The report is {out}/report.html; table.md and results.json are beside it.")
