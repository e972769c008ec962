"""`progress=True` of fit, predict and train: bars in a terminal, lines elsewhere."""

import numpy as np
import pytest
from planted import planted_texts

import longtail
from longtail import KNN, Linear, ParameterError
from longtail.bars import Bars, Lines
from longtail.models import base
from longtail.progress import SILENT, shown


def test_true_shows_every_stage_on_stderr(capsys):
    data = planted_texts(40)
    model = Linear().fit(data, progress=True)
    training = capsys.readouterr()
    assert "reading texts: " in training.err
    assert training.out == ""
    model.predict(data, progress=True)
    KNN().fit(data).partial_fit(data.take(np.arange(2)), progress=True)
    longtail.train(data, model="linear", progress=True)
    assert "too few to hold some out" in capsys.readouterr().err


def test_labelling_shows_its_progress(capsys, monkeypatch):
    monkeypatch.setattr(base, "BATCH", 10)
    model = Linear().fit(planted_texts(40))
    model.predict(planted_texts(40), progress=True)
    assert "labelling: 0." in capsys.readouterr().err
    model.predict(planted_texts(40))
    assert capsys.readouterr().err == ""


def test_what_true_and_false_mean(monkeypatch):
    assert isinstance(shown(True), Lines)
    monkeypatch.setattr("longtail.bars.is_terminal", lambda stream: True)
    assert isinstance(shown(True), Bars)
    with shown(False) as silent, shown(SILENT) as same:
        assert silent is same is SILENT


def test_another_value_is_an_error():
    with pytest.raises(ParameterError, match=r"must be True, False or a longtail\.progress\.Prog"):
        Linear().fit(planted_texts(10), progress="yes")
