"""The running mean of weights."""

import pytest

torch = pytest.importorskip("torch", reason="weights are torch's tensors")

from longtail.training.averaging import WeightMean  # noqa: E402


@pytest.fixture
def weight():
    return torch.nn.Parameter(torch.tensor([1.0, 2.0]))


def move(weight, values):
    with torch.no_grad():
        weight.copy_(torch.tensor(values))


def test_the_mean_of_what_was_added(weight):
    mean = WeightMean([weight])
    mean.add()
    move(weight, [3.0, 2.0])
    mean.add()
    move(weight, [8.0, -1.0])
    mean.add()
    with mean.in_place():
        assert weight.tolist() == [4, 1]
    assert weight.tolist() == [8, -1]


def test_without_any_the_weights_stay(weight):
    with WeightMean([weight]).in_place():
        assert weight.tolist() == [1, 2]


def test_the_weights_come_back_after_an_error(weight):
    mean = WeightMean([weight])
    mean.add()
    move(weight, [5.0, 5.0])
    with pytest.raises(ZeroDivisionError), mean.in_place():
        raise ZeroDivisionError
    assert weight.tolist() == [5, 5]


def test_a_restored_mean_goes_on(weight):
    mean, again = WeightMean([weight]), WeightMean([weight])
    mean.add()
    again.restore(mean.n_added, mean.values)
    move(weight, [3.0, 4.0])
    again.add()
    assert again.values[0].tolist() == [2, 3]
    assert mean.values[0].tolist() == [1, 2]
