"""The recipe for as many labels as Amazon-3M has, with few of them."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from bench import many_labels
from longtail.labels.tree import LabelTree


@pytest.fixture(autouse=True)
def few(monkeypatch):
    for name, value in {"N_WORDS": 300, "USUAL_WORDS": 6, "LABELS_EACH": 3, "BLOCK": 20}.items():
        monkeypatch.setattr(many_labels, name, value)


def test_documents_are_the_same_however_many_there_are():
    some, more = many_labels.make_up(40, 100), many_labels.make_up(60, 100)
    assert (more.Y[:40] != some.Y).nnz == 0
    assert np.array_equal(more.take(40).tokens.tokens, some.tokens.tokens)
    assert some.count_words().sum() == len(some.tokens.tokens)


def test_a_tree_of_neighbours():
    tree = many_labels.cut_line(100, 8, 2)
    assert isinstance(tree, LabelTree)
    assert tree.sizes == [1, 2, 13, 100]
    assert np.array_equal(tree.parents(3), np.arange(100) // 8)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("glas", ["dim=4", "batch_size=32"]),
        ("attention-xml", ["hidden=2", "word_dim=2", "branching=8", "levels=1", "batch_size=16"]),
    ],
)
def test_what_is_measured(model, settings, capsys):
    given = [part for each in settings for part in ("--set", each)]
    size = ["--documents", "40", "--labels", "64", "--device", "cpu"]
    many_labels.main([model, *size, *given])
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["labels"]) == (40, 64)
    assert found["steps"] == {"glas": 2, "attention-xml": 2 * 3}[model]
    assert found["minutes in all for every document"] > 0
