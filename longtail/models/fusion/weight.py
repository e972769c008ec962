"""What members weigh and take: bytes in the model folder, milliseconds for one document.

A fusion's bytes are those of its members and of what they share: words and label names. A document
takes the time of its members, which are asked side by side.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from longtail.data import Dataset
from longtail.models.base import Model
from longtail.models.fusion.candidates import MOST_PROPOSED
from longtail.runtime.parallel import n_threads
from longtail.runtime.schema import Config, Value, number, whole
from longtail.runtime.store import Files
from longtail.text.tfidf import Tfidf

if TYPE_CHECKING:
    from longtail.models.fusion.training import HeldOutMember, MemberTrainer

TIMED = 15  # documents, one by one


class Weight(NamedTuple):
    """What a member, or what all of them share, costs.

    Attributes:
        n_bytes: in the model folder.
        milliseconds: for one document, at the median.
    """

    n_bytes: int
    milliseconds: float


def say_bytes(n_bytes: float) -> str:
    """Return 12.3 MB, in the units of file managers."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes / 1e3:.1f} kB"


def say_weight(weight: Weight) -> str:
    """Return 12.3 MB, 0.5 ms a document."""
    return f"{say_bytes(weight.n_bytes)}, {weight.milliseconds:.2g} ms a document"


def add_up(shared: Weight, members: Sequence[Weight]) -> Weight:
    """Return what a fusion costs: its members are asked side by side, as far as there are cores."""
    times = [member.milliseconds for member in members] or [0.0]
    together = max(max(times), sum(times) / n_threads())
    return Weight(
        shared.n_bytes + sum(member.n_bytes for member in members),
        shared.milliseconds + together,
    )


def time_documents(ask: Callable[[int], Any], n_documents: int) -> float:
    """Return the median of the milliseconds that one document takes; the first does not count."""
    seconds = []
    for which in range(min(TIMED, n_documents) + 1):
        began = time.perf_counter()
        ask(which % n_documents)
        seconds.append(time.perf_counter() - began)
    return 1e3 * float(np.median(seconds[1:]))


def weigh_shared(features: Tfidf | None, dataset: Dataset) -> Weight:
    """Return what words and labels cost."""
    files = Files(
        arrays={"label_counts": np.zeros(dataset.n_labels, np.int64)},
        texts={"label_names": list(dataset.label_names)},
    )
    if features is None:
        return Weight(files.n_bytes, 0.0)
    features.to_files(files)
    texts = dataset.texts or []
    takes = time_documents(lambda i: features.transform([texts[i]]), len(texts))
    return Weight(files.n_bytes, takes)


def weigh_member(model: Model, trainer: "MemberTrainer", grown: float = 1.0) -> Weight:
    """Return what a trained member costs; its bytes grow with the documents."""
    rows = np.arange(min(TIMED, trainer.facts.n_documents))
    width = min(MOST_PROPOSED, trainer.facts.n_labels)
    labels = np.arange(width, dtype=np.int32)[None, :]

    def ask(i: int) -> object:
        row = rows[i : i + 1]
        if model.has_search:
            return trainer.predict(model, row, width)
        return trainer.score(model, row, labels)  # what others propose

    takes = time_documents(ask, len(rows))
    files = model.to_files()
    files.texts.pop("label_names", None)
    return Weight(int(grown * files.n_bytes), takes)


class Scale:
    """Weighs members of a fusion that is being trained, each once."""

    def __init__(self, trainer: "MemberTrainer", features: Tfidf | None) -> None:
        self.trainer = trainer
        self.shared = weigh_shared(features, trainer.dataset)
        n, scheme = trainer.facts.n_documents, trainer.plan.scheme
        self._grown = n / (n - n * scheme.share) if scheme.refit else 1.0  # by all documents
        self._known: dict[str, Weight] = {}

    def weigh(self, members: "Mapping[str, HeldOutMember]") -> dict[str, Weight]:
        """Return what each member will cost once it is trained on all documents.

        Seeds of one form take as long as the quickest of them: more is a disturbed measurement.
        """
        least: dict[object, float] = {}
        for name, held in members.items():
            if name not in self._known:
                grown = 1.0 if held.member.once else self._grown
                self._known[name] = weigh_member(held.model, self.trainer, grown)
            takes, form = self._known[name].milliseconds, held.member.form
            least[form] = min(takes, least.get(form, takes))
        return {
            name: self._known[name]._replace(milliseconds=least[held.member.form])
            for name, held in members.items()
        }

    def total(self, members: "Mapping[str, HeldOutMember]") -> Weight:
        """Return what a fusion of these members costs."""
        return add_up(self.shared, list(self.weigh(members).values()))


class MemberReport(NamedTuple):
    """What is known of a member.

    Attributes:
        gain: points that held-out documents lose without it, the mean of P@1, P@5 and PSP@5 in
            percent; None if that was not measured.
        error: the standard error of the gain; None likewise.
        n_bytes: in the model folder.
        milliseconds: for one document, at the median.
        seconds: of training, in all.
    """

    gain: float | None
    error: float | None
    n_bytes: int
    milliseconds: float
    seconds: float

    @staticmethod
    def describe() -> Config:
        """Return the schema of a report in config.json."""
        return {
            "gain": Value(float | None),
            "error": Value(float | None),
            "n_bytes": whole(0),
            "milliseconds": number(0, 1e9),
            "seconds": number(0, 1e12),
        }

    @property
    def weight(self) -> Weight:
        """What it costs."""
        return Weight(self.n_bytes, self.milliseconds)

    def line(self) -> str:
        """Say it in one line."""
        gain = "" if self.gain is None else f"gains {self.gain:.2f} ± {self.error or 0:.2f}, "
        return f"{gain}{say_weight(self.weight)}, trained in {self.seconds:.0f} s"


def describe_members(
    report: Mapping[str, MemberReport], dropped: Mapping[str, MemberReport]
) -> list[str]:
    """Return a line for each member, and for each that was dropped."""
    lines = [f"{name}: {each.line()}" for name, each in report.items()]
    return lines + [f"{name} (dropped): {each.line()}" for name, each in dropped.items()]
