"""The studies of updates and hierarchies run on small data."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gensim")

from bench import dxml_hierarchy, update_study
from longtail import load
from longtail.labels.hierarchy import read_hierarchy

SMALL = ["dim=8", "hidden=8", "walks=5", "neighbours=5", "epochs=8", "device=cpu"]


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "texts.jsonl"
    with path.open("w") as file:
        for _ in range(300):
            label = int(rng.integers(16))
            text = f"word{label} thing{rng.integers(4)}"
            file.write(json.dumps({"text": text, "labels": [f"l{label}"]}) + "\n")
    return path


def test_hidden_labels_are_found_after_the_update_only(data, capsys):
    settings = [part for pair in SMALL for part in ("--set", pair)]
    update_study.main([str(data), "--hidden", "0.3", "--most", "1", "--seeds", "1", *settings])
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split("|") for line in lines if "| texts" in line]
    table = {each[3].strip(): each[4] for each in cells}
    assert list(table) == ["training without them", "update", "update --train", "training on all"]
    assert table["training without them"].split()[0] == "0.0"
    assert float(table["training on all"].split()[0]) > 50


def test_documents_with_hidden_labels_are_kept_apart(data):
    first, more, hidden = update_study.hide_labels(load(data).train, 0.3, seed=0)
    assert len(first) + len(more) == 300
    assert len(hidden) == 5
    names = [{first.label_names[i] for i in first.Y[row].indices} for row in range(len(first))]
    assert not any(labels & set(hidden) for labels in names)


def test_the_facets_of_the_bundled_set_are_parents(tmp_path):
    dxml_hierarchy.main([str(tmp_path)])
    true, shuffled = (read_hierarchy(tmp_path / name) for name in ("facets.tsv", "shuffled.tsv"))
    assert len(true.pairs) == len(shuffled.pairs) > 500
    parents = [
        {names[0] for names in (each.names[i] for i in each.pairs[:, 0])}
        for each in (true, shuffled)
    ]
    assert parents[0] == parents[1] >= {"works-with", "role"}
    assert dxml_hierarchy.find_parents(["a::b", "c"]) == [("a", "a::b")]


def test_settings_are_for_one_model_or_for_all():
    given = ["seed=3", "glas.dim=8", "mnn.dim=4"]
    assert update_study.choose_settings("glas", given) == {"seed": "3", "dim": "8"}
    assert update_study.choose_settings("linear", given) == {"seed": "3"}


def test_frequent_labels_are_not_hidden(data):
    train = load(data).train
    counts = np.asarray(train.Y.sum(axis=0)).ravel()
    most = float(np.median(counts)) / len(train)
    hidden = update_study.hide_labels(train, 1.0, seed=0, most=most)[2]
    number = {name: i for i, name in enumerate(train.label_names)}
    assert 0 < len(hidden) < 16
    assert max(counts[number[name]] for name in hidden) <= np.median(counts)
