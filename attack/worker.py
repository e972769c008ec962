"""The process that tries cases: `python -m attack.worker MODULE NAME FIRST_SEED FOLDER`.

MODULE is where the attack is, in a list ATTACKS.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from attack.run import find_attack, try_cases

if __name__ == "__main__":
    module, name, first_seed, folder = sys.argv[1:]
    # Standard output is for reports alone: whatever else is printed goes to standard error.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    attack = find_attack(name, import_module(module).ATTACKS)
    try_cases(attack, int(first_seed), Path(folder), report)
