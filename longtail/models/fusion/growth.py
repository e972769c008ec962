"""Further members for the time that is left after the plan.

First come models that were left out and now fit, and whole forms of members that had to be reduced;
then further seeds of what gains most for its time, until the time is used or nothing pays
(`worth.py`).
"""

from collections.abc import Iterator, Mapping

from longtail.models.cost import format_seconds
from longtail.models.fusion.candidates import voice_of
from longtail.models.fusion.limits import Limits
from longtail.models.fusion.member import Member, lane_of
from longtail.models.fusion.plan import Measure, find_form, list_kinds
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.models.fusion.weight import Scale
from longtail.models.fusion.worth import Judge, confirm_worth


def grow(
    trainer: MemberTrainer,
    members: dict[str, HeldOutMember],
    judge: Judge,
    scale: Scale,
    measure: Measure,
    width: int,
    limits: Limits,
    given_up: set[str],
) -> None:
    """Train further members while there is time and they pay; add them to `members`.

    Of voices that are given up, no further member is tried.
    """
    while member := _find_next(trainer, members, judge, measure, given_up, limits):
        found = trainer.hold_out(member, width)
        if found is None:
            given_up.add(voice_of(member.name))
            continue
        worth = confirm_worth({**members, member.name: found}, member.name, judge, scale)
        if worth.pays:
            members[member.name] = found
            text = f"{member.name} {worth.line()}"
        else:
            trainer.forget(member.name)
            given_up.add(voice_of(member.name))
            text = f"{member.name} is left out: it {worth.line()}"
        trainer.progress.say(f"{text} ({format_seconds(trainer.taken[member.name])})")


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
    known = [voice_of(name) for name in members]
    whole = {voice_of(name) for name, held in members.items() if not held.member.reduced}
    models = (*trainer.plan.left_out, *(member.model for member in trainer.plan.members))
    kinds = [(model, kind) for model in models for kind in list_kinds(model, facts)]
    for model, kind in kinds:
        voice, _ = kind
        if voice in given_up or voice in whole:
            continue
        seconds = trainer.time_for(lane_of(model, facts.device))
        member, _ = find_form(model, seconds, scheme, measure, limits, kind)
        if member is None or (voice in known and member.reduced):
            continue
        number = 1 + known.count(voice)
        return member if number == 1 else member._replace(name=f"{voice}-{number}")
    for member in _further_seeds(trainer, members, judge, given_up):
        seconds = trainer.estimates.expect(member) * scheme.trainings(member)
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
    firsts: dict[str, Member] = {}  # by voice, the whole form if there is one
    for member in (held.member for held in members.values()):
        voice = voice_of(member.name)
        if member.cost.epochs and voice not in given_up:
            first = firsts.get(voice)
            if first is None or (first.reduced and not member.reduced):
                firsts[voice] = member
    if not firsts or trainer.seconds_left <= 0:
        return
    gains = {name: judge.gain(members, name).points for name in members}

    def rate(first: Member) -> float:
        number = sum(held.member.model == first.model for held in members.values())
        return gains[first.name] / number / max(trainer.estimates.expect(first), 1e-9)

    for first in sorted(firsts.values(), key=rate, reverse=True):
        number = 1 + sum(held.member.model == first.model for held in members.values())
        why = f"another seed of {first.model}, which gains {gains[first.name]:.2f}"
        yield first.with_seed(number, why)._replace(cost=trainer.estimates.cost(first))
