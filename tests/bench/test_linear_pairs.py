"""The study of word pairs tells data whose labels are pairs from data whose labels are words."""

import json

import numpy as np
import scipy.sparse as sp

from bench import linear_pairs
from longtail.data.dataset import Dataset


def make_pairs() -> Dataset:
    """Return texts whose label is which of two words comes first."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 200)
    texts = [f"noise{i % 5} a b noise" if way else f"noise{i % 5} b a noise" for i, way in
             enumerate(first)]  # fmt: skip
    Y = sp.csr_matrix((np.ones(200, np.float32), (np.arange(200), first)), shape=(200, 2))
    return Dataset(Y, ["ba", "ab"], texts=texts)


def test_pairs_gain_where_labels_are_pairs():
    train, held = make_pairs().split(0.25)
    assert linear_pairs.measure(train, held).points > 5
    shuffled = Dataset(train.Y, train.label_names, texts=["noise"] * len(train))
    assert linear_pairs.measure(shuffled, held).points == 0


def test_labels_are_drawn_with_all_their_documents_and_no_other_label():
    labels = np.arange(300) % 30
    ones = np.ones(300, np.float32)
    Y = sp.csr_matrix((ones, (np.arange(300), labels)), shape=(300, 30))
    data = Dataset(Y, [f"l{i}" for i in range(30)], texts=[f"text {i}" for i in range(300)])
    drawn = linear_pairs.draw_labels(data, 45, np.random.default_rng(0))
    assert len(drawn) == 50
    assert drawn.n_labels == 5
    assert (np.asarray(drawn.Y.sum(axis=0)) == 10).all()


def test_the_study_prints_trials_beside_what_is_true(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(linear_pairs, "SIZES", (60,))
    data = make_pairs()
    names = np.array(data.label_names)[data.Y.indices]
    lines = [
        json.dumps({"text": text, "labels": [name]})
        for text, name in zip(data.texts or [], names, strict=True)
    ]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    linear_pairs.main([str(tmp_path / "small.jsonl"), "--words", "3", "--seeds", "2"])
    printed = capsys.readouterr().out
    assert "small.jsonl, 3 words: pairs gain" in printed
    assert "60 documents" in printed
    assert "2 of 2" in printed
