"""The plan of a fusion: which parts to train, why, on which documents, and how long it will take.

A part is a registered model with settings. What is learned from the parts' lists must come from
documents that they were not trained on, so each part is trained several times:

    up to 20,000 documents     three folds: each third (at most 3,333 documents of it) is predicted
                               by parts trained on the others, then they are trained on all
    up to 100,000              a tenth is held out, then the parts are trained on all documents
    beyond                     a fiftieth is held out, at most 10,000, and that is it

Estimates are seconds of one training on all documents, on two cores or one GPU, from what the
parts took on four data sets; on a CPU they are scaled by how fast this machine multiplies.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.errors import ParameterError, suggest
from longtail.models.glas.model import GLaS
from longtail.models.neural import hold_out

DEFAULT_BUDGET = "10m"
USABLE = 0.85  # of the budget; the rest is for reading, combining and wrong estimates
FEW, MANY = 20_000, 100_000  # documents
FOLDS = 3
MANY_LABELS = 5_000
HELD_OUT, SHARE = 10_000, 0.02  # of many documents, at most; more teach nothing new
LEAST_HELD_OUT = 20  # with fewer there is nothing to learn a combination from

Place = Literal["cpu", "cuda"]
Split = tuple[Any, Any]


class Facts(NamedTuple):
    """What the plan depends on.

    Attributes:
        n_documents: to train on.
        n_labels: all of them.
        n_features: columns of the rows.
        n_cells: stored values of the rows.
        has_texts: whether the documents are texts.
        kind: where torch will train.
        speed: how fast the machine is, against two cores of the kind that estimates come from.
    """

    n_documents: int
    n_labels: int
    n_features: int
    n_cells: int
    has_texts: bool
    kind: Place
    speed: float = 1.0


class Part(NamedTuple):
    """A model that takes part.

    Attributes:
        name: of the registered model.
        why: it is there, in a few words.
        seconds: that one training on all documents will take, about.
        preset: of the model, in place of its defaults.
        reduced: whether that is a cheaper form than would be best.
    """

    name: str
    why: str
    seconds: float
    preset: str | None = None
    reduced: bool = False


class Scheme(NamedTuple):
    """Which documents are held out, and whether parts are trained on all of them at the end."""

    folds: int
    share: float
    refit: bool

    @property
    def trainings(self) -> float:
        """How many trainings on all documents it is worth."""
        return self.folds * (1 - self.share) + self.refit

    def split(self, n_documents: int, seed: int) -> list[Split]:
        """Return for each fold the documents to train on and those held out, to be predicted."""
        if self.folds == 1:
            return [hold_out(n_documents, self.share, seed)]
        order = np.random.default_rng(seed).permutation(n_documents)
        parts = [order[fold :: self.folds] for fold in range(self.folds)]
        enough = HELD_OUT // self.folds
        return [(np.setdiff1d(order, held), np.sort(held[:enough])) for held in parts]

    def describe(self, n_documents: int) -> str:
        """Say in one line what happens to the documents."""
        if not self.folds:
            return f"no documents are held out: {n_documents} are too few, so all parts count alike"
        if self.folds > 1:
            return (
                f"each part is trained {self.folds} times to predict a {_ORDINALS[self.folds]} of "
                "the documents, then on all"
            )
        n_held = round(self.share * n_documents)
        ending = ", then each part is trained on all" if self.refit else ""
        return f"{n_held:,} of {n_documents:,} documents are held out to learn from{ending}"


_ORDINALS = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}
NOTHING_HELD_OUT = Scheme(0, 0.0, True)


class Plan(NamedTuple):
    """What will be done.

    Attributes:
        parts: in the order in which they are trained.
        left_out: the others, with the reason.
        scheme: what is held out.
        budget: seconds in all; None if there is no limit.
    """

    parts: Sequence[Part]
    left_out: Mapping[str, str]
    scheme: Scheme
    budget: float | None

    @property
    def seconds(self) -> float:
        """How long the parts will take in all."""
        return self.scheme.trainings * sum(part.seconds for part in self.parts)

    def lines(self, facts: Facts) -> list[str]:
        """Return the plan as it is shown before it starts."""
        where = "a GPU" if facts.kind == "cuda" else "the CPU"
        limit = "no limit" if self.budget is None else format_seconds(self.budget)
        lines = [
            f"Plan for {facts.n_documents:,} documents and {facts.n_labels:,} labels on {where}, "
            f"about {format_seconds(self.seconds)} (budget: {limit}):"
        ]
        width = max(len(name) for name in [*self.left_out, *(part.name for part in self.parts)])
        for part in self.parts:
            took = format_seconds(part.seconds * self.scheme.trainings)
            lines.append(f"  {part.name:{width}}  about {took}: {part.why}")
        lines += [f"  {name:{width}}  not: {why}" for name, why in self.left_out.items()]
        if self.left_out and not self.scheme.folds and facts.n_documents >= LEAST_HELD_OUT:
            (only,) = self.parts
            return [*lines, f"  the budget is too short for more than {only.name}, the quickest"]
        return [*lines, f"  {self.scheme.describe(facts.n_documents)}"]


# -- how long things take --------------------------------------------------------------------------


def parse_budget(text: str) -> float:
    """Return the seconds of 90s, 10m or 2h."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", text)
    if found is None or not float(found[1]):
        raise ParameterError(
            f"The budget must be a time such as 90s, 10m or 2h. Got {text!r} instead."
        )
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def format_seconds(seconds: float) -> str:
    """Return 45 s, 3 min or 2 h 5 min."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def measure_speed() -> float:
    """Return how fast this machine multiplies matrices, against what the estimates come from.

    The best of a few trials, as others may be busy here just now.
    """
    a = np.random.default_rng(0).random((1024, 1024), np.float32)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - began)
    flops = 2 * len(a) ** 3 / min(seconds)
    return float(np.clip(flops / REFERENCE_FLOPS, SLOWEST, 1 / SLOWEST))


REFERENCE_FLOPS = 1.1e11  # of the two cores that the estimates come from
SLOWEST = 0.2  # multiplying says little about other work, so it must not change estimates more
UNCACHED = 10_000  # features whose vectors no cache holds


Estimate = Callable[[Facts, str | None], float]  # for a model with a preset, or its defaults


def _linear(facts: Facts, _: str | None) -> float:
    """Flat up to 1,000 labels: every cell meets every label; else three trees."""
    if facts.n_labels <= 1000:
        return 0.2 + 4e-9 * facts.n_cells * facts.n_labels
    return 0.2 + 2.2e-6 * facts.n_cells + 0.0025 * min(facts.n_labels, facts.n_documents)


def _glas(facts: Facts, preset: str | None) -> float:
    """Three products of matrices a pass; on a CPU, what is done to each score and word besides."""
    model = GLaS.from_settings({} if preset is None else {"preset": preset})
    epochs = model.epochs or np.clip(2 + 75_000 / facts.n_documents, 3, 8)
    inner = facts.n_cells / facts.n_documents + model.dim + facts.n_labels
    flops = 6 * model.dim * epochs * facts.n_documents * inner
    if facts.kind == "cuda":
        return float(3 + flops / 6e13)
    n_scores = epochs * facts.n_documents * facts.n_labels
    n_read = epochs * facts.n_cells * model.dim if facts.n_features > UNCACHED else 0
    return float(2 + 0.02 * 128 * epochs + flops / 5.2e10 + 2e-8 * n_scores + 2.5e-9 * n_read)


def _attention_xml(facts: Facts, preset: str | None) -> float:
    """Reading takes as long as a text is, of which its different words give an idea."""
    words = facts.n_cells / facts.n_documents
    seconds = 10 + (0.3 + 0.017 * words) * facts.n_documents / 1000
    if facts.kind == "cuda":
        return seconds
    return 18 * seconds if preset == "small" else 100 * seconds


def _by_document(cpu: tuple[float, float], cuda: tuple[float, float]) -> Estimate:
    """Return an estimate that grows with the documents, from a constant, in milliseconds each."""

    def estimate(facts: Facts, _: str | None) -> float:
        constant, each = cpu if facts.kind == "cpu" else cuda
        return constant + each * facts.n_documents / 1000

    return estimate


ESTIMATES: Mapping[str, Estimate] = {
    "linear": _linear,
    "glas": _glas,
    "knn": _by_document((2, 0.05), (2, 0.05)),
    "attention-xml": _attention_xml,
    "mnn": _by_document((3, 2.0), (8, 0.02)),
    "dxml": _by_document((17, 2.2), (10, 0.12)),
    "rank-ae": _by_document((20, 4.6), (18, 0.08)),
}
REASONS = {
    "linear": "strong everywhere, and the quickest",
    "knn": "finds what similar documents carry",
    "glas": "learns which labels go together",
    "attention-xml": "reads the words in their order",
    "mnn": "finds documents with similar label sets",
    "dxml": "places documents in the graph of labels",
    "rank-ae": "is trained to rank, and errs in other places",
}
NEED_TORCH = ("glas", "attention-xml", "mnn", "dxml", "rank-ae")


def estimate(name: str, facts: Facts, preset: str | None = None) -> float:
    """Return about how many seconds one training on all documents takes."""
    seconds = ESTIMATES.get(name, _by_document((10, 5.0), (10, 1.0)))(facts, preset)
    on_gpu = facts.kind == "cuda" and name in NEED_TORCH
    return seconds if on_gpu else seconds / facts.speed


# -- what to do ------------------------------------------------------------------------------------


def choose_schemes(n_documents: int) -> list[Scheme]:
    """Return what suits so many documents, then what takes less time."""
    folds = Scheme(FOLDS, 1 / FOLDS, refit=True)
    tenth = Scheme(1, 0.1, refit=True)
    once = Scheme(1, 0.1, refit=False)
    if n_documents > MANY:
        once = Scheme(1, min(SHARE, HELD_OUT / n_documents), refit=False)
    if n_documents < LEAST_HELD_OUT:
        return [NOTHING_HELD_OUT]
    if n_documents <= FEW:
        return [folds, tenth, once]
    return [tenth, once] if n_documents <= MANY else [once]


def make_plan(
    facts: Facts, usable: Sequence[str], named: Sequence[str] | None, budget: float | None
) -> Plan:
    """Choose parts and scheme.

    Args:
        facts: about data and machine.
        usable: models that can read these documents here, the most useful first.
        named: parts that the user wants instead, whatever they take.
        budget: seconds for everything.
    """
    schemes = choose_schemes(facts.n_documents)
    if named is not None:
        parts = [_part(name, facts) for name in named]
        return Plan(parts, {}, _affordable(schemes, parts, budget), budget)
    plans = [_fill(facts, usable, scheme, budget) for scheme in schemes]
    return max(plans, key=_worth)  # of equal ones the first


CORE = {"linear", "knn", "glas"}  # worth more together than folds are
# Presets, the best first.
CHEAPER: Mapping[str, Sequence[str]] = {"glas": ("fast",), "attention-xml": ("small",)}


def _worth(plan: Plan) -> float:
    """Return how much of the core there is; a cheaper form counts half."""
    return sum(0.5 if part.reduced else 1.0 for part in plan.parts if part.name in CORE)


def _part(name: str, facts: Facts) -> Part:
    """Return the part as it suits best."""
    preset = choose_preset(name, facts)
    why = REASONS.get(name, "you asked for it")
    return Part(name, why, estimate(name, facts, preset), preset)


def _forms(name: str, facts: Facts, scheme: Scheme) -> list[Part]:
    """Return the part as it suits best, then its cheaper forms, which say what they stand for."""
    best = _part(name, facts)
    whole = format_seconds(best.seconds * scheme.trainings)
    forms = [best]
    for preset in CHEAPER.get(name, ()):
        seconds = estimate(name, facts, preset)
        if seconds < best.seconds:
            why = f"{best.why} (preset={preset}, as the whole would take about {whole})"
            forms.append(Part(name, why, seconds, preset, reduced=True))
    return forms


def choose_preset(name: str, facts: Facts) -> str | None:
    """Return which preset of a model suits; a large glas pays with many labels, on a GPU."""
    large = name == "glas" and facts.kind == "cuda" and facts.n_labels > MANY_LABELS
    return "large" if large else None


def _affordable(schemes: Sequence[Scheme], parts: Sequence[Part], budget: float | None) -> Scheme:
    """Return the first scheme that the budget allows, or the one that takes least."""
    total = sum(part.seconds for part in parts)
    for scheme in schemes:
        if budget is None or scheme.trainings * total <= USABLE * budget:
            return scheme
    return schemes[-1]


def _fill(facts: Facts, usable: Sequence[str], scheme: Scheme, budget: float | None) -> Plan:
    """Take the models one after the other, each in the best form that there is time for."""
    parts: list[Part] = []
    left_out = {}
    spent = 0.0
    for name in usable:
        for part in _forms(name, facts, scheme):
            takes = scheme.trainings * part.seconds
            if budget is None or spent + takes <= USABLE * budget:
                parts.append(part)
                spent += takes
                break
        else:
            even = f" even with preset={part.preset}" if part.reduced else ""
            left_out[name] = f"would take about {format_seconds(takes)}{even}"
    if not parts:  # too short for anything: the quickest alone
        quickest = min(usable, key=lambda name: _part(name, facts).seconds)
        left_out.pop(quickest)
        return Plan([_part(quickest, facts)], left_out, NOTHING_HELD_OUT, budget)
    return Plan(parts, left_out, scheme, budget)


def find_parts(text: str, known: Sequence[str]) -> list[str]:
    """Return the names in "linear,glas", or say what is wrong with them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ParameterError(
                f"fusion has no part '{name}'{suggest(name, known)} (known: {', '.join(known)})"
            )
    if not names or len(set(names)) < len(names):
        raise ParameterError(
            f"The 'parts' parameter of Fusion must be names of models, each once, such as "
            f"linear,glas. Got {text!r} instead."
        )
    return names


def describe_data(
    X: sp.csr_matrix, n_labels: int, has_texts: bool, kind: Place, speed: float
) -> Facts:
    """Return the facts about the documents."""
    return Facts(X.shape[0], n_labels, X.shape[1], X.nnz, has_texts, kind, speed)
