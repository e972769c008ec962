"""Labels spoiled on purpose, and what methods trained with them reach."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from made_up_comparison import made_up_run, make_split, results_of
from planted import planted_texts

from longtail.compare.noise import (
    Noise,
    draw_others,
    keep_clean,
    parse_noise,
    spoil,
    write_spoiled,
)
from longtail.compare.split import checksum, write_given
from longtail.compare.table import noise_rows, write_table
from longtail.evaluation.metrics import evaluate


@pytest.fixture
def Y():
    rng = np.random.default_rng(0)
    return sp.csr_matrix((rng.random((400, 50)) < 0.1).astype(np.float32))


def test_noise_as_the_command_line_names_it():
    found = parse_noise(["invalid=0.4", "missing=0.6, 0.2,0"], "0.1")
    assert [str(noise) for noise in found] == [
        "missing=0.2",
        "missing=0.6",
        "invalid=0.1",
        "invalid=0.4",
    ]
    assert parse_noise([]) == []


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_missing_labels_are_removed_and_none_is_added(Y, rate):
    spoiled = spoil(Y, Noise("missing", rate), seed=0)
    assert ((spoiled - Y).toarray() <= 0).all()
    assert spoiled.nnz / Y.nnz == pytest.approx(1 - rate, abs=0.03)


def test_a_higher_rate_removes_those_of_a_lower_one_as_well(Y):
    low, high = (spoil(Y, Noise("missing", rate), seed=3) for rate in (0.2, 0.5))
    assert ((high - low).toarray() <= 0).all()


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_each_missing_label_has_a_wrong_one_in_its_place(Y, rate):
    spoiled = spoil(Y, Noise("invalid", rate), seed=1)
    missing = spoil(Y, Noise("missing", rate), seed=1)
    assert (spoiled.data == 1).all()
    assert (np.diff(spoiled.indptr) == np.diff(Y.indptr)).all()  # as many as before
    assert spoiled.multiply(Y).nnz == missing.nnz  # no wrong one is right by chance
    assert spoiled.has_canonical_format


def test_wrong_labels_are_drawn_evenly_among_those_that_occur():
    Y = sp.csr_matrix(np.tile(np.eye(4, 6, dtype=np.float32), (2000, 1)))  # labels 4, 5: never
    counts = np.bincount(spoil(Y, Noise("invalid", 0.5), seed=0).indices, minlength=6)
    assert counts[4:].sum() == 0
    assert counts[:4] == pytest.approx([2000] * 4, rel=0.07)


def test_the_seed_chooses_the_labels(Y):
    noise = Noise("invalid", 0.5)
    first, again, other = (spoil(Y, noise, seed) for seed in (0, 0, 1))
    assert (first != again).nnz == 0
    assert (first != other).nnz > 0


def test_others_are_all_that_a_document_does_not_carry():
    rng = np.random.default_rng(0)
    assert sorted(draw_others(np.array([0, 2, 3, 7]), 4, 8, rng)) == [1, 4, 5, 6]
    assert sorted(draw_others(np.array([0, 2, 3, 7]), 9, 8, rng)) == [1, 4, 5, 6]
    assert len(draw_others(np.arange(3), 2, 3, rng)) == 0


def test_a_document_that_carries_all_labels_only_loses_some():
    Y = sp.csr_matrix(np.ones((30, 2), np.float32))
    assert 0 < spoil(Y, Noise("invalid", 0.5), seed=0).nnz < 60


def test_a_fifth_stays_clean_and_apart(tmp_path):
    split = make_split(100)
    kept = keep_clean(split, [Noise("missing", 0.5)], [0], tmp_path)
    assert (len(kept.train), len(kept.clean), len(kept.to_label)) == (60, 15, 25 + 15)
    rows = sp.vstack([kept.train.X, kept.clean.X]).sum(), split.train.X.sum()
    assert rows[0] == pytest.approx(rows[1])
    assert kept.describe()["sha256"]["clean"] == checksum(kept.clean)


def test_methods_read_the_same_documents_with_other_labels(tmp_path):
    split = make_split(plant=planted_texts, clean=True)
    write_given(split, tmp_path / "given", with_rows=True, tfidf={})
    Y = spoil(split.train.Y, Noise("missing", 0.5), seed=0)
    write_spoiled(tmp_path / "given", tmp_path / "spoiled", Y)
    names = [
        sorted(path.name for path in (tmp_path / each).rglob("*")) for each in ("given", "spoiled")
    ]
    assert names[0] == names[1]
    for folder in (tmp_path / "spoiled", tmp_path / "spoiled" / "rows"):
        assert sp.load_npz(folder / "train_Y.npz").nnz == Y.nnz < split.train.Y.nnz
    texts = json.loads((tmp_path / "spoiled" / "test_texts.json").read_text())
    assert texts == [*split.test.texts, *split.clean.texts]


def test_points_are_means_over_seeds_on_test_and_clean_documents():
    split = make_split(400, clean=True)
    noise = Noise("invalid", 0.4)
    plain = [made_up_run("a", split, 0.1, seed) for seed in (1, 2)]
    noisy = [made_up_run("a", split, 0.5, seed, noise) for seed in (1, 2)]
    results = results_of(*plain, *noisy, split=split)
    assert results["methods"][0]["seeds"] == [1, 2]
    none, some = results["noise"]["points"]
    assert (none["kind"], none["rate"], some["rate"]) == ("invalid", 0, 0.4)
    for part, data in (("test", split.test), ("clean", split.clean)):
        tops = [run.top if part == "test" else run.clean_top for run in noisy]
        values = [evaluate(top, data)["P@3"] for top in tops]
        assert some[part]["P@3"]["value"] == pytest.approx(np.mean(values))
        assert some[part]["P@3"]["sd"] == pytest.approx(np.std(values, ddof=1))
    headings, rows = noise_rows(results["noise"], "invalid")
    assert headings == ["method", "", "0 %", "40 %"]
    assert [row[:2] for row in rows] == [
        ["a", "P@1"],
        ["a", "P@3"],
        ["a", "P@5"],
        ["a", "P@5, clean"],
    ]
    assert rows[1][3] in write_table(results)
