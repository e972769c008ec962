"""`python -m bench.budgets DATA… --budgets 1m,3m,10m`: what a fusion makes of its time.

Trains a fusion for each data set and budget, each in a process of its own, measures it on the test
split, and prints one table: accuracy, calibration, size, speed, the share of the budget that was
used, and which members were kept and dropped. The best peer of each metric stands beside, as in
docs/experiments/results.md. `bundled` is the data set that comes with the package.

Every run is a line of --out when it ends, so that a run that was cut goes on with the same command;
--print shows what is there. --jobs trains several at once, each on --threads cores of its own; a
GPU is shared. What follows a bare -- goes to train, such as -- --max-size 100MB.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from queue import Queue
from typing import Any

from longtail.compare.table import markdown
from longtail.data import write_dataset
from longtail.data.debian import load_debian
from longtail.runtime.settings import parse_time

WORK = Path(__file__).parent / ".work"
RESULTS = Path(__file__).parents[1] / "docs" / "experiments" / "results.md"
BUNDLED = "bundled"
IN_RESULTS = {BUNDLED: "debian"}  # the name of a set there, where it is another
CUTS = (1, 3, 5)
HEADINGS = ["data set", "budget", "used", "P@1/3/5", "PSP@1/3/5", "ECE", "size", "documents/s"]
HEADINGS += ["one ms", "members", "dropped"]

Result = dict[str, Any]
Cores = Sequence[int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is not in --out yet, then print the table."""
    args = _arguments(arguments)
    wanted = [(find_name(data), data, budget) for data, budget in product(args.data, args.budgets)]
    if not args.print:
        done = {(result["set"], result["budget"]) for result in read_results(args.out)}
        run_all([run for run in wanted if (run[0], run[2]) not in done], args)
    print(budget_table(read_results(args.out), read_peers(RESULTS.read_text())))


def find_name(data: str) -> str:
    """Return what a data set is called in the table."""
    return Path(data).resolve().name


def read_results(path: Path) -> list[Result]:
    """Return the runs that ended well; a last line that was cut is none."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if "error" not in result:
            found.append(result)
    return found


# ------------------------------------------------------------------------------------------- runs


def run_all(wanted: Sequence[tuple[str, str, str]], args: argparse.Namespace) -> None:
    """Run all, several at once if asked; write each result as soon as it is there."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    bundled = str(_write_bundled()) if any(run[0] == BUNDLED for run in wanted) else ""
    places: Queue[Cores] = Queue()
    for cores in divide_cores(args.jobs, args.threads):
        places.put(cores)

    def run_one(name: str, data: str, budget: str) -> Result:
        cores = places.get()
        try:
            path = bundled if name == BUNDLED else data
            return {"set": name, "budget": budget, **run(name, path, budget, cores, args)}
        finally:
            places.put(cores)

    with ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(run_one, *each) for each in wanted]
        for future in as_completed(futures):
            line = json.dumps(future.result())
            with args.out.open("a") as file:
                file.write(line + "\n")
            print(line, file=sys.stderr, flush=True)


def divide_cores(jobs: int, threads: int | None) -> list[Cores]:
    """Return the cores of each job: as many as asked, or an equal share of those there are."""
    cores = sorted(os.sched_getaffinity(0))
    each = min(threads or max(1, len(cores) // jobs), len(cores))
    return [[cores[(job * each + i) % len(cores)] for i in range(each)] for job in range(jobs)]


def run(name: str, path: str, budget: str, cores: Cores, args: argparse.Namespace) -> Result:
    """Train, then measure on the test split; return what there is to report."""
    logs = args.out.with_suffix("")
    logs.mkdir(parents=True, exist_ok=True)
    facts: Result = {"device": args.device, "cores": len(cores), "began": time.time()}
    with (
        tempfile.TemporaryDirectory(dir=args.scratch) as folder,
        (logs / f"{name}-{budget}.log").open("w") as log,
    ):
        model, metrics = Path(folder) / "model", Path(folder) / "metrics.json"
        device = ["--device", args.device]
        train = ["train", path, "--out", str(model), "--budget", budget, *device, *args.more]
        began = time.monotonic()
        code = _call(train, cores, log)
        facts["seconds"] = round(time.monotonic() - began, 1)
        if code == 0:
            code = _call(
                ["evaluate", str(model), path, "--json", str(metrics), *device], cores, log
            )
        if code:
            return {**facts, "error": f"longtail ended with {code}; {log.name} says why"}
        return {**facts, **describe(model), **_read_metrics(metrics)}


def _call(command: Sequence[str], cores: Cores, log: Any) -> int:
    """Run a command of longtail on some cores; return how it ended."""
    pinned = (
        f"import os, sys; os.sched_setaffinity(0, {list(cores)}); from longtail.cli import main"
    )
    whole = [sys.executable, "-c", f"{pinned}; sys.exit(main())", *command]
    log.write(f"$ longtail {' '.join(command)}\n")
    log.flush()
    return subprocess.run(whole, stdout=log, stderr=log, check=False).returncode


def describe(folder: Path) -> Result:
    """Return what a saved fusion weighs and takes, and what its members do."""
    config = json.loads((folder / "config.json").read_text())
    card = json.loads((folder / "card.json").read_text())
    return {
        "n_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "documents_per_second": card["speed"]["documents per second"],
        "milliseconds": card["speed"]["milliseconds for one document"],
        "held_out": card["metrics"],
        "members": config["report"],
        "dropped": config.get("dropped", {}),
    }


def _read_metrics(path: Path) -> Result:
    metrics = json.loads(path.read_text())
    names = [f"{metric}@{k}" for metric, k in product(("P", "PSP"), CUTS)]
    return {name: round(metrics[name], 3) for name in [*names, "ECE"] if name in metrics}


def _write_bundled() -> Path:
    folder = WORK / "data" / "debian"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_dataset(load_debian(), folder)
    return folder


# ------------------------------------------------------------------------------------------ table


def budget_table(results: Sequence[Result], peers: Mapping[str, Mapping[str, float]]) -> str:
    """Return one row a run, in the order of sets and budgets, the best peer below each set."""
    if not results:
        return "There are no results yet."
    rows = []
    for name in dict.fromkeys(result["set"] for result in results):
        runs = [result for result in results if result["set"] == name]
        rows += [_row(result) for result in sorted(runs, key=_seconds_of)]
        if best := peers.get(IN_RESULTS.get(name, name)):
            shown = [_cuts(best, metric, 1) for metric in ("P", "PSP")]
            rows.append([name, "best peer", "", *shown, *[""] * (len(HEADINGS) - 5)])
    return markdown(HEADINGS, rows)


def _seconds_of(result: Result) -> float:
    return parse_time(result["budget"], "budget")


def _row(result: Result) -> list[str]:
    used = f"{result['seconds']:.0f} s, {100 * result['seconds'] / _seconds_of(result):.0f} %"
    return [
        result["set"],
        result["budget"],
        used,
        _cuts(result, "P", 2),
        _cuts(result, "PSP", 2),
        f"{result['ECE']:.3f}" if "ECE" in result else "",
        f"{result['n_bytes'] / 1e6:.1f} MB",
        f"{result['documents_per_second']:,.0f}",
        f"{result['milliseconds']:.1f}",
        ", ".join(_gains(result["members"])),
        ", ".join(_gains(result["dropped"])),
    ]


def _gains(members: Mapping[str, Result]) -> Iterator[str]:
    for name, report in members.items():
        yield name if report["gain"] is None else f"{name} {report['gain']:+.2f}"


def _cuts(values: Mapping[str, float], metric: str, digits: int) -> str:
    return " / ".join(f"{values.get(f'{metric}@{k}', 0):.{digits}f}" for k in CUTS)


def read_peers(page: str) -> dict[str, dict[str, float]]:
    """Return the best peer's figure of each metric for each set, from the page of results.

    Its first table has P@1 / 3 / 5, its second PSP@1 / 3 / 5; peers are the rows without backticks.
    """
    best: dict[str, dict[str, float]] = {}
    sets: list[str] = []
    n_tables = 0
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            sets = []  # the table is over
        elif cells[0] == "method":
            n_tables += 1
            sets = [cell.partition(" (")[0] for cell in cells[1:]]
        elif sets and n_tables <= 2 and not cells[0].startswith(("`", "-")):
            metric = "P" if n_tables == 1 else "PSP"
            for name, cell in zip(sets, cells[1:], strict=True):
                for k, number in zip(CUTS, re.findall(r"\d+\.\d+", cell), strict=False):
                    known = best.setdefault(name, {})
                    known[f"{metric}@{k}"] = max(float(number), known.get(f"{metric}@{k}", 0.0))
    return best


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.budgets", description=__doc__)
    parser.add_argument("data", nargs="*", metavar="DATA", help="folders, files, or bundled")
    parser.add_argument("--budgets", type=lambda text: text.split(","), default=["1m", "3m", "10m"])
    parser.add_argument("--device", default="cpu", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="cores of a run; all, shared by --jobs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=WORK / "budgets.jsonl")
    parser.add_argument("--scratch", type=Path, help="where models are, until they are measured")
    parser.add_argument("--print", action="store_true", help="run nothing, print what is there")
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:end])
    args.more = given[end + 1 :]
    return args


if __name__ == "__main__":
    main()
