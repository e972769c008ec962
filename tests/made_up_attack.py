"""An attack whose cases end in all the ways in which a case can end."""

import os
import signal
import time
from pathlib import Path

from attack.case import Attack

ENDS = ("answered", "refused", "raised", "crash", "hang", "answered")


def prepare(folder):
    tried = iter(range(100))
    kept = folder.parent / "made-up-attack"  # how far earlier processes came

    def attempt(random):
        n = int(kept.read_text()) if kept.exists() else next(tried)
        kept.write_text(str(n + 1))
        if ENDS[n] == "raised":
            raise ValueError("a broken promise")
        if ENDS[n] == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if ENDS[n] == "hang":
            time.sleep(60)
        return ENDS[n]

    return attempt


ATTACKS = [
    Attack(
        "made up",
        "nothing",
        prepare,
        seconds=2,
        environment={"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}"},
    )
]
