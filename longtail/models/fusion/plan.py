"""The plan of a fusion: which members to train, why, on which documents, and how long that takes.

A member is a registered model with a preset. What is learned from the members' lists must come from
documents that they were not trained on, so each member is trained several times:

    up to 20,000 documents     three folds: each third (at most 3,333 documents of it) is predicted
                               by members trained on the others, then they are trained on all
    up to 100,000              a tenth is held out, then the members are trained on all documents
    beyond                     a fiftieth is held out, at most 10,000, and there is no second
                               training

Each model estimates its own cost (`Model.estimate_cost`): seconds of one training on all documents,
on two cores or one GPU. On a CPU the estimates are scaled by how fast this machine multiplies.
"""

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.errors import DataError, ParameterError, suggest
from longtail.models.cost import DeviceType, Facts, format_seconds
from longtail.models.registry import BUILT_IN, find_models, get_model_class
from longtail.runtime.rows import hold_out
from longtail.runtime.settings import parse_time

if TYPE_CHECKING:
    from longtail.models.base import Model

DEFAULT_BUDGET = "10m"
USABLE = 0.85  # of the budget; the rest is for reading, stacking and wrong estimates
FEW, MANY = 20_000, 100_000  # documents
FOLDS = 3
HELD_OUT, SHARE = 10_000, 0.02  # of many documents, at most; more teach nothing new
LEAST_HELD_OUT = 20  # with fewer there is nothing to learn stacking from
WITHOUT_TORCH = (
    "without torch only a few members can be trained; install it with: pip install 'longtail[deep]'"
)
CORE = 3  # members, the first in their order, that together are worth more than folds are

Split = tuple[Any, Any]


class Member(NamedTuple):
    """A model that is planned to be trained.

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

    @property
    def model_class(self) -> "type[Model]":
        """The registered model."""
        return get_model_class(self.name)

    def make(self, **settings: Any) -> "Model":
        """Return the model, untrained."""
        preset = {} if self.preset is None else {"preset": self.preset}
        return self.model_class.from_settings({**settings, **preset})


class Scheme(NamedTuple):
    """Which documents are held out, and whether members are trained on all of them at the end."""

    folds: int
    share: float
    refit: bool

    @property
    def trainings(self) -> float:
        """How many trainings on all documents it costs."""
        return self.folds * (1 - self.share) + self.refit

    @property
    def largest_share(self) -> float:
        """The largest share of the documents that is copied for a training; all need no copy."""
        return 1 - self.share if self.folds else 0.0

    def count_held(self, n_documents: int) -> int:
        """Return how many documents are held out and predicted, in all folds."""
        if self.folds > 1:
            return min(n_documents, self.folds * (HELD_OUT // self.folds))
        return round(self.share * n_documents) if self.folds else 0

    def split(self, n_documents: int, seed: int) -> list[Split]:
        """Return for each fold the documents to train on and those held out, to be predicted."""
        if self.folds == 1:
            return [hold_out(n_documents, self.share, seed)]
        order = np.random.default_rng(seed).permutation(n_documents)
        thirds = [order[fold :: self.folds] for fold in range(self.folds)]
        enough = HELD_OUT // self.folds
        return [(np.setdiff1d(order, held), np.sort(held[:enough])) for held in thirds]

    def describe(self, n_documents: int) -> str:
        """Say in one line what happens to the documents."""
        if not self.folds:
            return (
                f"no documents are held out, as {n_documents} are too few; "
                "all members get the same weight"
            )
        if self.folds > 1:
            return (
                f"each member is trained {self.folds} times, each time without another "
                f"{_ORDINALS[self.folds]} of the documents, then once on all"
            )
        n_held = round(self.share * n_documents)
        ending = ", then each member is trained on all" if self.refit else ""
        return f"{n_held:,} of {n_documents:,} documents are held out for stacking{ending}"


_ORDINALS = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}
NOTHING_HELD_OUT = Scheme(0, 0.0, True)


class Plan(NamedTuple):
    """What will be done.

    Attributes:
        members: in the order in which they are trained.
        left_out: the other models, with the reason.
        scheme: what is held out.
        budget: seconds in all; None if there is no limit.
    """

    members: Sequence[Member]
    left_out: Mapping[str, str]
    scheme: Scheme
    budget: float | None

    @property
    def seconds(self) -> float:
        """How long the members will take in all."""
        return self.scheme.trainings * sum(member.seconds for member in self.members)

    def lines(self, facts: Facts) -> list[str]:
        """Return the plan as it is shown before it starts."""
        where = "a GPU" if facts.device == "cuda" else "the CPU"
        limit = "no limit" if self.budget is None else format_seconds(self.budget)
        lines = [
            f"Plan for {facts.n_documents:,} documents and {facts.n_labels:,} labels on {where}, "
            f"about {format_seconds(self.seconds)} (budget: {limit}):"
        ]
        names = [*self.left_out, *(member.name for member in self.members)]
        width = max(map(len, names))
        for member in self.members:
            takes = format_seconds(member.seconds * self.scheme.trainings)
            lines.append(f"  {member.name:{width}}  about {takes}: {member.why}")
        lines += [f"  {name:{width}}  left out: {why}" for name, why in self.left_out.items()]
        if self.left_out and not self.scheme.folds and facts.n_documents >= LEAST_HELD_OUT:
            (only,) = self.members
            return [*lines, f"  the budget is too short for more than {only.name}, the quickest"]
        lines.append(f"  {self.scheme.describe(facts.n_documents)}")
        return lines if find_spec("torch") else [*lines, f"  {WITHOUT_TORCH}"]


# -- time -------------------------------------------------------------------------------------


def parse_budget(text: str) -> float:
    """Return the seconds of 90s, 10m or 2h."""
    return parse_time(text, "budget")


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


# -- members ----------------------------------------------------------------------------------


def plan_fusion(
    X: sp.csr_matrix,
    n_labels: int,
    *,
    has_texts: bool,
    members: str | None,
    budget: str | None,
    device: str,
) -> tuple[Plan, Facts]:
    """Choose the members for these documents and this machine.

    Args:
        X: the documents as rows.
        n_labels: all of them.
        has_texts: whether the documents are texts as well.
        members: the members that the user wants, as "linear,glas"; None chooses.
        budget: how long training may take; None is ten minutes, or no limit if members are given.
        device: where torch should train: auto, cpu or cuda.
    """
    named = None if members is None else parse_members(members)
    usable = _find_usable(named or [], has_texts)
    limit = None
    if budget is not None or named is None:
        limit = parse_budget(budget or DEFAULT_BUDGET)
    uses_torch = any(get_model_class(name).needs_torch for name in named or usable)
    facts = Facts(
        n_documents=X.shape[0],
        n_labels=n_labels,
        n_features=X.shape[1],
        n_values=X.nnz,
        has_texts=has_texts,
        device=_find_device(device) if uses_torch else "cpu",
        speed=measure_speed(),
    )
    return make_plan(facts, usable, named, limit), facts


def _find_usable(named: Sequence[str], has_texts: bool) -> list[str]:
    """Return the models that a plan may choose from; check that the named ones can be used."""
    readable = [n for n in known_members() if has_texts or "rows" in get_model_class(n).reads]
    for name in named:
        if name not in readable:
            raise DataError(
                f"the member {name} cannot be trained on feature rows; "
                f"members that can: {', '.join(readable)}"
            )
    usable = [n for n in readable if get_model_class(n).member_order is not None]
    if find_spec("torch") is None:
        usable = [name for name in usable if not get_model_class(name).needs_torch]
    return usable


def _find_device(device: str) -> DeviceType:
    """Return where torch will train."""
    if find_spec("torch") is None:
        if device == "cuda":
            raise ParameterError("there is no torch, hence no GPU; leave out --device cuda")
        return "cpu"
    from longtail.training.processes import choose_device

    return "cuda" if choose_device(device).type == "cuda" else "cpu"


def known_members() -> list[str]:
    """Return the models that can be members: those that a plan may choose first, in their order."""
    models, _ = find_models()
    planned = [model for model in models if model.member_order is not None]
    planned.sort(key=lambda model: model.member_order or 0)
    others = [m for m in models if m.member_order is None and m.name not in BUILT_IN]
    return [model.name for model in (*planned, *others)]


def parse_members(text: str) -> list[str]:
    """Return the names in "linear,glas", or say what is wrong with them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = known_members()
    for name in names:
        if name not in known:
            raise ParameterError(
                f"fusion has no member '{name}'{suggest(name, known)} (known: {', '.join(known)})"
            )
    if not names or len(set(names)) < len(names):
        raise ParameterError(
            f"The 'members' parameter of Fusion must be names of models, each once, such as "
            f"linear,glas. Got {text!r} instead."
        )
    return names


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
    """Choose members and scheme.

    Args:
        facts: about data and machine.
        usable: models that can read these documents here, the most useful first.
        named: members that the user wants instead, however long they take.
        budget: seconds for everything.
    """
    schemes = choose_schemes(facts.n_documents)
    if named is not None:
        members = [_plan_member(name, facts) for name in named]
        return Plan(members, {}, _affordable(schemes, members, budget), budget)
    plans = [_fill(facts, usable, scheme, budget) for scheme in schemes]
    return max(plans, key=_core_of)  # of equal ones the first


def _core_of(plan: Plan) -> float:
    """Return how many of the core members there are; a cheaper form counts half."""
    core = known_members()[:CORE]
    return sum(0.5 if member.reduced else 1.0 for member in plan.members if member.name in core)


def _plan_member(name: str, facts: Facts) -> Member:
    """Return the member as it suits best."""
    model = get_model_class(name)
    preset = model.choose_preset(facts)
    return Member(name, model.member_reason, model.estimate_seconds(facts, preset), preset)


def _forms(name: str, facts: Facts, scheme: Scheme) -> list[Member]:
    """Return the member as it suits best, then its cheaper forms, which name what they replace."""
    best = _plan_member(name, facts)
    whole = format_seconds(best.seconds * scheme.trainings)
    forms = [best]
    for preset in get_model_class(name).cheaper_presets:
        seconds = get_model_class(name).estimate_seconds(facts, preset)
        if seconds < best.seconds:
            why = f"{best.why} (preset={preset}; the full form would take about {whole})"
            forms.append(Member(name, why, seconds, preset, reduced=True))
    return forms


def _affordable(
    schemes: Sequence[Scheme], members: Sequence[Member], budget: float | None
) -> Scheme:
    """Return the first scheme that the budget allows, or the one that takes least."""
    total = sum(member.seconds for member in members)
    for scheme in schemes:
        if budget is None or scheme.trainings * total <= USABLE * budget:
            return scheme
    return schemes[-1]


def _fill(facts: Facts, usable: Sequence[str], scheme: Scheme, budget: float | None) -> Plan:
    """Take the models one after the other, each in the best form that there is time for."""
    members: list[Member] = []
    left_out = {}
    spent = 0.0
    for name in usable:
        for member in _forms(name, facts, scheme):
            takes = scheme.trainings * member.seconds
            if budget is None or spent + takes <= USABLE * budget:
                members.append(member)
                spent += takes
                break
        else:
            even = f" even with preset={member.preset}" if member.reduced else ""
            left_out[name] = f"it would take about {format_seconds(takes)}{even}"
    if not members:  # too short for anything: the quickest alone
        quickest = min(usable, key=lambda name: _plan_member(name, facts).seconds)
        left_out.pop(quickest)
        return Plan([_plan_member(quickest, facts)], left_out, NOTHING_HELD_OUT, budget)
    return Plan(members, left_out, scheme, budget)
