"""All attacks, in the order in which they are run."""

from attack import files
from attack.case import Attack

ATTACKS: list[Attack] = [*files.ATTACKS]
