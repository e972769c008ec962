"""The studies of the Rank-AE paper, on made-up data."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_texts

from bench import noise_study
from bench.noise_study import choose, list_runs, spoil

pytest.importorskip("torch")
pytest.importorskip("matplotlib")


@pytest.fixture
def Y():
    rng = np.random.default_rng(0)
    return sp.csr_matrix((rng.random((400, 50)) < 0.1).astype(np.float32))


@pytest.fixture
def folder(tmp_path):
    for part, seed in (("train", 0), ("test", 1)):
        data = planted_texts(seed=seed)
        lines = [
            json.dumps({"text": text, "labels": [data.label_names[i] for i in data.Y[row].indices]})
            for row, text in enumerate(data.texts)
        ]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6])
def test_missing_labels_are_removed_and_none_is_added(Y, rate):
    spoiled = spoil(Y, "missing", rate)
    assert ((spoiled - Y).toarray() <= 0).all()
    assert spoiled.nnz / Y.nnz == pytest.approx(1 - rate, abs=0.03)


def test_invalid_labels_take_the_place_of_the_missing(Y):
    spoiled = spoil(Y, "both", 0.5)
    assert (spoiled.data == 1).all()
    kept = spoiled.multiply(Y).nnz
    assert kept / Y.nnz == pytest.approx(0.5, abs=0.04)
    assert spoiled.nnz / Y.nnz == pytest.approx(1, abs=0.1)
    assert np.array_equal(spoil(Y, "both", 0.5).indices, spoiled.indices)


def test_documents_that_carry_all_labels_cannot_get_wrong_ones():
    Y = sp.csr_matrix(np.ones((3, 2), np.float32))
    assert spoil(Y, "both", 1.0).nnz > 0


def test_the_clean_fifth_chooses_the_setting():
    runs = [
        {"model": "a", "noise": "missing", "rate": 0.2, "valid": {"P@5": score}, "test": test}
        for score, test in ((10, "worse"), (20, "better"))
    ]
    assert [run["test"] for run in choose(runs)] == ["better"]


def test_without_noise_one_noise_is_enough():
    runs = list_runs(["linear"], ["missing", "both"], [0.0, 0.5])
    assert [(run["noise"], run["rate"]) for run in runs] == [
        ("missing", 0.0),
        ("missing", 0.5),
        ("both", 0.5),
    ]


@pytest.mark.slow
def test_the_noise_study_from_end_to_end(folder, tmp_path, monkeypatch, capsys):
    quick = {"dim": 16, "word_dim": 16, "epochs": 6}
    monkeypatch.setitem(noise_study.MODELS, "Rank-AE", ("rank-ae", [quick]))
    out = tmp_path / "out"
    command = [str(folder), "--out", str(out), "--models", "Rank-AE,linear", "--rates", "0,0.5"]
    noise_study.main([*command, "--device", "cpu", "--share", "2/2"])
    noise_study.main([*command, "--device", "cpu"])
    assert len(noise_study.read_runs(out / "runs.jsonl")) == 6
    assert (out / "noise.png").stat().st_size > 10_000
    table = (out / "noise.md").read_text()
    assert [row.split("|")[2].strip() for row in table.splitlines()[2:]] == [
        "Rank-AE",
        "linear",
    ] * 2
    assert " 0 % " in table
    capsys.readouterr()
    noise_study.main(command)
    assert "{" not in capsys.readouterr().out  # nothing was left to do
