"""The whole recipe of `longtail compare`: check, read, run every method, write the report."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from longtail.compare.contenders import find_entrants, parse_models, text_settings
from longtail.compare.folder import RESULTS, ReportFolder, write_whole
from longtail.compare.machine import describe
from longtail.compare.noise import Noise, keep_clean
from longtail.compare.process import check_platform
from longtail.compare.report import write_report
from longtail.compare.results import assemble
from longtail.compare.run import Comparison, run_all
from longtail.compare.split import checksum_files, read_split
from longtail.compare.table import write_table
from longtail.errors import ParameterError, suggest
from longtail.evaluation.propensity import PROPENSITIES
from longtail.progress import SILENT, Progress
from longtail.reading import ANYTHING, ReadOptions
from longtail.runtime.parallel import n_threads, set_threads
from longtail.visible import as_json


def prepare(
    data: Path,
    models: str,
    *,
    valid: float | None = None,
    seeds: Sequence[int] = (0,),
    peers: bool = False,
    peers_from: Path | None = None,
    settings: Mapping[str, str] | None = None,
    budget: str | None = None,
    timeout: float | None = None,
    device: str | None = None,
    propensity: str = "default",
    threads: int | None = None,
    jobs: int = 1,
    keep_models: bool = False,
    noises: Sequence[Noise] = (),
    reading: ReadOptions = ANYTHING,
) -> Comparison:
    """Check everything, read the data and find the methods; nothing is trained or written.

    Args:
        data: a file or folder; both its splits.
        models: names, each with settings behind a colon, such as linear,glas:preset=fast,dim=64.
        valid: measure on this share of the training documents instead of the test split.
        seeds: every method is trained once with each of them.
        peers: whether to compare all installed peers, too.
        peers_from: a folder with one environment for each peer.
        settings: parameters by "MODEL.key", for every method of that model.
        budget: time for models that plan their training, such as 10m.
        timeout: stop a method that takes longer, in seconds.
        device: where torch trains.
        propensity: the constants of the PS metrics.
        threads: how many all methods that run at once may use together; None for all cores.
        jobs: how many methods run at once.
        keep_models: whether to keep the trained models.
        noises: how training labels are spoiled; every method is also trained with each of them.
        reading: what is known about the data.
    """
    check_platform()
    _check(valid, timeout, propensity, jobs)
    pairs = settings or {}
    contenders = parse_models(models, pairs, {"device": device, "budget": budget})
    entrants, missing = find_entrants(contenders, peers=peers, environments=peers_from)
    set_threads(threads)
    split = read_split(data, valid, reading)
    return Comparison(
        split=keep_clean(split, noises, seeds, data) if noises else split,
        entrants=entrants,
        seeds=seeds,
        threads=n_threads(),
        jobs=jobs,
        timeout=timeout,
        tfidf=text_settings(pairs),
        keep_models=keep_models,
        missing=missing,
        propensity=propensity,
        noises=noises,
    )


def _check(valid: float | None, timeout: float | None, propensity: str, jobs: int) -> None:
    if valid is not None and not 0 < valid < 1:
        raise ParameterError(f"--valid must be above 0 and below 1. Got {valid:g} instead.")
    if timeout is not None and timeout <= 0:
        raise ParameterError(f"--timeout must be above 0. Got {timeout:g} instead.")
    if jobs < 1:
        raise ParameterError(f"--jobs must be at least 1. Got {jobs} instead.")
    if propensity not in PROPENSITIES:
        raise ParameterError(
            f"--propensity must be one of {', '.join(PROPENSITIES)}. "
            f"Got '{propensity}' instead{suggest(propensity, PROPENSITIES)}"
        )


def open_folder(
    out: Path, comparison: Comparison, *, resume: bool = False, overwrite: bool = False
) -> ReportFolder:
    """Make the folder of the report; with `resume`, continue the one that is there."""
    described = comparison.split.describe()
    identity = {"format": 1, "origin": described["origin"], "sha256": described["sha256"]}
    folder = ReportFolder(out)
    folder.open(identity, resume=resume, overwrite=overwrite)
    return folder


def compare(
    comparison: Comparison,
    folder: ReportFolder,
    data: Path,
    *,
    command: str = "",
    progress: Progress = SILENT,
    after_run: Callable[[], None] = lambda: None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """Run every method, write results.json, table.md and report.html, and return the results.

    Args:
        comparison: what `prepare` returned.
        folder: what `open_folder` returned.
        data: the path that the data were read from.
        command: how to repeat this, for the report.
        progress: is shown the stages of every run.
        after_run: is called after each run.
        cluster: run the methods on a Ray cluster: "local", "auto" or "ray://HOST:10001".
    """
    began, started = time.perf_counter(), datetime.now(UTC)
    if cluster is None:
        runs = run_all(comparison, folder, progress, after_run)
    else:
        from longtail.cluster import connected
        from longtail.compare.spread import fit_to_cluster, run_on_cluster

        with connected(cluster) as workers:
            comparison = fit_to_cluster(comparison, workers)
            progress.say(f"Cluster: {workers.describe()}; {comparison.jobs} methods at once")
            run_there = partial(run_on_cluster, workers)
            runs = run_all(comparison, folder, progress, after_run, run_there)
    progress.stage("comparing", 0)
    results = assemble(runs, comparison.split, comparison.propensity)
    results |= {
        "command": command,
        "date": started.strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(time.perf_counter() - began, 1),
        "seeds": list(comparison.seeds),
        "depth": comparison.depth,
        "data": {"name": data.resolve().name, **comparison.split.describe()},
        "files": checksum_files(data),
        "machine": describe(comparison.threads_each),
        "jobs": comparison.jobs,
        "missing": [each._asdict() for each in comparison.missing],
    }
    write_whole(folder.path / RESULTS, as_json(results, indent=1))
    write_whole(folder.path / "table.md", write_table(results))
    write_whole(folder.path / "report.html", write_report(results))
    folder.publish()
    return results
