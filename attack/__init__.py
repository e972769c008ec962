"""Attacks on longtail: crafted and damaged input, faults, kills, hostile surroundings.

Each file holds attacks of one kind. `make attack` runs them all for a given time and prints how
many cases were answered, refused and failed; `tests/` runs a few cases of each.
"""
