"""Commands run in this process, and planted documents in files for them."""

import json
import sys

import numpy as np
from typer.testing import CliRunner

from longtail.cli import app

LONGTAIL = [sys.executable, "-m", "longtail"]
WORDS = {
    "beer": ["hops", "malt", "yeast", "brew"],
    "bread": ["flour", "oven", "crust", "yeast"],
    "chess": ["rook", "pawn", "opening", "mate"],
    "sailing": ["wind", "mast", "harbour", "rope"],
}


def planted_rows(n, seed):
    """Yield texts and labels; the words of a text tell its labels."""
    rng = np.random.default_rng(seed)
    names = sorted(WORDS)
    for _ in range(n):
        labels = [
            names[i] for i in sorted(rng.choice(len(names), size=rng.integers(1, 3), replace=False))
        ]
        words = [word for label in labels for word in rng.choice(WORDS[label], size=3)]
        yield " ".join(rng.permutation(words)), labels


def write_texts(path, n, seed):
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in planted_rows(n, seed)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_sparse(path, n, seed):
    """Write the same planted documents as an XC-repository sparse file."""
    vocabulary = sorted({word for words in WORDS.values() for word in words})
    names = sorted(WORDS)
    lines = [f"{n} {len(vocabulary)} {len(names)}"]
    for text, labels in planted_rows(n, seed):
        features = sorted({vocabulary.index(word) for word in text.split()})
        ids = ",".join(str(names.index(label)) for label in labels)
        lines.append(f"{ids} " + " ".join(f"{feature}:1.0" for feature in features))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(*args, stdin=None):
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def succeed(*args, stdin=None):
    result = run(*args, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def fail(*args, stdin=None):
    """Run a command that must end with exit code 2; return its one line of error."""
    result = run(*args, stdin=stdin)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *notes, error = result.stderr.splitlines()
    assert all(note.startswith(("Note: ", "Memory: ")) for note in notes)
    return error
