"""The studies of DXML run on made-up data."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gensim")

from bench import dxml_graph, dxml_study
from longtail.runtime.parallel import set_threads

SMALL = ["dim=8", "hidden=8", "walks=5", "neighbours=5", "epochs=2", "device=cpu"]


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "texts.jsonl"
    with path.open("w") as file:
        for _ in range(80):
            label = int(rng.integers(4))
            labels = [f"l{label}", f"l{(label + 1) % 4}"]
            file.write(json.dumps({"text": f"word{label} word{label}a", "labels": labels}) + "\n")
    return path


@pytest.mark.parametrize("study", dxml_study.STUDIES)
def test_each_study_prints_a_row_for_each_variant(study, data, tmp_path, capsys):
    settings = [part for pair in SMALL for part in ("--set", pair)]
    plot = [] if study != "network" else ["--plot", str(tmp_path / "plot.png")]
    if plot:
        pytest.importorskip("matplotlib")
    dxml_study.main([study, str(data), *settings, *plot])
    table = capsys.readouterr().out.split("| data")[1]
    for variant in dxml_study.STUDIES[study]:
        assert f" {variant} |" in table
    if plot:
        assert (tmp_path / "plot.png").stat().st_size > 1000


def test_held_out_documents_are_not_trained_on(data):
    from longtail import load

    kept, held = dxml_study.split(load(data).train)
    assert (len(kept), len(held)) == (64, 16)


def test_made_up_labels_are_seeded_and_have_a_long_tail():
    one, two = (dxml_graph.make_up_labels(3000, 500, 4.0) for _ in range(2))
    assert (one != two).nnz == 0
    assert 2.5 < one.nnz / 3000 < 4.5
    counts = np.sort(np.asarray(one.sum(axis=0)).ravel())
    assert counts[-50:].sum() > 2 * counts[:250].sum()


def test_the_graph_recipe_measures_each_step(capsys):
    try:
        dxml_graph.main(
            ["--labels", "50", "--documents", "300", "--dim", "8", "--walks", "2", "--threads", "1"]
        )
    finally:
        set_threads(None)
    table = capsys.readouterr().out
    for step in ("documents", "graph", "walks", "vectors"):
        assert f"| {step}" in table
