"""Plans against peaks: the table of `bench.memory`."""

import sys

import pytest

pytest.importorskip("torch")

from bench.memory import NOISE, SETTINGS, SHAPES, Cell, main, make_documents, measure
from longtail.models import model_names


def test_every_model_is_in_the_table():
    assert set(SETTINGS) == set(model_names())
    assert len(SHAPES) == 10


def test_shapes_are_what_they_say():
    shape = SHAPES["5 × 100,000 labels"]._replace(n=50)
    data = make_documents(shape)
    assert data.X.shape == (50, shape.n_features)
    assert (data.Y.getnnz(axis=1)[:5] == 100_000).all()
    texts = make_documents(SHAPES["short texts"]._replace(n=3)).texts
    assert all(text.startswith("word") for text in texts)


def test_a_plan_holds_within_a_fifth():
    size = 10 * NOISE
    assert Cell("linear", "wide header", int(1.19 * size), size).holds
    assert not Cell("linear", "wide header", int(1.21 * size), size).holds
    assert Cell("linear", "wide header", 0, NOISE).holds  # too small to measure


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak")
def test_one_cell(capsys):
    assert main(["--models", "knn", "--shapes", "wide header"]) == 0
    assert "| knn | wide header |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak")
@pytest.mark.parametrize("model_name", SETTINGS)
@pytest.mark.parametrize("shape_name", SHAPES)
def test_what_was_planned_is_what_is_taken(model_name, shape_name):
    cell = measure(model_name, shape_name)
    assert cell.holds, cell.describe()
