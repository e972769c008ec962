"""All attacks, in the order in which they are run."""

from attack import faults
from attack.case import Attack

ATTACKS: list[Attack] = [*faults.ATTACKS]
