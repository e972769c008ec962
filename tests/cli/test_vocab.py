"""`longtail vocab`, as a user types it."""

import pytest

from tests.command_line import fail, succeed

NAMES = (
    "<http://ex.org/p1>\tbeer\ten\n<http://ex.org/p1>\tolut\tfi\n<http://ex.org/p2>\tbread\ten\n"
)


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "food.tsv"
    path.write_text(NAMES)
    return path


def test_load_writes_one_file_and_says_what_is_in_it(names, tmp_path):
    out = tmp_path / "food.vocab"
    said = succeed("vocab", "load", names, "--out", out).stdout
    assert said.startswith("2 concepts with 3 names (en, fi), 0 broader and 0 related links are in")
    assert len(out.read_text().splitlines()) == 3
    assert "already exists" in fail("vocab", "load", names, "--out", out)
    again = tmp_path / "again.vocab.gz"
    succeed("vocab", "load", out, "--out", again)
    assert again.read_bytes()[:2] == b"\x1f\x8b"


def test_load_says_what_surprises(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a\tbass\tde\nb\tbass\tde\n")
    result = succeed("vocab", "load", path, "--out", tmp_path / "x.vocab")
    assert result.stderr.startswith(
        "Note: 1 preferred names in the language 'de' belong to several"
    )
