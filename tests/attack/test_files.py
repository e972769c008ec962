"""A few cases of the attacks on files and matrices; `python -m attack` tries many."""

from random import Random

import pytest

from attack.files import ATTACKS


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_every_case_is_answered_or_refused(tmp_path, attack):
    attempt = attack.prepare(tmp_path)
    outcomes = [attempt(Random(f"test {seed}")) for seed in range(40)]
    assert set(outcomes) == {"answered", "refused"}
