"""All attacks, in the order in which they are run."""

from attack import faults, files, folders, names, surroundings
from attack.case import Attack

ATTACKS: list[Attack] = [
    *folders.ATTACKS,
    *files.ATTACKS,
    *faults.ATTACKS,
    *names.ATTACKS,
    *surroundings.ATTACKS,
]
