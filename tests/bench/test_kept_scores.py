"""What members say of held-out documents is kept, fold by fold."""

import numpy as np
from command_line import write_texts

from bench import kept_scores


def test_each_document_is_held_out_once(tmp_path):
    for name, seed in (("train", 0), ("test", 1)):
        write_texts(tmp_path / f"{name}.jsonl", 60, seed=seed)
    out = tmp_path / "kept.npz"
    kept_scores.main([str(tmp_path), "--out", str(out), "--members", "knn", "--most", "3"])
    names, parts = kept_scores.read_parts(out)
    assert names == ["knn"]
    assert sorted(np.concatenate([part.held for part in parts]).tolist()) == list(range(60))
    for part in parts:
        assert not set(part.kept.tolist()) & set(part.held.tolist())
        assert part.scores.shape == (1, *part.labels.shape)
        assert part.labels.shape[0] == len(part.held)
        assert 0 <= part.scores.min() < part.scores.max() <= 1
