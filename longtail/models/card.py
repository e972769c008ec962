"""The card of a model: what it was trained on, when, how, with which result, and its limits.

`fit` begins it, `longtail.train` adds what it measured, saving writes it beside the model, as
`card.json` for programs and `card.md` for people. It holds all that may differ between two
trainings of the same model, such as the date. A card that is read may be a stranger's: it is
checked, and nothing but showing it depends on it.
"""

import hashlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from longtail.data import Dataset
from longtail.errors import ModelFileError
from longtail.version import __version__
from longtail.visible import as_json, visible

PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "torch")
HELD_OUT = ("P", "nDCG", "PSP", "recall", "F1-macro", "coverage")  # that the page shows
OTHERS = {
    "n_documents": "documents",
    "ECE": "expected calibration error, from 0 to 1",
    "threshold": "probability from which labels are given",
    "F1-micro": "F1-micro of the labels given",
    "F1-macro": "F1-macro of the labels given",
}
FEW = 5  # documents; labels with fewer are rarely found
MOST_ENTRIES = 1000  # of a group, in a card that is no attack
MOST_LETTERS = 10_000
CUT = re.compile(r"[^@]+@[1-9][0-9]{0,8}")  # the name of a metric with a k

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Card:
    """Where a model comes from.

    Attributes:
        model: its name.
        trained: when, in UTC.
        command: that trained it; None if a program did.
        seconds: that training took, with measuring; None if nobody measured.
        data: the training documents: their source, counts and checksum.
        settings: the parameters.
        versions: of longtail, Python and the packages that compute.
        metrics: on held-out documents, in percent; empty if none were held out.
        speed: documents labelled per second, and milliseconds for a single one.
        n_bytes: the size of the saved model.
        notes: what the model says about its training, such as what its members gain.
        history: what happened to it after training, with dates.
        limits: what not to expect of it.
    """

    model: str
    trained: str
    command: str | None = None
    seconds: float | None = None
    data: Facts = field(default_factory=dict)
    settings: Facts = field(default_factory=dict)
    versions: Facts = field(default_factory=dict)
    metrics: Facts = field(default_factory=dict)
    speed: Facts = field(default_factory=dict)
    n_bytes: int | None = None
    notes: Sequence[str] = ()
    history: Sequence[str] = ()
    limits: Sequence[str] = ()

    @classmethod
    def begin(cls, model: str, dataset: Dataset) -> "Card":
        """Return the card of a model that was trained on `dataset` just now."""
        return cls(model, trained=now(), data=describe_data(dataset), versions=find_versions())

    def add_to_history(self, event: str) -> "Card":
        """Return the card with something that happened today."""
        return replace(self, history=[*self.history, f"{now()}: {event}"])

    @property
    def summary(self) -> str:
        """What it was trained on, and when, in a line."""
        known = (
            f" on {_spell(self.data['documents'])} documents" if "documents" in self.data else ""
        )
        source = f" from {self.data['source']}" if self.data.get("source") else ""
        return f"trained {self.trained[:10]}{known}{source}"

    # -- files ----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return what `card.json` holds."""
        return as_json(_plain(asdict(self)), indent=2) + "\n"

    @classmethod
    def from_json(cls, held: Facts) -> "Card":
        """Take what `card.json` holds; ModelFileError if it is no card."""
        if problem := _find_fault(held):
            raise ModelFileError(f"{problem}; remove card.json, the model works without it")
        return cls(**held)

    def to_page(self) -> str:
        """Return what `card.md` holds."""
        lines = [f"# A {_inline(self.model)} model", "", f"It was {_inline(self.summary)}.", ""]
        for title, rows in self.sections():
            lines += [f"## {title}", "", *_table(rows), ""]
        for title, items in self.lists():
            lines += [f"## {title}", "", *(f"- {_inline(item)}" for item in items), ""]
        return "\n".join(lines)

    def lists(self) -> list[tuple[str, Sequence[str]]]:
        """Return the titles and lines of its lists, those that are empty left out."""
        lists = {"Training": self.notes, "History": self.history, "Limits": self.limits}
        return [(title, lines) for title, lines in lists.items() if lines]

    def sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the titles and rows of its tables, those that are empty left out."""
        training = {
            "trained": self.trained,
            "command": self.command,
            "seconds": None if self.seconds is None else f"{self.seconds:,.1f}",
        }
        size = {} if self.n_bytes is None else {"size": f"{self.n_bytes / 1e6:,.1f} MB"}
        cuts = sorted({int(name.rpartition("@")[2]) for name in self.metrics if "@" in name})
        metrics = {
            f"{metric} at {', '.join(map(str, cuts))}": " / ".join(
                f"{self.metrics.get(f'{metric}@{k}', 0):.2f}" for k in cuts
            )
            for metric in HELD_OUT
            if any(f"{metric}@{k}" in self.metrics for k in cuts)
        }
        known = {title: self.metrics.get(name) for name, title in OTHERS.items()}
        groups: dict[str, Facts] = {
            "How it was trained": training,
            "Training documents": self.data,
            "On held-out documents, in percent": known | metrics,
            "Size and speed": size | dict(self.speed),
            "Settings": self.settings,
            "Versions": self.versions,
        }
        tables = {title: _rows(facts) for title, facts in groups.items()}
        return [(title, rows) for title, rows in tables.items() if rows]


def describe_data(dataset: Dataset) -> dict[str, Any]:
    """Return the counts of the training documents, and a checksum of all they hold."""
    counts = dataset.count_labels()
    facts = {
        "documents": len(dataset),
        "labels": int((counts > 0).sum()),
        "labels with fewer than 5 documents": int(((counts > 0) & (counts < FEW)).sum()),
        "pairs": int(dataset.Y.nnz),
        "type": "texts" if dataset.X is None else "rows",
    }
    if dataset.read_columns is not None:
        facts["columns"] = replace(dataset.read_columns, origin="").describe()
    if dataset.X is not None:
        facts["features"] = int(dataset.X.shape[1])
    return {**facts, "sha256": checksum(dataset)}


def checksum(dataset: Dataset) -> str:
    """Return the SHA-256 of documents and labels, whatever file they came from."""
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    for text in dataset.texts or ():
        add(text.encode("utf-8", "surrogatepass"))
    for matrix in (dataset.X, dataset.Y):
        if matrix is not None:
            add(np.asarray(matrix.shape, np.int64).tobytes())
            for array, dtype in (
                (matrix.indptr, np.int64), (matrix.indices, np.int32), (matrix.data, np.float32)
            ):  # fmt: skip
                digest.update(np.ascontiguousarray(array, dtype).data)
    for label in np.flatnonzero(dataset.count_labels()).tolist():
        add(dataset.label_names[label].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def find_versions() -> dict[str, str]:
    """Return the versions of what trains a model here."""
    found = {"longtail": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def now() -> str:
    """Return the time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _rows(facts: Facts) -> list[tuple[str, str]]:
    return [(name, _spell(value)) for name, value in facts.items() if value is not None]


def _spell(value: Any) -> str:
    """Return a fact as people read it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    cells = [f"| {_inline(name)} | {_inline(value)} |" for name, value in rows]
    return ["| | |", "|---|---|", *cells]


def _inline(text: str) -> str:
    """Return a text that is no markup."""
    special = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|"})
    return visible(text).translate(special)


def _plain(value: Any) -> Any:
    """Turn numpy's numbers, and what JSON does not know, into what it knows."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


# -- what a card may hold -------------------------------------------------------------------------


def _find_fault(held: Facts) -> str | None:
    """Say why this is no card; None if it is one."""
    for name, value in held.items():
        if name not in _CHECKS:
            return f"card.json must not have {visible(name[:40])}"
        if not _CHECKS[name](value):
            return f"{name} of card.json is not what a card holds"
    missing = [name for name in ("model", "trained") if name not in held]
    return f"card.json has no {missing[0]}" if missing else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_LETTERS


def _is_fact(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float) or _is_text(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _are_facts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MOST_ENTRIES
        and all(_is_text(name) and _is_fact(each) for name, each in value.items())
    )


def _are_metrics(value: Any) -> bool:
    """Whether these are numbers by name, with nothing but a number behind an @."""
    return (
        _are_facts(value)
        and all(map(_is_number, value.values()))
        and all(CUT.fullmatch(name) for name in value if "@" in name)
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_ENTRIES and all(map(_is_text, value))


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "model": _is_text,
    "trained": _is_text,
    "command": lambda value: value is None or _is_text(value),
    "seconds": lambda value: value is None or _is_number(value),
    "data": _are_facts,
    "settings": _are_facts,
    "versions": _are_facts,
    "metrics": _are_metrics,
    "speed": _are_facts,
    "n_bytes": lambda value: value is None or _is_number(value),
    "notes": _are_texts,
    "history": _are_texts,
    "limits": _are_texts,
}
