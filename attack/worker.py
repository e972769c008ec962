"""The process that tries cases: `python -m attack.worker NAME FIRST_SEED FOLDER`."""

import os
import sys
from pathlib import Path

from attack.run import find_attack, try_cases
from attack.suite import ATTACKS

if __name__ == "__main__":
    name, first_seed, folder = sys.argv[1:]
    # Standard output is for reports alone: whatever else is printed goes to standard error.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try_cases(find_attack(name, ATTACKS), int(first_seed), Path(folder), report)
