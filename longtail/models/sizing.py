"""What training takes at sizes that nobody has at hand: time, memory, disk and network.

Every number comes from the formulas by which training itself plans: `estimate_training` for time,
`needs_of` for memory. They get an `Extent` in place of the matrices, which says how large these
would be. Several machines divide the work evenly here, and what they exchange takes its time.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from longtail.data.labels import MAX_FEATURES, MAX_LABELS
from longtail.errors import ParameterError
from longtail.models.base import Model
from longtail.models.cost import Facts
from longtail.models.neural import Neural
from longtail.models.registry import get_model_class, model_names
from longtail.runtime.mapped import Extent
from longtail.runtime.memory import Needs

USUAL_CORES = 2  # for which `estimate_cost` gives seconds on a CPU
BYTES_A_WORD = 6  # of text: English words and a blank
LONGEST = 20  # times as many words as usual has the longest document
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_COUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmbg]?)", re.IGNORECASE)


@dataclass(frozen=True)
class Size:
    """The data and the machines of a training.

    Attributes:
        documents: how many there are.
        labels: how many there are.
        words: different words, or features, of a document.
        labels_each: labels of a document.
        features: words or features in all, at most; few documents have no more than theirs.
        nodes: machines.
        cores: of each machine.
        gpus: of all machines together.
        network: gigabits a second between machines.
    """

    documents: int
    labels: int
    words: int = 100
    labels_each: int = 5
    features: int = 1_000_000
    nodes: int = 1
    cores: int = 2
    gpus: int = 0
    network: int = 10

    def __post_init__(self) -> None:
        """Check the ranges."""
        most = {"labels": MAX_LABELS, "features": MAX_FEATURES, "documents": 10**12}
        for name, value in asdict(self).items():
            least, largest = int(name != "gpus"), most.get(name, 10**6)
            if not least <= value <= largest:
                raise ParameterError(
                    f"The '{name.replace('_', '-')}' of a plan must be from {least:,} to "
                    f"{largest:,}. Got {value:,} instead."
                )

    @property
    def rows(self) -> Extent:
        """How large X would be."""
        n_values = self.documents * self.words
        shape = self.documents, min(self.features, n_values)
        return Extent(shape, n_values, LONGEST * self.words)

    @property
    def pairs(self) -> Extent:
        """How large Y would be."""
        each = min(self.labels_each, self.labels)
        return Extent((self.documents, self.labels), self.documents * each, LONGEST * each)

    @property
    def packed_bytes(self) -> int:
        """What the packed data take on disk, with the rows that training makes of texts."""
        texts = 2 * BYTES_A_WORD * self.documents * self.words  # a word comes about twice
        rows = 8 * self.rows.nnz + 4 * self.pairs.nnz
        return texts + rows + 24 * self.documents


@dataclass(frozen=True)
class Sized:
    """What training a model takes.

    Attributes:
        model: its name.
        engine: what spreads the work: one machine, Ray or torchrun.
        seconds: of training, with what is exchanged.
        ram: bytes of memory on each machine; None if there is no formula.
        gpu: bytes on each GPU, 0 without any.
        disk: bytes on each machine, for data and model.
        network: bytes that all machines send in all.
        driver: what takes most of the memory.
    """

    model: str
    engine: str
    seconds: float
    ram: int | None
    gpu: int
    disk: int
    network: int
    driver: str


def parse_count(text: str, what: str) -> int:
    """Return the number that 5000, 300k, 2.5M or 1B stands for."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            f"The number of {what} must be such as 5000, 300k, 100M or 1B. Got '{text}' instead."
        )
    return round(float(match[1]) * _UNITS[match[2].lower()])


def size_models(
    size: Size, name: str | None = None, settings: Mapping[str, Any] | None = None
) -> list[Sized]:
    """Return what each model takes, or only the one that `name` says."""
    names = [name] if name is not None else [n for n in model_names() if n != "fusion"]
    return [_size(get_model_class(each).from_settings(settings or {}), size) for each in names]


def _size(model: Model, size: Size) -> Sized:
    on_gpus = model.needs_torch and size.gpus > 0
    facts = Facts(
        size.documents,
        size.labels,
        size.rows.shape[1],
        size.rows.nnz,
        "rows" not in model.reads,
        "cuda" if on_gpus else "cpu",
    )
    # The formulas ask an extent for nothing but what it knows.
    X, Y = cast(Any, size.rows), cast(Any, size.pairs)
    needs = model.needs_of(X, Y, facts.device)
    alone = model.estimate_training(facts)
    cores = size.nodes * size.cores / USUAL_CORES
    kept = model.kept_of(X, Y) if needs else 0
    if isinstance(model, Neural):
        engine, workers = "torchrun", size.gpus if on_gpus else size.nodes
        seconds = alone / (size.gpus if on_gpus else cores)
        sent = _count_exchanged(model, needs, size, facts.device) if workers > 1 else 0
        each = 2 * sent  # a ring of machines sends everything there and back
        network, seconds = workers * each, seconds + each * 8 / (size.network * 1e9)
        together = max(1, size.gpus // size.nodes) if on_gpus else 1
    else:
        is_spread = model.name == "linear"
        engine = "Ray" if is_spread and size.nodes > 1 else "one machine"
        seconds = alone / (cores if is_spread else size.cores / USUAL_CORES)
        network = (size.nodes - 1) * (8 * size.rows.nnz + kept) if engine == "Ray" else 0
        together = 1
    if size.nodes == 1 and size.gpus <= 1:
        engine = "one machine"
    ram, driver = _largest(needs, "ram")
    return Sized(
        model.name,
        engine,
        seconds,
        together * ram if needs else None,
        _largest(needs, "gpu")[0],
        size.packed_bytes + kept,
        network,
        driver if needs else "no formula",
    )


def _count_exchanged(model: Neural, needs: Needs, size: Size, device: str) -> int:
    """Return the bytes of gradients that a process sends in all steps of a training."""
    stages = [stage.ram if device == "cpu" else stage.gpu for stage in needs]
    each = max((stage.get("gradients", 0) for stage in stages), default=0)
    n_steps = -(-size.documents // model.choose_batch(size.documents))
    return each * n_steps * max(1, model.choose_epochs(size.documents))


def _largest(needs: Needs, place: str) -> tuple[int, str]:
    """Return what the largest stage takes, and which part of it takes most."""
    stages: list[Mapping[str, int]] = [getattr(stage, place) for stage in needs]
    parts = max(stages, key=lambda stage: sum(stage.values()), default={})
    return int(sum(parts.values())), max(parts, key=lambda name: parts[name], default="")
