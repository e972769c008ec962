"""What training costs: the facts that an estimate depends on."""

from typing import Literal, NamedTuple

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
