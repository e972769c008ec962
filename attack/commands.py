"""Commands run in this process, and documents for them."""

import json
from pathlib import Path
from random import Random

from typer.testing import CliRunner, Result

from attack.case import Outcome
from longtail.cli import app

TOPICS = {
    "beer": ["hops", "malt", "yeast", "brew"],
    "bread": ["flour", "oven", "crust", "yeast"],
    "chess": ["rook", "pawn", "opening", "mate"],
    "sailing": ["wind", "mast", "harbour", "rope"],
}
ANSWERED, REFUSED = 0, 2


def write_documents(path: Path, n_documents: int, names: dict[str, str] | None = None) -> Path:
    """Write documents whose words tell their labels; `names` gives the labels other names."""
    random, topics = Random(0), sorted(TOPICS)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(n_documents):
            labels = random.sample(topics, random.randrange(1, 3))
            words = [word for label in labels for word in random.choices(TOPICS[label], k=3)]
            shown = [(names or {}).get(label, label) for label in labels]
            file.write(json.dumps({"text": " ".join(words), "labels": shown}) + "\n")
    return path


def call(*args: object, stdin: bytes | None = None) -> Result:
    """Run a command line and return what it printed."""
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def run_command(*args: object) -> Outcome:
    """Run a command line that has to succeed, or to say in one line why it does not."""
    done = call(*args)
    return judge(done.exit_code, done.stderr)


def judge(code: int, errors: str) -> Outcome:
    """Return what came of a command; raise if it did not end as it should."""
    if code == ANSWERED:
        return "answered"
    lines = [line for line in errors.splitlines() if line.startswith("Error: ")]
    if code != REFUSED or len(lines) != 1 or "Traceback" in errors:
        raise AssertionError(f"exit code {code}: {errors}")
    return "refused"
