"""Steps that are no good change no weight, though nobody has waited to see them."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from planted_task import CONFIG, PlantedTask, weights  # noqa: E402

from longtail.training.checks import Guard  # noqa: E402
from longtail.training.layers import RowAdam  # noqa: E402
from longtail.training.loop import train  # noqa: E402

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class FusedTask(PlantedTask):
    """Its optimizers ask before they take a step."""

    def optimizers(self, learning_rate):
        embedding, output = self.module.embedding, self.module.output
        rest = [*embedding.parameters(), *output.parameters()]
        rest.remove(embedding.weight)
        return [
            RowAdam(embedding.weight, learning_rate),
            torch.optim.Adam(rest, learning_rate, fused=True),
        ]


def test_a_closed_guard_stays_closed_until_it_is_opened():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], 0.1, fused=True)
    guard = Guard([optimizer], torch.device("cpu"))
    seen = []
    for loss in (1.0, float("nan"), 1.0):
        guard.close_unless_finite(torch.tensor(loss), torch.tensor(1.0))
        weight.grad = torch.ones(3)
        optimizer.step()
        seen.append(weight.detach().clone())
    assert (seen[0] < 1).all()
    assert torch.equal(seen[1], seen[0])
    assert torch.equal(seen[2], seen[0])
    guard.open()
    optimizer.step()
    assert (weight < seen[0]).all()


def test_only_optimizers_that_ask_are_guarded():
    weight = torch.nn.Parameter(torch.ones(3, 2))
    gpu = torch.device("cuda")
    asks = [RowAdam(weight), torch.optim.Adam([weight], fused=True)]
    assert Guard.suits(asks, gpu)
    assert not Guard.suits(asks, torch.device("cpu"))
    assert not Guard.suits([*asks, torch.optim.SGD([weight])], gpu)


@ON_GPU
def test_a_gpu_ends_with_the_weights_before_the_loss_broke():
    task, good = FusedTask(), FusedTask()
    task.on_loss = lambda step, loss: loss * float("nan") if step == 8 else loss
    good.validate = task.validate = lambda: None
    plan = replace(CONFIG, averaging=None)
    history = train(task, plan, device="cuda")
    assert "the loss became nan at step 8 of 18 (epoch 2)" in history.problem
    assert history.n_steps == 7
    good.on_loss = lambda step, loss: loss if step < 8 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(good, plan, device="cuda")
    for name, array in weights(good).items():
        np.testing.assert_array_equal(weights(task)[name], array)
