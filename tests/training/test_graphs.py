"""Steps by CUDA graphs are those that would be taken without them."""

import logging
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from longtail.training import graphs  # noqa: E402
from longtail.training.config import TrainingConfig  # noqa: E402
from longtail.training.graphs import StepGraphs, set_rate  # noqa: E402
from longtail.training.layers import RowAdam, read_once, take_rows  # noqa: E402
from longtail.training.loop import train  # noqa: E402

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
CPU = torch.device("cpu")


class Task:
    """Rows of a table, some of them by a batch, and a layer with dropout."""

    replays = True
    n_documents = 400

    def __init__(self):
        torch.manual_seed(0)
        self.module = torch.nn.Module()
        self.module.table = read_once(torch.nn.Parameter(torch.randn(50, 8)))
        self.module.layer = torch.nn.Linear(8, 4)
        self.tried = 0

    def batch(self, rows, rng, mine=slice(None)):
        touched = np.sort(rng.permutation(50)[: 20 + len(rows) % 3])
        return {
            "touched": torch.from_numpy(touched),
            "places": torch.from_numpy(rng.integers(0, 20, len(rows))),
            "right": torch.from_numpy(rng.integers(0, 4, len(rows))),
        }

    def loss(self, batch):
        self.tried += 1
        words = take_rows(self.module.table, batch["touched"]).index_select(0, batch["places"])
        scores = self.module.layer(torch.nn.functional.dropout(words, 0.2))
        return torch.nn.functional.cross_entropy(scores, batch["right"])

    def optimizers(self, learning_rate):
        rest = torch.optim.Adam(self.module.layer.parameters(), learning_rate, fused=True)
        return [RowAdam(self.module.table, learning_rate), rest]

    def validate(self):
        return None


def test_where_nothing_can_be_recorded_steps_are_taken_as_before(caplog):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.5)
    taken = StepGraphs([optimizer], CPU)
    if torch.cuda.is_available():
        taken._record = lambda batch, step: 1 / 0
    with caplog.at_level(logging.DEBUG, logger="longtail.training"):
        found = [taken.take({"x": torch.full((2,), i)}, lambda b: b["x"] + 1) for i in range(3)]
    assert [each.tolist() for each in found] == [[1, 1], [2, 2], [3, 3]]
    assert not taken.works
    assert [record.levelname for record in caplog.records] == ["DEBUG"]  # said once
    assert "without a CUDA graph" in caplog.text


def test_steps_are_recorded_anew_once_weights_have_moved(monkeypatch):
    weight = torch.nn.Parameter(torch.zeros(3))
    recorded = []

    def record(self, batch, step):
        recorded.append(weight.data_ptr())
        memory = weight.data
        return types.SimpleNamespace(replay=lambda batch: memory.add_(batch["x"]))

    monkeypatch.setattr(StepGraphs, "_record", record)
    taken = StepGraphs([torch.optim.SGD([weight], 0.5)], CPU)

    def step(batch):
        weight.data.add_(batch["x"])

    for _ in range(3):
        taken.take({"x": torch.ones(3)}, step)
    assert len(recorded) == 1
    before, weight.data = weight.data, weight.data.clone()  # as an LSTM's `flatten_parameters`
    for _ in range(2):
        taken.take({"x": torch.ones(3)}, step)
    assert weight.tolist() == [5, 5, 5]
    assert before.tolist() == [3, 3, 3]
    assert recorded[1:] == [weight.data_ptr()]


def test_a_rate_is_set_where_it_lies():
    plain, placed = {"lr": 0.1}, {"lr": torch.tensor(0.1)}
    tensor = placed["lr"]
    set_rate(plain, 0.2)
    set_rate(placed, 0.2)
    assert plain["lr"] == 0.2
    assert placed["lr"] is tensor
    assert float(tensor) == pytest.approx(0.2)


def test_row_adam_takes_a_rate_that_is_a_tensor():
    moved = []
    for rate in (0.1, torch.tensor(0.1)):
        weight = torch.nn.Parameter(torch.ones(4, 2))
        optimizer = RowAdam(weight, rate)
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            take_rows(weight, torch.tensor([1, 3])).sum().backward()
            optimizer.step()
        moved.append(weight.detach().clone())
    assert torch.equal(*moved)


@ON_GPU
def test_as_many_graphs_as_shapes_and_the_same_losses(monkeypatch):
    config = TrainingConfig(epochs=10, batch_size=90, learning_rate=0.01, schedule="cosine", clip=1)
    made = []
    forget = StepGraphs.forget

    def noted(self):
        made.append((self.works, len(self.recorded)))
        forget(self)

    monkeypatch.setattr(StepGraphs, "forget", noted)
    replayed, plain = Task(), Task()
    by_graphs = train(replayed, config, device="cuda")
    plain.replays = False
    by_hand = train(plain, config, device="cuda")
    assert made == [(True, 2)]  # whole batches, and the last of an epoch
    assert replayed.tried < 10 < plain.tried == 50
    losses = [[record["loss"] for record in history.records] for history in (by_graphs, by_hand)]
    assert len(losses[0]) == 50
    assert np.allclose(*losses, rtol=1e-4)
    weights = [task.module.state_dict() for task in (replayed, plain)]
    for name, weight in weights[0].items():
        assert torch.allclose(weight, weights[1][name], atol=1e-4)


@ON_GPU
def test_weights_that_move_between_steps_go_on_learning():
    class Moving(Task):
        def validate(self):
            self.module.layer.weight.data = self.module.layer.weight.data.clone()
            return {"P@1": 0.0}

    config = TrainingConfig(epochs=10, batch_size=90, learning_rate=0.01, metric="P@1")
    replayed, plain = Moving(), Moving()
    plain.replays = False
    losses = [
        [record["loss"] for record in train(task, config, device="cuda").records]
        for task in (replayed, plain)
    ]
    assert replayed.tried < plain.tried
    assert np.allclose(*losses, rtol=1e-4)


@ON_GPU
def test_no_more_graphs_than_are_allowed(monkeypatch):
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 1)
    config = TrainingConfig(epochs=4, batch_size=90, learning_rate=0.01)
    task = Task()
    train(task, config, device="cuda")
    assert task.tried == 2 + 4  # one shape twice, the other every time
