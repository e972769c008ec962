"""`python -m bench`: our models and the peers on the same rows, one table a data set."""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bench.first_use import measure_first_use
from bench.methods import choose
from bench.rows import find_rows
from bench.table import has_ours, ratio_table, results_table, training_table
from bench.trial import ROOT, run_all
from longtail.compare.machine import describe

WORK = ROOT / "bench" / ".work"
DATA = ROOT.parent / "shared" / "data"


def main() -> None:
    """Run the benchmark as the command line asks; results are written after every run."""
    args = _arguments()
    methods = choose(args.peers, args.methods)
    tfidf = {} if args.ngrams is None else {"ngrams": args.ngrams}
    report: dict[str, Any] = {"machine": describe(args.threads), "repeat": args.repeat}
    report |= {"tfidf": tfidf or "defaults", "sets": {}}
    if any(method.ours for method in methods):
        report["first_use"] = _first_use()
    args.out.mkdir(parents=True, exist_ok=True)
    for rows in find_rows(args.data, args.sets, tfidf):
        limits = {"threads": args.threads, "repeat": args.repeat, "timeout": args.timeout}
        for results in run_all(methods, rows, WORK, **limits):
            report["sets"][rows.name] = {"counts": rows.describe(), "results": results}
            (args.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
            (args.out / "results.md").write_text(_as_text(report))
    print("\n" + _as_text(report))
    print(f"written: {args.out}/results.json and {args.out}/results.md")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA if DATA.is_dir() else None)
    parser.add_argument("--sets", type=_names, help="only these data sets: a,b")
    parser.add_argument("--peers", type=_names, help="only these peers: libpecos,omikuji,napkinxc")
    parser.add_argument("--methods", type=_names, help="only the methods with exactly these names")
    # word pairs help some methods and hurt others: compare with 1 before claiming a lead
    parser.add_argument(
        "--ngrams", type=int, help="1 words, 2 also word pairs; our default if not given"
    )
    parser.add_argument("--out", type=Path, default=WORK / "results")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, in turn; medians")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one run")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _first_use() -> dict[str, float] | str:
    try:
        return measure_first_use()
    except subprocess.CalledProcessError:
        return "failed"


def _as_text(report: dict[str, Any]) -> str:
    machine = report["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads used, "
        f"{machine['memory_gb'] or 'unknown'} GB, {machine['system']}, Python {machine['python']}, "
        f"{packages}; "
        f"medians of {report['repeat']} run(s); tf-idf of texts: {report['tfidf']}.",
    ]
    if isinstance(used := report.get("first_use"), dict):
        lines.append(
            f"Our first fit in a new process takes {used['cold_seconds']:.1f} s "
            f"({used['cold_cpu_seconds']:.1f} CPU s) when nothing is compiled yet, afterwards "
            f"{used['compiled_seconds']:.1f} s ({used['compiled_cpu_seconds']:.1f} CPU s); "
            "the tables do not count it."
        )
    for name, found in report["sets"].items():
        counts = ", ".join(f"{count:,} {what}" for what, count in found["counts"].items())
        lines += ["", f"## {name}", "", counts, "", results_table(found["results"])]
        lines += ["", "Ours ÷ the best peer at each measure:", "", ratio_table(found["results"])]
        lines += ["", training_table(found["results"])] if has_ours(found["results"]) else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
