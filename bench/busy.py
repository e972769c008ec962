"""`python -m bench.busy`: what trainings by torch take on a CPU that others use as well.

Trains attention-xml and glas for an epoch on some documents of the bundled set, alone and several
at once, each time with threads that sleep soon while they wait (`longtail.runtime.waiting`) and
with libgomp's own choice, which is to stay awake. Prints seconds by the clock and CPU seconds, the
mean of those that ran at once.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longtail.data.debian import load_debian
from longtail.models import get_model_class

FORMS: Mapping[str, Mapping[str, Any]] = {
    "attention-xml": {"preset": "small", "epochs": 1},
    "glas": {"preset": "fast", "epochs": 1},
}
WAITS = {"briefly, as we do": {}, "awake": {"GOMP_SPINCOUNT": "300000"}}  # libgomp's default


def train_here(name: str, n_documents: int) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a training; one before it loads code."""
    data = load_debian().train
    for n in (200, n_documents):
        began, cpu = time.monotonic(), time.process_time()
        model = get_model_class(name).from_settings({**FORMS[name], "device": "cpu"})
        model.fit(data.take(np.arange(n)))
    return time.monotonic() - began, time.process_time() - cpu


def train_at_once(name: str, n_documents: int, jobs: int, wait: Mapping[str, str]) -> list[float]:
    """Return the mean seconds and CPU seconds of several trainings at once."""
    command = [sys.executable, "-m", "bench.busy", "--cell", name, str(n_documents)]
    environment = {**os.environ, **wait}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(jobs)
    ]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"a training of {name} failed")
    found: list[float] = np.mean([json.loads(each) for each in said], axis=0).tolist()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--jobs", default="1,3", help="how many trainings at once")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "DOCUMENTS"), help="one, here")
    args = parser.parse_args(arguments)
    if args.cell:
        print(json.dumps(train_here(args.cell[0], int(args.cell[1]))))
        return 0
    print("| model | at once | threads wait | seconds | CPU seconds |")
    print("|---|---|---|---|---|")
    for name in FORMS:
        for jobs in map(int, args.jobs.split(",")):
            for said, wait in WAITS.items():
                seconds, cpu = train_at_once(name, args.documents, jobs, wait)
                print(f"| {name} | {jobs} | {said} | {seconds:.1f} | {cpu:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
