"""A model is saved only if it can be opened again."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import longtail
from longtail.errors import TrainingError
from longtail.models.base import Model
from longtail.models.registry import get_model_class


def _data() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    Y = sp.csr_matrix((rng.random((60, 6)) < 0.4).astype(np.float32))
    X = sp.random(60, 12, density=0.5, random_state=1, format="csr", dtype=np.float32)
    return X, Y


def _fit(name: str, **parameters: Any) -> Model:
    return get_model_class(name)(**parameters).fit(*_data())


def test_what_could_not_be_opened_again_replaces_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    _fit("linear").save(folder)
    model = _fit("knn")
    model.training_counts_.label_counts[0] = 1000
    expected = (
        f"{folder}: the model was not saved, as it could not be opened again: label_counts must "
        "hold whole numbers from 0 to n_documents; nothing was replaced. Feature values that "
        "are extremely large or small may be the cause: scale them to about 1 and train again"
    )
    with pytest.raises(TrainingError, match=f"^{re.escape(expected)}$"):
        model.save(folder, overwrite=True)
    assert longtail.load_model(folder).name == "linear"
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_members_are_checked_as_well(tmp_path: Path) -> None:
    model = _fit("fusion", members="linear,knn")
    model.save(tmp_path / "good")
    assert longtail.load_model(tmp_path / "good").name == "fusion"
    model.members_["knn"].training_counts_.label_counts[0] = 1000
    expected = "opened again: member knn: label_counts must hold whole numbers from 0 to n_documen"
    with pytest.raises(TrainingError, match=expected):
        model.save(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
