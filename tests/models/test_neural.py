"""What the models that torch trains share, shown on GLaS where a model is needed."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

pytest.importorskip("torch", reason="training needs torch")

from longtail.errors import MissingExtraError, ParameterError, TrainingError
from longtail.models import neural
from longtail.models.attention_xml import network
from longtail.models.cost import Facts
from longtail.models.glas.model import GLaS
from longtail.models.registry import get_model_class
from longtail.runtime import rows
from longtail.runtime.mapped import Extent
from longtail.runtime.memory import Stage
from longtail.runtime.rows import view_rows
from longtail.training import loop, processes


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


# -- labels that are split among processes ----------------------------------------------------


class TwoProcesses:
    count, rank = 2, 0

    def share(self, value):
        return value


@pytest.mark.parametrize(("size", "is_split"), [(1 << 60, True), (1 << 10, False)])
def test_labels_are_split_where_they_do_not_fit(monkeypatch, size, is_split):
    monkeypatch.setattr(processes, "join_processes", lambda device: TwoProcesses())
    found = GLaS(device="cpu").share_labels(lambda model, n: [Stage({"labels": size})], 9, "cpu")
    assert (found is not None) == is_split


def test_labels_are_not_split_where_that_is_impossible(monkeypatch):
    monkeypatch.setattr(processes, "join_processes", lambda device: TwoProcesses())
    needs = [Stage({"labels": 1 << 60})]
    given = (lambda model, n: needs), 9, "cpu"
    assert GLaS(device="cpu").share_labels(*given, hindrance="loss=softmax") is None
    with pytest.raises(ParameterError, match=r"must be none or false with loss=softmax\. Got true"):
        GLaS(device="cpu", split_labels=True).share_labels(*given, hindrance="loss=softmax")


# -- what the optimizer remembers -------------------------------------------------------------


@pytest.mark.parametrize("name", ["glas", "mnn", "dxml", "rank-ae", "attention-xml"])
def test_the_plan_knows_how_the_optimizer_remembers(name, monkeypatch):
    monkeypatch.setattr(network, "count_numbers", lambda device: 1 << 26)  # there may be no GPU
    n, n_labels = 1_000_000, 2_000_000
    X, Y = Extent((n, 2_000_000), 50 * n, 200), Extent((n, n_labels), 5 * n, 20)
    on_gpu, in_ram = {}, {}
    for form in ("float32", "bfloat16", "int8", "host"):
        stages = get_model_class(name)(optimizer_state=form).needs_of(X, Y, "cuda")
        (stage,) = [stage for stage in stages if stage.gpu]
        on_gpu[form], in_ram[form] = stage.gpu["optimizer"], stage.ram["optimizer"]
    assert on_gpu["float32"] > on_gpu["bfloat16"] > on_gpu["int8"]
    assert in_ram["float32"] == in_ram["int8"] == 0
    assert in_ram["host"] > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mnn", {"dim": 16, "epochs": 1, "rank": "neighbours"}),
        ("dxml", {"dim": 16, "hidden": 16, "epochs": 1, "walks": 5}),
    ],
)
def test_few_documents_that_choose_are_not_learned_from_later(name, settings, monkeypatch):
    """They cost a second training otherwise; all documents vote in any case."""
    learned, train = [], loop.train

    def count(task, *args, **kwargs):
        learned.append(task.n_documents)
        return train(task, *args, **kwargs)

    monkeypatch.setattr(loop, "train", count)
    model_class = get_model_class(name)
    model_class(**settings, device="cpu").fit(planted_dataset())
    assert learned == [270, 300]
    learned.clear()
    monkeypatch.setattr(neural, "MOST_CHOOSING", 12)  # 4 % of the documents
    model = model_class(**settings, device="cpu").fit(planted_dataset())
    assert learned == [288]
    assert model.voters_.Y.shape[0] == 300
    sized = model_class(**settings).sized_for(300, "cpu")
    assert sized.valid == 0.04, "so that a trial on few documents trains once as well"


@pytest.mark.parametrize("name", ["mnn", "dxml"])
def test_one_training_is_estimated_to_take_half_of_two(name):
    few, many = (Facts(n, 100, 1000, 20 * n, False, "cpu") for n in (99_000, 101_000))
    estimate = get_model_class(name).estimate_cost
    assert estimate(many) == pytest.approx(estimate(few) / 2, rel=0.03)
