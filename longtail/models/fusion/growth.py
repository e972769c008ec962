"""What members gain on held-out documents, and further members for the time that is left.

A member's gain is what the mean of P@1, P@3 and P@5 loses without it, by logistic stacking on some
of the held-out documents. After the plan, time goes to models that were left out and now fit, then
to further seeds of what gains most for its time, until the time is used or nothing pays.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from longtail.models.cost import format_seconds
from longtail.models.fusion.limits import Limits
from longtail.models.fusion.plan import Measure, Member, find_form, lane_of
from longtail.models.fusion.stacking import Choice, StackerName, learn_stacking
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.topk import TopK

JUDGED, WIDTH = 1_000, 10  # held-out documents to judge members by, at most, and labels of each
WORTH = 0.05  # percent of precision; a further member that gains less does not pay
SEED_STEP = 7_919  # between the seeds of members of one model
STACKERS = 6.0  # times as long as judging takes learning the stacker for as many documents
FEW = 40  # held-out documents, to load compiled code with


class Judge:
    """Says how good some of the members are together, on documents that they have not seen."""

    def __init__(self, trainer: MemberTrainer) -> None:
        self.trainer = trainer
        n_held = sum(len(held) for _, held in trainer.splits)
        share = min(1.0, JUDGED / max(1, n_held))
        self._counts = [max(1, round(share * len(held))) for _, held in trainer.splits]
        parts = [held[:n] for (_, held), n in zip(trainer.splits, self._counts, strict=True)]
        self.rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
        self._known: dict[frozenset[str], float] = {}
        self._fixed = 0.0  # seconds that stacking takes for hardly any documents

    def precision(self, members: Mapping[str, HeldOutMember]) -> float:
        """Return the mean of P@1, P@3 and P@5 in percent, 0 if no document carries a label."""
        names = frozenset(members)
        if names not in self._known:
            self._known[names] = self._judge(members)
        return self._known[names]

    def _judge(self, members: Mapping[str, HeldOutMember]) -> float:
        began = time.monotonic()
        choice = self._stack(members, self._counts, "logistic")
        took = max(0.0, time.monotonic() - began - self._fixed)
        self.trainer.stacking = STACKERS * took / (sum(self._counts) * len(members))
        if choice is None:
            return 0.0
        return float(np.mean([choice.report[f"P@{k}"] for k in (1, 3, 5)]))

    def _stack(
        self, members: Mapping[str, HeldOutMember], counts: Sequence[int], stacker: StackerName
    ) -> Choice | None:
        """Learn stacking from some held-out documents of each fold."""
        lists = {
            name: [
                TopK(top.labels[:n, :WIDTH], top.scores[:n, :WIDTH])
                for top, n in zip(held.lists, counts, strict=True)
            ]
            for name, held in members.items()
        }
        splits = [(k, h[:n]) for (k, h), n in zip(self.trainer.splits, counts, strict=True)]
        return learn_stacking(lists, splits, self.trainer.dataset, stacker)

    def prepare(self, members: Mapping[str, HeldOutMember]) -> None:
        """Load the compiled code of stacking, and learn how long it takes."""
        few = [min(FEW, n) for n in self._counts]
        self._stack(members, few, "boosted")
        began = time.monotonic()
        self._stack(members, few, "logistic")
        self._fixed = time.monotonic() - began
        self.precision(members)

    def gains(self, members: Mapping[str, HeldOutMember]) -> dict[str, float]:
        """Return what is lost without each member; all, if it is the only one."""
        whole = self.precision(members)
        return {
            name: whole - (self.precision(_without(members, name)) if len(members) > 1 else 0.0)
            for name in members
        }


def _without(members: Mapping[str, HeldOutMember], name: str) -> dict[str, HeldOutMember]:
    return {each: held for each, held in members.items() if each != name}


def grow(
    trainer: MemberTrainer,
    members: dict[str, HeldOutMember],
    judge: Judge,
    measure: Measure,
    width: int,
    limits: Limits,
) -> None:
    """Train further members while there is time and they pay; add them to `members`."""
    given_up: set[str] = set()  # models of which no further member is tried
    while member := _find_next(trainer, members, judge, measure, given_up, limits):
        before = judge.precision(members)
        found = trainer.hold_out(member, width)
        if found is None:
            given_up.add(member.model)
            continue
        gain = judge.precision({**members, member.name: found}) - before
        pays = gain >= WORTH
        trainer.progress.say(
            f"{member.name} {'gains' if pays else 'is left out, as it gains'} {gain:.2f} on "
            f"held-out documents ({format_seconds(trainer.taken[member.name])})"
        )
        if pays:
            members[member.name] = found
        else:
            trainer.forget(member.name)
            given_up.add(member.model)


def _find_next(
    trainer: MemberTrainer,
    members: Mapping[str, HeldOutMember],
    judge: Judge,
    measure: Measure,
    given_up: set[str],
    limits: Limits,
) -> Member | None:
    """Return the member that is likely to gain most for its time, None if none fits."""
    scheme, facts = trainer.plan.scheme, trainer.facts
    for model in trainer.plan.left_out:
        if model in given_up or any(held.member.model == model for held in members.values()):
            continue
        seconds = trainer.time_for(lane_of(model, facts.device)) / scheme.trainings
        member, _ = find_form(model, facts, seconds, measure, limits)
        if member is not None and not member.reduced:
            return member
    for member in _further_seeds(trainer, members, judge, given_up):
        seconds = trainer.estimates.expect(member) * scheme.trainings
        if seconds <= trainer.time_for(member.lane(facts.device)):
            return member
    return None


def _further_seeds(
    trainer: MemberTrainer,
    members: Mapping[str, HeldOutMember],
    judge: Judge,
    given_up: set[str],
) -> Iterator[Member]:
    """Yield members like those that there are, but for the seed, the most useful first."""
    firsts = [
        held.member
        for held in members.values()
        if held.member.name == held.member.model
        and held.member.cost.epochs
        and held.member.model not in given_up
    ]
    if not firsts or trainer.seconds_left <= 0:
        return
    gains = judge.gains(members)

    def rate(first: Member) -> float:
        number = sum(held.member.model == first.model for held in members.values())
        return gains[first.name] / number / max(trainer.estimates.expect(first), 1e-9)

    for first in sorted(firsts, key=rate, reverse=True):
        number = 1 + sum(held.member.model == first.model for held in members.values())
        yield first._replace(
            name=f"{first.model}-{number}",
            why=f"another seed of {first.model}, which gains {gains[first.name]:.2f}",
            cost=trainer.estimates.cost(first),
            seed=SEED_STEP * (number - 1),
        )
