"""Models that earlier versions saved go on loading and say what they said then."""

import json
from pathlib import Path

import numpy as np
import pytest
from planted import planted_texts

from longtail import load_model

FOLDERS = sorted((Path(__file__).parent / "releases").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_model_of_an_earlier_version_predicts_as_it_did(folder):
    expected = json.loads((folder / "expected.json").read_text())
    top = load_model(folder / "model").predict(planted_texts(n=5, n_labels=12, seed=1).texts)
    assert top.labels.tolist() == expected["labels"]
    np.testing.assert_allclose(top.scores, expected["scores"], rtol=1e-4)


def test_there_is_a_linear_model():
    assert "linear" in {folder.name.rpartition("-")[0] for folder in FOLDERS}
