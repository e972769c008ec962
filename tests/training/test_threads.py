"""Torch follows the number of threads that is set for all work."""

import pytest

torch = pytest.importorskip("torch")

from planted import planted_texts  # noqa: E402

from longtail import AttentionXML, set_threads  # noqa: E402
from longtail.progress import Progress  # noqa: E402
from longtail.training.threads import follow_threads  # noqa: E402

TINY = {"hidden": 8, "head": 8, "word_dim": 8, "epochs": 1, "device": "cpu"}


@pytest.fixture(autouse=True)
def _back_to_all():
    follow_threads()
    before = torch.get_num_threads()
    yield
    set_threads(None)
    follow_threads()
    assert torch.get_num_threads() == before


class Watch(Progress):
    """Remember how many threads torch has while it trains."""

    def __init__(self):
        self.seen = set()

    def advance(self, amount):
        self.seen.add(torch.get_num_threads())


@pytest.mark.parametrize("n", [1, 3])
def test_training_and_prediction_follow(n):
    watch = Watch()
    set_threads(n)
    model = AttentionXML(**TINY).fit(planted_texts(), progress=watch)
    assert n in watch.seen
    set_threads(4 - n)
    model.predict(["word1 word2"])
    assert torch.get_num_threads() == 4 - n


def test_without_a_number_torch_is_left_alone():
    torch.set_num_threads(5)
    follow_threads()
    assert torch.get_num_threads() == 5
    set_threads(2)
    follow_threads()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(3)  # by hand, after that
    follow_threads()
    assert torch.get_num_threads() == 3
