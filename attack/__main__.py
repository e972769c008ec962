"""Attack longtail for a given time and print what came of it: `python -m attack --minutes 2`."""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from attack.run import Tally, find_attack, run_attack
from attack.suite import ATTACKS

SHOWN_FAILURES = 10
WIDTH = 120


def main() -> int:
    """Run the attacks, print a table, and return 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="for all attacks together")
    parser.add_argument("--cases", type=int, default=0, help="of each attack, in place of a time")
    parser.add_argument("--only", choices=[attack.name for attack in ATTACKS], action="append")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each attack")
    asked = parser.parse_args()
    chosen = [find_attack(name, ATTACKS) for name in asked.only] if asked.only else ATTACKS
    console, tallies = Console(width=WIDTH), {}
    for attack in chosen:
        console.print(f"[dim]{attack.name} …[/dim]")
        share = 60 * asked.minutes / len(chosen)
        tallies[attack.name] = run_attack(attack, share, asked.seed, asked.cases)
    console.print(_make_table(tallies))
    for name, tally in tallies.items():
        for seed, story in tally.failures[:SHOWN_FAILURES]:
            console.print(f"{name}: {story}", markup=False, highlight=False)
            console.print(f'  again: python -m attack --only "{name}" --seed {seed} --cases 1\n')
    return int(any(tally.failures for tally in tallies.values()))


def _make_table(tallies: dict[str, Tally]) -> Table:
    table = Table("attack", "promise")
    for column in ("cases", "answered", "refused", "failed", "seconds"):
        table.add_column(column, justify="right")
    for name, tally in tallies.items():
        counts = tally.outcomes
        table.add_row(
            name,
            find_attack(name, ATTACKS).promise,
            f"{counts.total():,}",
            f"{counts['answered']:,}",
            f"{counts['refused']:,}",
            f"{len(tally.failures):,}",
            f"{tally.seconds:.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
