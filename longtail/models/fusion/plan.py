"""The plan of a fusion: which members to train, why, on which documents, and how long that takes.

A member is a registered model with a preset. What is learned from the members' lists must come from
documents that they were not trained on, so each member is trained several times:

    up to 20,000 documents     three folds: each third (at most 3,333 documents of it) is predicted
                               by members trained on the others, then they are trained on all
    up to 100,000              a tenth is held out, then the members are trained on all documents
    beyond                     a fiftieth is held out, at most 10,000, and there is no second
                               training

How long a member takes is measured (`probe.py`). Members are taken in the order of what they add as
a rule (`member_order`), each in the best form that there is time for: the preset that suits the
data, the same without the last training on all documents, a cheaper preset, or fewer epochs. With a
GPU there are two lanes, of members that torch trains and of others, which are trained side by side.
Time that is left after the plan goes to further members (`growth.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from longtail.errors import DataError, ParameterError, install_hint, suggest
from longtail.models.cost import Cost, DeviceType, Facts, format_seconds
from longtail.models.fusion.limits import NO_LIMITS, Limits
from longtail.models.registry import BUILT_IN, find_models, get_model_class
from longtail.runtime.parallel import count_cores
from longtail.runtime.rows import hold_out
from longtail.runtime.settings import parse_time
from longtail.runtime.workers import cluster_in_use

if TYPE_CHECKING:
    from longtail.data import Dataset
    from longtail.models.base import Model

DEFAULT_BUDGET = "10m"
USABLE = 0.88  # of the budget; the rest is for stacking, saving and wrong estimates
LEAST_EPOCHS = 0.4  # of those that suit the data best, or a member is not worth its time
FEW, MANY = 20_000, 100_000  # documents
FOLDS = 3
HELD_OUT, SHARE = 10_000, 0.02  # of many documents, at most; more teach nothing new
LEAST_HELD_OUT = 20  # with fewer there is nothing to learn stacking from
WITHOUT_TORCH = f"without torch only a few members can be trained; {install_hint('deep')}"
CORE = 4  # members, the first in their order, are worth more than folds are
REDUCED = 0.6  # what a cheaper form of them is worth
LAST_TRAINING = 0.5  # what it is worth to train them on all documents at the end
SEED_STEP = 7_919  # between the seeds of members of one model

Split = tuple[Any, Any]
Measure = Callable[[str, str | None], Cost]  # how long a model takes with a preset


class Member(NamedTuple):
    """A model that is planned to be trained.

    Attributes:
        name: in the fusion: the model's, or with a number or a preset if the model was a member.
        model: the name of the registered model.
        why: it is there, in a few words.
        cost: how long one training on all documents will take, about.
        preset: of the model, in place of its defaults.
        epochs: fewer than suit the documents best, if there is no time for these.
        cheaper: whether the preset is a cheaper one than would be best.
        once: whether it stays as it is after some documents were held out, for want of time.
        seed: what is added to that of the fusion.
    """

    name: str
    model: str
    why: str
    cost: Cost
    preset: str | None = None
    epochs: int | None = None
    cheaper: bool = False
    once: bool = False
    seed: int = 0

    @property
    def model_class(self) -> "type[Model]":
        """The registered model."""
        return get_model_class(self.model)

    @property
    def seconds(self) -> float:
        """How long one training on all documents will take, about."""
        return self.cost.seconds(self.epochs)

    @property
    def reduced(self) -> bool:
        """Whether there is no time for what would be best."""
        return self.cheaper or self.epochs is not None

    @property
    def form(self) -> tuple[str, str | None, int | None]:
        """What it has in common with members of other seeds, which take as long."""
        return self.model, self.preset, self.epochs

    def in_form(self, preset: str, cost: Cost) -> "Member":
        """Return the member in the cheaper form of a preset."""
        return self._replace(preset=preset, cost=cost, epochs=None, cheaper=True)

    def with_seed(self, number: int, why: str) -> "Member":
        """Return the member of that number, from 1, which differs by the seed."""
        return self._replace(name=f"{self.model}-{number}", why=why, seed=SEED_STEP * (number - 1))

    def lane(self, device: DeviceType) -> DeviceType:
        """Return where it is trained, if torch trains on `device`."""
        return lane_of(self.model, device)

    def make(self, **settings: Any) -> "Model":
        """Return the model, untrained."""
        given = {"preset": self.preset, "epochs": self.epochs}
        chosen = {name: value for name, value in given.items() if value is not None}
        return self.model_class.from_settings({**settings, **chosen})

    def describe(self) -> str:
        """Say why it is there, and in which form if that is not the best."""
        form = [f"preset={self.preset}"] if self.cheaper else []
        if self.epochs is not None:
            form.append(f"{self.epochs} of {self.cost.epochs} epochs")
        if self.once:
            form.append("not trained on held-out documents")
        return f"{self.why} ({', '.join(form)}, as there is no time for more)" if form else self.why


def lane_of(model: str, device: DeviceType) -> DeviceType:
    """Return where a model is trained, if torch trains on `device`."""
    return device if get_model_class(model).needs_torch else "cpu"


class Scheme(NamedTuple):
    """Which documents are held out, and whether members are trained on all of them at the end."""

    folds: int
    share: float
    refit: bool

    @property
    def held_out_trainings(self) -> float:
        """How many trainings on all documents those without some of them cost."""
        return self.folds * (1 - self.share)

    def trainings(self, member: Member) -> float:
        """Return how many trainings on all documents a member costs."""
        return self.held_out_trainings + (self.refit and not member.once)

    def seconds(self, member: Member) -> float:
        """Return how long all trainings of a member take, about."""
        return self.trainings(member) * member.seconds

    def ways(self, member: Member) -> list[Member]:
        """Return the member, and as it is trained if there is no time for a last training.

        That is for members of epochs, which cost more than it brings. A member of several folds has
        seen too few of the documents to do without.
        """
        spares = self.folds == 1 and self.refit and member.cost.epochs > 0 and not member.once
        return [member, member._replace(once=True)] if spares else [member]

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

    def describe(self, n_documents: int, once: Sequence[str] = ()) -> str:
        """Say in one line what happens to the documents; `once` are trained on a part alone."""
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
        others = f" but {' and '.join(once)}" if once else ""
        ending = f", then each member{others} is trained on all" if self.refit else ""
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


def find_facts(
    dataset: "Dataset", X: sp.csr_matrix, members: str | None, device: str
) -> tuple[Facts, list[str]]:
    """Return what is known of data and machine, and the models that a plan may choose from.

    Args:
        dataset: the documents.
        X: the documents as rows.
        members: the members that the user wants, as "linear,glas"; None chooses.
        device: where torch should train: auto, cpu or cuda.
    """
    named = None if members is None else parse_members(members)
    usable = _find_usable(named or [], dataset.X is None)
    uses_torch = any(get_model_class(name).needs_torch for name in named or usable)
    facts = Facts(
        n_documents=X.shape[0],
        n_labels=dataset.Y.shape[1],
        n_features=X.shape[1],
        n_values=X.nnz,
        has_texts=dataset.X is None,
        device=_find_device(device) if uses_torch else "cpu",
    )
    return facts, usable


def find_budget(budget: str | None, members: str | None) -> float | None:
    """Return the seconds; None, which is no limit, if members are given and a budget is not."""
    if budget is None and members is not None:
        return None
    return parse_budget(budget or DEFAULT_BUDGET)


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
    usable.sort(key=lambda name: find_order(name, has_texts))
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


def find_order(name: str, has_texts: bool) -> int:
    """Return when a model is planned, 1 first; models that a plan does not choose come last."""
    model = get_model_class(name)
    of_rows = None if has_texts else model.member_order_of_rows
    return of_rows or model.member_order or CORE + 1


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
