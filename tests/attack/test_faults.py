"""A few cases of the attacks on saving and loading."""

from random import Random

import pytest

from attack.faults import ATTACKS, Fault, check_sentence, failing, make_files
from attack.run import find_attack, run_attack
from longtail.runtime.store import read_folder, write_folder


def test_faults(tmp_path):
    attempt = find_attack("faults", ATTACKS).prepare(tmp_path)
    assert {attempt(Random(seed)) for seed in range(40)} == {"answered", "refused"}


@pytest.mark.parametrize(("name", "n_cases"), [("kills", 15), ("swaps", 2)])
def test_other_processes(name, n_cases):
    tally = run_attack(find_attack(name, ATTACKS), 60.0, n_cases=n_cases)
    assert tally.outcomes == {"answered": n_cases}, tally.failures


def test_a_wrong_sentence_would_be_found(tmp_path):
    write_folder(tmp_path / "model", make_files(1))
    check_sentence("what was there before is untouched", tmp_path / "model", 1, 2)
    for wrong in ("the new model is there", "no model is there"):
        with pytest.raises(AssertionError, match="but the model there is 1"):
            check_sentence(wrong, tmp_path / "model", 1, 2)


def test_a_fault_strikes_once_or_stays(tmp_path):
    write_folder(tmp_path / "model", make_files(1))
    for stays in (False, True):
        fault = Fault(3, stays=stays)
        with failing(fault), pytest.raises(Exception, match="Input/output error"):
            read_folder(tmp_path / "model")
        assert fault.failed
