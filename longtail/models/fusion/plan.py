"""The plan of a fusion: which members to train, why, on which documents, and how long that takes.

Which models may be members is in `eligible.py`, which documents are held out in `scheme.py`. How
long a member takes is measured (`probe.py`). Members are taken in the order of what they add as a
rule (`member_order`), each in the best form that there is time for: the preset that suits the
data, the same without the last training on all documents, a cheaper preset, or fewer epochs. With a
GPU there are two lanes, of members that torch trains and of others, which are trained side by side.
Time that is left after the plan goes to further members (`growth.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from longtail.errors import install_hint
from longtail.models.cost import Cost, DeviceType, Facts, format_seconds
from longtail.models.fusion.eligible import CORE, find_order
from longtail.models.fusion.limits import NO_LIMITS, Limits
from longtail.models.fusion.member import Member, lane_of
from longtail.models.fusion.scheme import (
    LEAST_HELD_OUT,
    NOTHING_HELD_OUT,
    Scheme,
    choose_schemes,
)
from longtail.models.registry import get_model_class
from longtail.runtime.parallel import count_cores
from longtail.runtime.settings import parse_time
from longtail.runtime.workers import cluster_in_use

DEFAULT_BUDGET = "10m"
USABLE = 0.88  # of the budget; the rest is for stacking, saving and wrong estimates
LEAST_EPOCHS = 0.4  # of those that suit the data best, or a member is not worth its time
WITHOUT_TORCH = f"without torch only a few members can be trained; {install_hint('deep')}"
REDUCED = 0.6  # what a cheaper form of them is worth
LAST_TRAINING = 0.5  # what it is worth to train them on all documents at the end

Measure = Callable[[str, str | None], Cost]  # how long a model takes with a preset


class Plan(NamedTuple):
    """What will be done.

    Attributes:
        members: in the order in which they are trained.
        left_out: the other models, with the reason.
        scheme: what is held out.
        budget: seconds in all; None if there is no limit.
        named: whether the user has named the members.
    """

    members: Sequence[Member]
    left_out: Mapping[str, str]
    scheme: Scheme
    budget: float | None
    named: bool = False

    def seconds(self, device: DeviceType) -> float:
        """Return how long the members will take in all, in the lane that takes longer."""
        lanes = {"cpu": 0.0, "cuda": 0.0}
        for member in self.members:
            lanes[member.lane(device)] += self.scheme.seconds(member)
        return max(lanes.values())

    def lines(self, facts: Facts) -> list[str]:
        """Return the plan as it is shown before it starts."""
        where = "a GPU" if facts.device == "cuda" else "the CPU"
        cluster = cluster_in_use()
        where = where if cluster is None else f"a cluster of {cluster.describe()}"
        limit = "no limit" if self.budget is None else format_seconds(self.budget)
        takes = format_seconds(self.seconds(facts.device) / find_speedup())
        lines = [
            f"Plan for {facts.n_documents:,} documents and {facts.n_labels:,} labels on {where}, "
            f"about {takes} (budget: {limit}):"
        ]
        names = [*self.left_out, *(member.name for member in self.members)]
        width = max(map(len, names))
        for member in self.members:
            takes = format_seconds(self.scheme.seconds(member))
            lines.append(f"  {member.name:{width}}  about {takes}: {member.describe()}")
        lines += [f"  {name:{width}}  left out: {why}" for name, why in self.left_out.items()]
        if self.left_out and not self.scheme.folds and facts.n_documents >= LEAST_HELD_OUT:
            (only,) = self.members
            return [*lines, f"  the budget is too short for more than {only.name}"]
        once = [member.name for member in self.members if member.once]
        lines.append(f"  {self.scheme.describe(facts.n_documents, once)}")
        needed = self.seconds(facts.device) / find_speedup() / USABLE
        if self.named and self.budget is not None and needed > self.budget:
            lines.append(
                f"  the members that are named need about {format_seconds(needed)} in all; within "
                f"{format_seconds(self.budget)}, the last of them make fewer epochs or are left out"
            )
        return lines if find_spec("torch") else [*lines, f"  {WITHOUT_TORCH}"]


# -- time -------------------------------------------------------------------------------------


def find_speedup() -> float:
    """Return how many times as much a cluster trains in the same time as this machine."""
    cluster = cluster_in_use()
    return 1.0 if cluster is None else max(1.0, cluster.n_cores / count_cores())


def parse_budget(text: str) -> float:
    """Return the seconds of 90s, 10m or 2h."""
    return parse_time(text, "budget")


# -- members ----------------------------------------------------------------------------------


def find_budget(budget: str | None, members: str | None) -> float | None:
    """Return the seconds; None, which is no limit, if members are given and a budget is not."""
    if budget is None and members is not None:
        return None
    return parse_budget(budget or DEFAULT_BUDGET)


def make_plan(
    facts: Facts,
    usable: Sequence[str],
    named: Sequence[str] | None,
    budget: float | None,
    measure: Measure,
    spent: float = 0.0,
    limits: Limits = NO_LIMITS,
) -> Plan:
    """Choose members and scheme.

    Args:
        facts: about data and machine.
        usable: models that can read these documents here, the most useful first.
        named: members that the user wants instead, however long they take.
        budget: seconds for everything.
        measure: how long a model takes with a preset.
        spent: seconds of the budget that are over.
        limits: what no member may exceed.
    """
    schemes = choose_schemes(facts.n_documents)
    left = None if budget is None else find_speedup() * (USABLE * budget - spent)
    if named is not None:
        members = [_whole_form(name, measure) for name in named]
        plans = [Plan(members, {}, scheme, budget, named=True) for scheme in schemes]
        in_time = [plan for plan in plans if left is None or plan.seconds(facts.device) <= left]
        return (in_time or plans[-1:])[0]
    plans = [_fill(facts, usable, scheme, budget, left, measure, limits) for scheme in schemes]
    # Of equal ones the first.
    return max(plans, key=lambda plan: _weigh(plan, facts.has_texts))


def _weigh(plan: Plan, has_texts: bool) -> float:
    """Return what the core members are worth together, the first in their order the most."""
    worth = LAST_TRAINING * plan.scheme.refit
    for member in plan.members:
        order = find_order(member.model, has_texts)
        if member.name == member.model:
            worth += max(0, CORE + 1 - order) * (REDUCED if member.reduced else 1.0)
    return worth


def _whole_form(name: str, measure: Measure, kind: str | None = None) -> Member:
    """Return the member with its defaults, or with the preset of a kind."""
    why = get_model_class(name).member_reason
    return Member(name, name, why, measure(name, kind), preset=kind)


def list_kinds(name: str, facts: Facts) -> Iterator[tuple[str, str | None]]:
    """Yield the members that a model makes, with their presets; the first has the model's name."""
    first, *others = get_model_class(name).member_kinds(facts)
    yield name, first
    yield from ((f"{name}-{kind}", kind) for kind in others)


def find_form(
    name: str,
    seconds: float,
    scheme: Scheme,
    measure: Measure,
    limits: Limits = NO_LIMITS,
    kind: tuple[str, str | None] | None = None,
) -> tuple[Member | None, Member]:
    """Return the best form of a model that takes so long at most, and the quickest.

    Of its kinds, it is the one of `kind`.
    """
    forms = []
    for form in _all_forms(name, measure, kind or (name, None)):
        for way in scheme.ways(form):
            if scheme.seconds(way) <= seconds and limits.allow(way.cost):
                return way, way
        forms.append(way)
    for form in filter(lambda form: limits.allow(form.cost), forms):
        epochs = form.cost.epochs_in(seconds / scheme.trainings(form))
        if epochs >= max(1, LEAST_EPOCHS * form.cost.epochs):
            return form._replace(epochs=epochs), form
    return None, min(forms, key=scheme.seconds)


def _all_forms(name: str, measure: Measure, kind: tuple[str, str | None]) -> Iterator[Member]:
    """Yield the whole form of a member, then its cheaper ones, each measured when asked for.

    Cheaper presets are those of a model's first kind.
    """
    own_name, preset = kind
    whole = _whole_form(name, measure, preset)._replace(name=own_name)
    yield whole
    for preset in whole.model_class.cheaper_presets if own_name == name else ():
        yield whole.in_form(preset, measure(name, preset))


def _list_models(usable: Sequence[str], has_texts: bool) -> Iterator[tuple[str, int]]:
    """Yield the core models, further seeds of them, then the others; each with its number."""
    orders = {name: find_order(name, has_texts) for name in usable}
    core = [name for name in usable if orders[name] <= CORE]
    yield from ((name, 1) for name in core)
    for name in core:
        yield from ((name, n) for n in range(2, 1 + get_model_class(name).member_seeds))
    yield from ((name, 1) for name in usable if orders[name] > CORE)


def _another_seed(
    name: str, number: int, members: Sequence[Member], scheme: Scheme, seconds: float
) -> list[Member]:
    """Return a further member of a model that is planned in its best form, if there is time."""
    return [
        member.with_seed(number, f"another seed of {name}")
        for member in members
        if member.name == name and not member.reduced and scheme.seconds(member) <= seconds
    ]


def _say_too_much(quickest: Member, scheme: Scheme, limits: Limits) -> str:
    """Say why not even the quickest form of a member is planned."""
    takes = f"it would take about {format_seconds(scheme.seconds(quickest))}"
    if not limits.allow(quickest.cost):
        takes = f"a model of it {limits.say_excess(quickest.cost)}"
    return takes + (f" even with preset={quickest.preset}" if quickest.cheaper else "")


def _fill(
    facts: Facts,
    usable: Sequence[str],
    scheme: Scheme,
    budget: float | None,
    left: float | None,
    measure: Measure,
    limits: Limits,
) -> Plan:
    """Take the models one after the other, each in the best form that there is time for."""
    members: list[Member] = []
    forms: list[Member] = []  # of models that are planned, and of others
    left_out = {}
    lanes = dict.fromkeys(("cpu", "cuda"), float("inf") if left is None else left)
    for name, number in _list_models(usable, facts.has_texts):
        lane = lane_of(name, facts.device)
        if number > 1:
            more = _another_seed(name, number, members, scheme, lanes[lane])
            members += more
            lanes[lane] -= sum(map(scheme.seconds, more))
            continue
        for kind in list_kinds(name, facts):
            member, quickest = find_form(name, lanes[lane], scheme, measure, limits, kind)
            forms.append(quickest)
            if member is not None:
                members.append(member)
                lanes[lane] -= scheme.seconds(member)
            elif quickest.name == name:
                left_out[name] = _say_too_much(quickest, scheme, limits)
    _check_least(forms, limits)
    planned = {member.name for member in members}
    for name in usable:
        if name in planned:
            break
        _, only = find_form(name, 0.0, NOTHING_HELD_OUT, measure)
        if limits.allow(only.cost):
            # There is no time for the first that may be: it alone, as others are worth little.
            reasons = {**left_out, **dict.fromkeys(planned, "there is no time for it")}
            reasons.pop(only.name, None)
            return Plan([only], reasons, NOTHING_HELD_OUT, budget)
    return Plan(members, left_out, scheme, budget)


def _check_least(forms: Sequence[Member], limits: Limits) -> None:
    """Raise ParameterError if all models that were measured cost too much.

    Others, which there was no time to measure, are hardly less, and never begun on that chance.
    """
    measured = [form for form in forms if form.cost.n_bytes]
    if measured and not any(limits.allow(form.cost) for form in measured):
        least = min(measured, key=lambda form: limits.excess(form.cost))
        what = f"on a part of the documents {least.name}, the least of the members,"
        limits.refuse(least.cost, what, "allow more than that")
