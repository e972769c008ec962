"""`python -m bench.readme_table DATA …`: README's results, by `longtail compare` on each set.

Runs the comparison on every data set that is named and on the bundled one, each into a folder of
its own below --out, and prints one table of them all. What was interrupted goes on with the same
command; a set that takes too long can be left out, and --print shows what is there without running.
The peers are installed into environments of their own first. What follows a bare -- goes to
compare, such as -- --budget 10m --device cpu.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.environments import PeerError, python_of
from longtail.compare.table import finished, markdown
from longtail.data import write_dataset
from longtail.data.debian import load_debian
from longtail.peers import PEERS

WORK = Path(__file__).parent / ".work"
MODELS = "fusion,linear,linear:preset=fast,glas,knn"
SHOWN_PEERS = ("pecos xr-linear", "omikuji bonsai", "napkinxc plt")  # one setting of each
BUNDLED = "debian"
CUTS = (1, 3, 5)

Results = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare on every set, then print the tables."""
    args = _arguments(arguments)
    sets = {path.resolve().name: path for path in args.data} | {BUNDLED: None}
    sets = {name: path for name, path in sets.items() if name not in args.leave_out}
    if not args.print:
        args.models = ",".join([args.models, *(_install_peers() if args.peers else [])])
        for name, path in sets.items():
            _compare(path or _write_bundled(args.out), args.out / name, args)
    found = [_read(args.out / name) for name in sets]
    print(readme_tables([results for results in found if results is not None], args.times))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.readme_table", description=__doc__)
    parser.add_argument("data", nargs="*", type=Path, metavar="DATA", help="folders or files")
    parser.add_argument("--models", default=MODELS, help=f"as compare takes them; {MODELS}")
    parser.add_argument("--out", type=Path, default=WORK / "readme")
    parser.add_argument("--leave-out", type=_names, default=[], help="data sets: a,b")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--no-times", dest="times", action="store_false", help="show accuracy only")
    parser.add_argument("--print", action="store_true", help="run nothing, print what is there")
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:end])
    args.more = given[end + 1 :]
    return args


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _install_peers() -> list[str]:
    """Return the names of the peers to show that can be installed."""
    installed = []
    for peer in PEERS:
        if peer.name in SHOWN_PEERS:
            try:
                python_of(peer.package, WORK / "envs")
                installed.append(peer.name)
            except PeerError as error:
                print(f"left out {peer.name}: {error}", file=sys.stderr, flush=True)
    return installed


def _write_bundled(out: Path) -> Path:
    """Write the bundled set as a folder with both its parts, once."""
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
        sys.exit("stopped; the same command goes on from there")
    if done.returncode:
        print(f"{data.name} did not finish", file=sys.stderr, flush=True)


def _read(folder: Path) -> Results | None:
    try:
        results: Results = json.loads((folder / "results.json").read_text())
    except OSError:
        return None
    return results


# ----------------------------------------------------------------------------------------- tables


def readme_tables(found: Sequence[Results], times: bool = True) -> str:
    """Return P@k with times and PSP@k, a row for each method, and why some cells are empty."""
    names = list(dict.fromkeys(m["name"] for results in found for m in results["methods"]))
    if not names:
        return "There are no results yet."
    headings = ["method", *map(_title, found)]
    titles = {name: f"`{name}`" if _is_ours(found, name) else name for name in names}
    rows = [
        [titles[name], *(_accuracy(results, name, times) for results in found)] for name in names
    ]
    tail = [[titles[name], *(_tail(results, name) for results in found)] for name in names]
    measured = "; training time · documents/s · median time for one document" if times else ""
    parts = [f"P@1 / 3 / 5{measured}:", ""]
    parts += [markdown(headings, rows), "", "PSP@1 / 3 / 5:", "", markdown(headings, tail), ""]
    parts += [f"- {note}" for results in found for note in _notes(results)]
    return "\n".join(parts)


def _is_ours(found: Sequence[Results], name: str) -> bool:
    return any(m["ours"] for results in found for m in results["methods"] if m["name"] == name)


def _title(results: Results) -> str:
    return f"{results['data']['name']} ({results['data']['n_labels']:,} labels)"


def _find(results: Results, name: str) -> Results | None:
    return next((method for method in finished(results) if method["name"] == name), None)


def _accuracy(results: Results, name: str, times: bool) -> str:
    method = _find(results, name)
    if method is None:
        return "–"
    values = _values(results, method, "P")
    return f"{values}<br>{_times(method['measured'])}" if times else values


def _times(measured: Results) -> str:
    return (
        f"{measured['train_seconds']:.1f} s · {measured['documents_per_second']:,.0f}/s · "
        f"{measured['single_p50_ms']:.2f} ms"
    )


def _tail(results: Results, name: str) -> str:
    method = _find(results, name)
    return "–" if method is None else _values(results, method, "PSP")


def _values(results: Results, method: Results, family: str) -> str:
    """Return "64.5 / 39.4 / 28.7", each bold that is the highest of the data set."""
    shown = []
    for metric in (f"{family}@{k}" for k in CUTS):
        best = max(each["metrics"][metric]["value"] for each in finished(results))
        value = method["metrics"][metric]["value"]
        shown.append(f"**{value:.1f}**" if round(value, 1) == round(best, 1) else f"{value:.1f}")
    return " / ".join(shown)


def _notes(results: Results) -> list[str]:
    name = results["data"]["name"]
    failed = [m for m in results["methods"] if m["error"]]
    notes = [f"{name}: {method['name']}: {method['error']}" for method in failed]
    notes += [f"{name}: {m['name']} on {m['gpu']}" for m in finished(results) if m["gpu"]]
    return [*notes, f"{name}: `{results['command']}`"]


if __name__ == "__main__":
    main()
