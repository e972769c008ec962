"""The reference of the commands is made of their code and leaves none out."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def tables():
    sys.path.insert(0, str(DOCS / "_extensions"))
    try:
        import command_tables
    finally:
        sys.path.pop(0)
    return command_tables


def test_every_command_has_an_entry(tables):
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\{command\} (.+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(tables.read_commands())
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == shown


def test_every_option_is_explained(tables):
    for name in tables.read_commands():
        for written, _, meaning in tables.read_options(name):
            assert meaning.endswith("."), (name, written, meaning)


def test_an_entry_says_what_help_says(tables):
    assert tables.write_usage("compare") == (
        "longtail compare DATA --models NAMES --out REPORT [OPTIONS]"
    )
    assert tables.write_usage("models") == "longtail models [NAME] [OPTIONS]"
    options = {written: rest for written, *rest in tables.read_options("train")}
    assert options["DATA"] == ["required", "A file, folder or URL; its training split."]
    assert options["--calibration <isotonic|logistic|none>"][0] == "isotonic"
    assert options["--seed N"] == ["", "Same seed, same model."]
    assert "--seeds N" not in options  # hidden: it only says what to use instead
