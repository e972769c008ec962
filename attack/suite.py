"""All attacks, in the order in which they are run."""

from attack.case import Attack

ATTACKS: list[Attack] = []
