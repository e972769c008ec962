"""The bench of trainings on busy cores."""

import pytest


def test_a_training_is_timed():
    pytest.importorskip("torch")
    from bench.busy import train_here

    seconds, cpu = train_here("glas", 60)
    assert seconds > 0
    assert cpu > 0
