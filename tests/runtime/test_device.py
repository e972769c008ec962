"""Where models predict."""

import pytest

import longtail
from longtail import ParameterError
from longtail.runtime import device
from longtail.runtime.device import chosen_device, set_device
from longtail.search.gpu import gpu_is_there


@pytest.fixture(autouse=True)
def restore():
    yield
    set_device("auto")


def test_a_cpu_is_taken_where_it_was_chosen(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu_is_there()
    longtail.set_device("cpu")
    assert chosen_device() == "cpu"
    assert not gpu_is_there()
    longtail.set_device("cuda")
    assert gpu_is_there()


@pytest.mark.parametrize("found", [None, "torch"])
def test_a_gpu_that_is_not_there_is_an_error(monkeypatch, found):
    if found:
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    else:
        monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(ParameterError) as caught:
        set_device("cuda")
    assert str(caught.value) == (
        "there is no GPU that torch can use; choose the device cpu or auto"
    )
    assert chosen_device() == "auto"


def test_another_name_is_an_error_with_a_suggestion():
    with pytest.raises(ParameterError) as caught:
        set_device("cudda")
    assert str(caught.value) == (
        "The device must be 'auto', 'cpu' or 'cuda'. Got 'cudda' instead; did you mean 'cuda'?"
    )
