"""What training costs in time: the facts that an estimate depends on, and what is absurd."""

from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import scipy.sparse as sp

DeviceType = Literal["cpu", "cuda"]


class Facts(NamedTuple):
    """What is known of data and machine before training.

    Attributes:
        n_documents: to train on.
        n_labels: all of them.
        n_features: columns of the rows.
        n_values: stored values of the rows.
        has_texts: whether the documents are texts.
        device: where torch will train.
    """

    n_documents: int
    n_labels: int
    n_features: int
    n_values: int
    has_texts: bool
    device: DeviceType


class Cost(NamedTuple):
    """What a training takes, and at least what a model that it makes.

    Attributes:
        rest: seconds of all that is no epoch.
        epoch: seconds of an epoch, 0 for a model that has none.
        epochs: how many suit the documents best, 0 likewise.
        n_bytes: of the trained model, at least.
        milliseconds: that it takes for one document, at least.
    """

    rest: float
    epoch: float = 0.0
    epochs: int = 0
    n_bytes: int = 0
    milliseconds: float = 0.0

    @classmethod
    def guess(cls, seconds: float, epochs: int) -> "Cost":
        """Share an estimate out between epochs, if there are any, and the rest."""
        if not epochs:
            return cls(seconds)
        return cls((1 - IN_EPOCHS) * seconds, IN_EPOCHS * seconds / epochs, epochs)

    def seconds(self, epochs: int | None = None) -> float:
        """Return how long a training takes, with fewer epochs if they are given."""
        return self.rest + self.epoch * (self.epochs if epochs is None else epochs)

    def epochs_in(self, seconds: float) -> int:
        """Return how many epochs there is time for, none if there are none to choose."""
        if not self.epoch or seconds < self.rest:
            return 0
        return min(self.epochs, int((seconds - self.rest) / self.epoch))

    def times(self, factor: float) -> "Cost":
        """Return the cost where everything takes so many times as long."""
        return self._replace(rest=factor * self.rest, epoch=factor * self.epoch)


IN_EPOCHS = 0.85  # of an estimate that was not measured


def estimate_by_document(
    facts: Facts, cpu: tuple[float, float], cuda: tuple[float, float]
) -> float:
    """Return a constant and milliseconds for each document, by the device, as seconds."""
    constant, each = cpu if facts.device == "cpu" else cuda
    return constant + each * facts.n_documents / 1000


def find_facts(model: Any, X: sp.csr_matrix, Y: sp.csr_matrix, has_texts: bool) -> Facts:
    """Return the facts of the rows that a model will be trained on; only what it needs is asked."""
    device: DeviceType = "cpu"
    if model.needs_torch and find_spec("torch") is not None:
        from longtail.training.processes import choose_device

        device = "cuda" if choose_device(model.device).type == "cuda" else "cpu"
    return Facts(X.shape[0], Y.shape[1], X.shape[1], X.nnz, has_texts, device)


MOST_SECONDS = 30 * 86_400.0  # that parameters may make of a training
STEP_SECONDS = 0.002  # of a training step, however few documents it has

_UNITS = ((31_557_600, "years"), (86_400, "days"))


def format_seconds(seconds: float) -> str:
    """Return 45 s, 3 min, 2 h 5 min, 12 days or 3,000 years."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
