"""The runner of attacks: a failure, a crash and a hang are each one case, and the rest goes on."""

import tempfile

from made_up_attack import ATTACKS as MADE_UP
from made_up_attack import ENDS

from attack.run import run_attack
from attack.suite import ATTACKS


def test_every_end_of_a_case_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tally = run_attack(MADE_UP[0], seconds=0, first_seed=10, n_cases=len(ENDS))
    assert tally.outcomes == {"answered": 2, "refused": 1, "raised": 1, "crash": 1, "hang": 1}
    assert [seed for seed, _ in tally.failures] == [12, 13, 14]
    stories = [story for _, story in tally.failures]
    assert "ValueError: a broken promise" in stories[0]
    assert "SIGSEGV" in stories[1]
    assert "no answer after 2 s" in stories[2]


def test_attacks_have_names_of_their_own_and_say_what_they_try_to_break():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(attack.promise for attack in ATTACKS)
