"""A few hostile surroundings, and those that the guide names."""

from random import Random

import pytest

from attack.surroundings import ATTACKS, check_end


def test_a_few(tmp_path):
    attempt = ATTACKS[0].prepare(tmp_path)
    assert {attempt(Random(seed)) for seed in range(5)} <= {"answered", "refused"}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "Error: a bug in longtail"),
        (2, "Traceback (most recent call last):"),
        (2, "Error: one\nError: two"),
        (120, "Exception ignored in"),
        (139, ""),
    ],
)
def test_ends_that_are_not_ours(code, said):
    with pytest.raises(AssertionError):
        check_end(code, said)
