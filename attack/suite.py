"""All attacks, in the order in which they are run."""

from attack import faults, names, surroundings
from attack.case import Attack

ATTACKS: list[Attack] = [*faults.ATTACKS, *names.ATTACKS, *surroundings.ATTACKS]
