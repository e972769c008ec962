"""What the models that torch trains share, shown on GLaS where a model is needed."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

pytest.importorskip("torch", reason="training needs torch")

from longtail.errors import MissingExtraError, TrainingError
from longtail.models import neural
from longtail.models.glas.model import GLaS
from longtail.runtime import rows
from longtail.runtime.rows import view_rows


def test_features_are_weighed_where_rows_hold_counts():
    X = sp.csr_matrix(np.array([[1, 2, 0], [1, 0, 0]], np.float32))
    expected = np.log(3 / (1 + np.array([2, 1, 0]))) + 1
    np.testing.assert_allclose(neural.weigh_features(X), expected, rtol=1e-6)
    assert (neural.weigh_features(X / 3) == 1).all()


@pytest.mark.parametrize(
    ("n_documents", "size"),
    [(1, 1), (100, 12), (5000, 64), (12_920, 96), (33_485, 256), (10**7, 4096)],
)
def test_batches_grow_with_the_documents(n_documents, size):
    assert neural.choose_batch_size(n_documents) == size


def test_held_out_documents_are_the_others():
    kept, held = rows.hold_out(10, 0.3, seed=5)
    assert len(held) == 3
    assert sorted([*kept, *held]) == list(range(10))
    assert len(rows.hold_out(1, 0.9, seed=0)[0]) == 1, "something is left to train on"


def test_pairs_of_a_batch():
    Y = sp.csr_matrix(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.float32))
    documents, labels = rows.pairs_of(view_rows(Y), np.array([2, 1, 0]))
    assert documents.tolist() == [0, 2, 2]
    assert labels.tolist() == [1, 0, 2]


def test_other_data_have_another_fingerprint():
    X = sp.csr_matrix(np.eye(3, dtype=np.float32))
    first, second = neural.fingerprint(X, X), neural.fingerprint(X, X[[1, 0, 2]])
    assert first == neural.fingerprint(X.copy(), X.copy()) != second


def test_training_without_torch_names_the_command(monkeypatch):
    monkeypatch.setattr(neural, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        GLaS().fit(planted_dataset())
    assert str(caught.value) == (
        "GLaS needs torch, which is not installed; install it with: pip install '.[deep]'"
        ", in the folder with longtail's source"
    )


def test_a_loss_that_is_no_number_leaves_a_model_that_can_be_used(monkeypatch):
    from longtail.models.glas.network import GLaSTask

    n_calls, loss = iter(range(100)), GLaSTask.loss
    monkeypatch.setattr(
        GLaSTask, "loss", lambda *all: loss(*all) * (float("nan") if next(n_calls) == 5 else 1)
    )
    model = GLaS(dim=8, epochs=2)
    with pytest.raises(TrainingError, match=r"became nan at step 6 of \d+ \(epoch 1\)"):
        model.fit(planted_dataset())
    assert np.isfinite(model.predict(planted_dataset()).scores).all()


def test_a_learning_rate_beyond_reason():
    with pytest.raises(TrainingError, match="no earlier weights are of use; try a smaller"):
        GLaS(dim=8, epochs=2, learning_rate=1e38).fit(planted_dataset())
