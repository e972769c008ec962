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
        speed: of the CPU, against the two cores that estimates were measured on.
    """

    n_documents: int
    n_labels: int
    n_features: int
    n_values: int
    has_texts: bool
    device: DeviceType
    speed: float = 1.0


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
