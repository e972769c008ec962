"""`python -m bench.readme_table DATA …`: README's table, by `longtail compare` on each data set.

Compares fusion, linear and all peers on every data set that is named and on the bundled one, each
in its own folder below --out, and prints two tables. The first has a row for each data set; the
best peer is the one with the highest sum of P@1, P@3 and P@5, and bold is the highest value of a
cut, among all peers. The second has a row for each method on each set, with what it costs.

The same command continues after an interruption. --leave-out skips a data set, --print shows what
is there without running anything. Each peer is first installed into its own environment. What
follows a bare -- goes to compare, such as -- --budget 10m --device cpu.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environments import PeerError, python_of
from longtail.compare.table import COSTS, finished, markdown, spell_cost
from longtail.data import write_dataset
from longtail.data.debian import load_debian
from longtail.peers import PEERS

WORK = Path(__file__).parent / ".work"
SHOWN = ("fusion", "linear")
BUNDLED = "debian"
CUTS = ("P@1", "P@3", "P@5")
RARE = ("PSP@1", "PSP@3", "PSP@5")

Results = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare on every data set, then print the table."""
    args = _arguments(arguments)
    sets = {path.resolve().name: path for path in args.data} | {BUNDLED: None}
    sets = {name: path for name, path in sets.items() if name not in args.leave_out}
    if not args.print:
        args.models = ",".join([*SHOWN, *(_install_peers() if args.peers else [])])
        for name, path in sets.items():
            _compare(path or _write_bundled(args.out), args.out / name, args)
    found = [_read(args.out / name) for name in sets]
    there = [results for results in found if results is not None]
    print("\n\n".join([readme_table(there), *([method_table(there)] if there else [])]))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.readme_table", description=__doc__)
    parser.add_argument("data", nargs="*", type=Path, metavar="DATA", help="folders or files")
    parser.add_argument("--out", type=Path, default=WORK / "readme")
    parser.add_argument("--leave-out", type=_names, default=[], help="data sets: a,b")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument(
        "--print", action="store_true", help="run nothing, print the results so far"
    )
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:end])
    args.more = given[end + 1 :]
    return args


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _install_peers() -> list[str]:
    """Return the names of the peers that can be installed."""
    installed = []
    for peer in PEERS:
        try:
            python_of(peer.package, WORK / "envs")
            installed.append(peer.name)
        except PeerError as error:
            print(f"left out {peer.name}: {error}", file=sys.stderr, flush=True)
    return installed


def _write_bundled(out: Path) -> Path:
    """Write the bundled data set as a folder with both its splits, unless it is there."""
    folder = out / "data" / BUNDLED
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_dataset(load_debian(), folder)
    return folder


def _compare(data: Path, out: Path, args: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "longtail", "compare", str(data), "--models", args.models]
    command += ["--out", str(out), *(["--resume"] if out.exists() else []), *args.more]
    command += ["--peers-from", str(WORK / "envs")]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode == 130:
        sys.exit("stopped; the same command continues")
    if done.returncode:
        print(f"{data.name} did not finish", file=sys.stderr, flush=True)


def _read(folder: Path) -> Results | None:
    try:
        results: Results = json.loads((folder / "results.json").read_text())
    except OSError:
        return None
    return results


# ------------------------------------------------------------------------------------------ table


def readme_table(found: Sequence[Results]) -> str:
    """Return one row a data set: P@1 / 3 / 5 of fusion, linear and the best peer; then notes."""
    if not found:
        return "There are no results yet."
    headings = ["data set", "documents", "labels", *(f"`{model}`" for model in SHOWN), "best peer"]
    notes = [f"- {note}" for results in found for note in _notes(results)]
    return "\n".join([markdown(headings, [_row(results) for results in found]), "", *notes])


def method_table(found: Sequence[Results]) -> str:
    """Return one row a method on each data set: accuracy, also of rare labels, and costs."""
    rows = []
    for results in found:
        for method in finished(results):
            values = [f"{method['metrics'][metric]['value']:.2f}" for metric in (*CUTS, *RARE)]
            costs = [spell_cost(method["measured"], column) for column in COSTS]
            rows.append([results["data"]["name"], method["name"], *values, *costs])
    headings = ["data set", "method", *CUTS, *RARE, *(column.heading for column in COSTS)]
    return markdown(headings, rows)


def _row(results: Results) -> list[str]:
    data = results["data"]
    ours = {method["name"]: method for method in finished(results) if method["name"] in SHOWN}
    peers = [method for method in finished(results) if not method["ours"]]
    best = {
        metric: max(map(_value(metric), [*ours.values(), *peers]), default=0) for metric in CUTS
    }
    peer = max(peers, key=lambda each: sum(_value(metric)(each) for metric in CUTS), default=None)
    return [
        data["name"],
        f"{data['n_train']:,} / {data['n_test']:,}",
        f"{data['n_labels']:,}",
        *(_cell(ours.get(model), best) for model in SHOWN),
        _cell(peer, best) + ("" if peer is None else f" ({peer['name']})"),
    ]


def _value(metric: str) -> Callable[[Results], float]:
    """Return the function that looks up a metric, rounded as it is shown."""
    return lambda method: round(method["metrics"][metric]["value"], 1)


def _cell(method: Results | None, best: Mapping[str, float]) -> str:
    """Return "67.2 / 41.7 / 30.5", with the best values of the data set in bold."""
    if method is None:
        return "–"
    values = {metric: _value(metric)(method) for metric in CUTS}
    return " / ".join(
        f"**{value:.1f}**" if value == best[metric] else f"{value:.1f}"
        for metric, value in values.items()
    )


def _notes(results: Results) -> list[str]:
    name = results["data"]["name"]
    failed = [m for m in results["methods"] if m["error"]]
    notes = [f"{name}: {method['name']}: {method['error']}" for method in failed]
    notes += [f"{name}: {m['name']} on {m['gpu']}" for m in finished(results) if m["gpu"]]
    return [*notes, f"{name}: `{results['command']}`"]


if __name__ == "__main__":
    main()
