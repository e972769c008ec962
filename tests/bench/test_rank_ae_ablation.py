"""The ablation of the Rank-AE paper, on made-up data."""

import json

import pytest
from planted import planted_texts

from bench import rank_ae_ablation

pytest.importorskip("torch")
pytest.importorskip("matplotlib")


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


def test_the_ablation_from_end_to_end(folder, tmp_path):
    out = tmp_path / "out"
    settings = ["--set", "dim=16", "--set", "word_dim=16", "--set", "epochs=3", "--device", "cpu"]
    rank_ae_ablation.main([str(folder), "--out", str(out), *settings])
    rows = (out / "ablation.md").read_text().splitlines()
    assert len(rows) == 2 + len(rank_ae_ablation.VARIANTS)
    assert (out / "ablation.png").stat().st_size > 5_000
