"""One training of a fusion, from the plan to the report.

First come rows of the documents, how long members take (`probe.py`), and the plan (`plan.py`):

    hold out    each member is trained with some documents held out (`training.py`); time that is
                left goes to further members (`growth.py`)
    drop        members that gain too little for what they weigh and take (`worth.py`), or make
                the fusion too large or too slow (`limits.py`)
    stack       a stacker learns from the members' lists for these documents (`stacking.py`)
    refit       members are trained on all documents, where the plan has time for that
    report      what each member gains, weighs and takes
"""

import os
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import ParameterError, TrainingError
from longtail.models.base import Model
from longtail.models.contract import HeldOut
from longtail.models.cost import format_seconds
from longtail.models.fusion.candidates import MOST_PROPOSED, USUAL_PROPOSED, list_voices, voice_of
from longtail.models.fusion.eligible import find_facts, parse_members
from longtail.models.fusion.growth import grow
from longtail.models.fusion.limits import Limits, choose_members
from longtail.models.fusion.member import Member
from longtail.models.fusion.needs import say_memory
from longtail.models.fusion.plan import find_budget, make_plan
from longtail.models.fusion.probe import Prober
from longtail.models.fusion.spread import ClusterTrainer
from longtail.models.fusion.stacking import Choice, Stacker, learn_stacking
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.models.fusion.weight import (
    MemberReport,
    Scale,
    add_up,
    describe_members,
    say_weight,
    weigh_member,
    weigh_shared,
)
from longtail.models.fusion.worth import Gain, Judge, find_unpaid
from longtail.progress import Progress
from longtail.runtime.workers import cluster_in_use

if TYPE_CHECKING:
    from longtail.models.fusion.model import Fusion

Held = dict[str, HeldOutMember]
TOO_MUCH = "too much to be within the limits"


class Learned(NamedTuple):
    """What a training makes.

    Attributes:
        members: trained, by name.
        proposers: how many labels those members propose that do.
        stacker: gives each label that is proposed its probability.
        report: what each member gains, weighs and takes.
        dropped: the same of members that are not in the fusion, as they do not pay.
        held_out: predictions for the held-out documents, None if there are none.
    """

    members: Mapping[str, Model]
    proposers: Mapping[str, int]
    stacker: Stacker
    report: Mapping[str, MemberReport]
    dropped: Mapping[str, MemberReport]
    held_out: HeldOut | None


class Learning:
    """A training with the parameters of a fusion; making it measures members and plans."""

    def __init__(self, fusion: "Fusion", dataset: Dataset, progress: Progress) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ParameterError("fusion is trained by one process; start it without torchrun")
        self.fusion, self.dataset, self.progress = fusion, dataset, progress
        self.began = time.monotonic() if fusion.began is None else fusion.began
        self.dropped: dict[str, MemberReport] = {}
        self.limits = Limits.parse(fusion.max_size, fusion.max_latency)
        self.features, self.X = fusion.learn_features(dataset, progress)
        self._check_shared()
        self.facts, usable = find_facts(dataset, self.X, fusion.members, fusion.device)
        budget = find_budget(fusion.budget, fusion.members)
        self.prober = Prober(
            dataset,
            self.X,
            self.facts,
            budget=budget,
            began=self.began,
            device=fusion.device,
            seed=fusion.seed,
            limits=self.limits,
        )
        named = None if fusion.members is None else parse_members(fusion.members)
        if budget is not None:
            progress.stage("measuring members", 1)
        for _ in range(2):  # the second time, all is measured and the time for that is known
            spent = time.monotonic() - self.began
            self.plan = make_plan(
                self.facts, usable, named, budget, self.prober, spent, self.limits
            )

    def _check_shared(self) -> None:
        """Raise ParameterError if words and label names alone are more than is allowed."""
        if self.limits.any:
            shared = weigh_shared(self.features, self.dataset)
            what = "what all models share, words and label names,"
            self.limits.refuse(shared, what, "allow more than that")

    def lines(self) -> list[str]:
        """Return the plan as it is shown."""
        return self.plan.lines(self.facts)

    def run(self) -> Learned:
        """Train the members, learn to stack them, train them on all documents."""
        for line in self.lines():
            self.progress.say(line)
        say_memory(
            self.plan, self.X, self.dataset.Y, self.features, self.facts.device, self.progress
        )
        trainer = self._make_trainer()
        judge = Judge(trainer)
        scale = Scale(trainer, self.features)
        held = self._hold_out(trainer, judge, scale) if trainer.splits else {}
        choice = self._learn_stacking(trainer, held) if held else None
        members = self._finish(trainer, held)
        if not held and self.limits.any:
            members = self._keep_unjudged(trainer, members, scale)
        proposers = dict.fromkeys(members, USUAL_PROPOSED) if choice is None else choice.proposers
        for name in proposers:
            members[name].prepare_search(self.X, self.progress)
        gains = {name: judge.gain(held, name) for name in held} if choice else {}
        report = self._report(trainer, members, gains, scale)
        took = ", ".join(f"{name} {format_seconds(s)}" for name, s in trainer.taken.items())
        self.progress.say(f"Trained in {format_seconds(time.monotonic() - self.began)}: {took}")
        stacker = (
            Stacker.plain_mean(len(list_voices(members))) if choice is None else choice.stacker
        )
        held_out = None if choice is None else HeldOut(choice.rows, choice.unseen)
        return Learned(members, proposers, stacker, report, self.dropped, held_out)

    def _make_trainer(self) -> MemberTrainer:
        fusion, cluster = self.fusion, cluster_in_use()
        new_trainer = MemberTrainer if cluster is None else partial(ClusterTrainer, cluster)
        return new_trainer(
            self.dataset,
            self.X,
            self.plan,
            self.facts,
            device=fusion.device,
            seed=fusion.seed,
            began=self.began,
            run_dir=fusion.run_dir,
            resume=fusion.resume,
            checkpoint_seconds=fusion.checkpoint_seconds,
            progress=self.progress,
        )

    # -- held-out documents -----------------------------------------------------------------------

    def _hold_out(self, trainer: MemberTrainer, judge: Judge, scale: Scale) -> Held:
        """Train each member with documents held out, then others for the time that is left.

        Returns those that pay, within the limits.
        """
        width = min(MOST_PROPOSED, self.facts.n_labels)

        def hold_out(member: Member) -> HeldOutMember | None:
            is_first = not trainer.taken
            found = trainer.hold_out(member, width)
            if found is not None and is_first:
                judge.prepare({member.name: found})
            return found

        held = trainer.in_lanes(hold_out, self.plan.members)
        if held and self.fusion.members is None and self.dataset.Y[judge.rows].nnz:
            self._drop_unpaid(trainer, held, judge, scale)
            missing = (each.name for each in self.plan.members if each.name not in held)
            given_up = {voice_of(name) for name in missing}
            grow(trainer, held, judge, scale, self.prober, width, self.limits, given_up)
            self._drop_unpaid(trainer, held, judge, scale)
        if held and self.limits.any:
            self._add_cheaper(trainer, held, scale, width)
            self._keep_limits(trainer, held, judge, scale)
        return held

    def _drop_unpaid(self, trainer: MemberTrainer, held: Held, judge: Judge, scale: Scale) -> None:
        """Take out the members that gain too little for what they weigh and take."""
        for name, worth in find_unpaid(held, judge, scale).items():
            self._drop(trainer, held, name, worth.gain, scale, worth.line())

    def _add_cheaper(self, trainer: MemberTrainer, held: Held, scale: Scale, width: int) -> None:
        """Train a cheaper form of members that are more than is allowed even alone."""
        for name, weight in scale.weigh(held).items():
            member = held[name].member
            if self.limits.allow(add_up(scale.shared, [weight])) or member.cheaper:
                continue
            for preset in member.model_class.cheaper_presets:
                self.progress.say(f"{name} has {say_weight(weight)}, so preset={preset} is tried")
                cheaper = member.in_form(preset, self.prober(member.model, preset))
                found = trainer.hold_out(cheaper._replace(name=f"{member.model}-{preset}"), width)
                if found is not None:
                    held[found.member.name] = found
                    break

    def _keep_limits(self, trainer: MemberTrainer, held: Held, judge: Judge, scale: Scale) -> None:
        """Take out the members that make the fusion too large or too slow."""
        kept = choose_members(
            scale.weigh(held),
            scale.shared,
            self.limits,
            lambda names: judge.value({name: held[name] for name in names}),
        )
        for name in [name for name in held if name not in kept]:
            weight = say_weight(scale.weigh(held)[name])
            named = "" if self.fusion.members is None else ", though it was named"
            why = f"has {weight}, {TOO_MUCH}{named}"
            self._drop(trainer, held, name, judge.gain(held, name), scale, why)

    def _drop(
        self,
        trainer: MemberTrainer,
        held: Held,
        name: str,
        gain: Gain,
        scale: Scale,
        why: str,
    ) -> None:
        weight = scale.weigh({name: held.pop(name)})[name]
        trainer.forget(name)
        self.dropped[name] = MemberReport(*gain, *weight, trainer.taken.get(name, 0.0))
        self.progress.say(f"{name} is dropped: it {why}")

    def _learn_stacking(self, trainer: MemberTrainer, held: Held) -> Choice | None:
        """Learn the stacker from held-out documents; None if these carry no label."""
        self.progress.stage("stacking", 1)

        def score(fold: int, name: str, labels: NDArray[np.int32]) -> NDArray[np.float32]:
            return trainer.score(held[name].model_of(fold), trainer.splits[fold][1], labels)

        choice = learn_stacking(
            {name: each.lists for name, each in held.items()},
            trainer.splits,
            self.dataset,
            self.fusion.stacker,
            score=score,
            costs={name: each.model.milliseconds for name, each in held.items()},
        )
        trainer.stacking = 0.0  # it is done, and no time has to be set aside for it any more
        self.progress.advance(1)
        if choice is None:
            self.progress.say(
                "The held-out documents carry no label: all members get the same weight"
            )
            return None
        for line in choice.lines():
            self.progress.say(line)
        return choice

    # -- all documents ----------------------------------------------------------------------------

    def _finish(self, trainer: MemberTrainer, held: Held) -> dict[str, Model]:
        """Return the members, trained on all documents if the plan says so."""
        members = [each.member for each in held.values()]
        done = {name: each.model for name, each in held.items()}
        if not held:  # such as with one labelled document, which a fold must do without
            members = list(self.plan.members)
            if trainer.splits:
                self.progress.say("Nothing could be held out: all members get the same weight")
        for each in held.values():
            each.models.clear()  # `done` has what is needed of them
        if self.plan.scheme.refit or not held:
            found = trainer.in_lanes(
                lambda member: trainer.refit(member, done.pop(member.name, None)),
                sorted(members, key=trainer.estimates.expect),
            )
            done = {member.name: found[member.name] for member in members if member.name in found}
        if not done:
            raise TrainingError("no member of the fusion could be trained; the lines above say why")
        return done

    def _keep_unjudged(
        self, trainer: MemberTrainer, members: Mapping[str, Model], scale: Scale
    ) -> dict[str, Model]:
        """Return those members that are within the limits, where no documents could be held out."""
        weights = {name: weigh_member(model, trainer) for name, model in members.items()}
        kept = choose_members(weights, scale.shared, self.limits, judge=len)
        for name in [name for name in members if name not in kept]:
            weight, seconds = weights[name], trainer.taken.get(name, 0.0)
            self.dropped[name] = MemberReport(None, None, *weight, seconds)
            self.progress.say(f"{name} is dropped: it has {say_weight(weight)}, {TOO_MUCH}")
        return {name: members[name] for name in kept}

    def _report(
        self,
        trainer: MemberTrainer,
        members: Mapping[str, Model],
        gains: Mapping[str, Gain],
        scale: Scale,
    ) -> dict[str, MemberReport]:
        """Say and return what each member gains, weighs and takes."""
        report = {}
        for name, model in members.items():
            points, error = gains.get(name, (None, None))
            weight, seconds = weigh_member(model, trainer), trainer.taken.get(name, 0.0)
            report[name] = MemberReport(points, error, *weight, seconds)
        self.progress.say("Members (gain: points of P@1, P@5 and PSP@5 on held-out documents):")
        for line in describe_members(report, self.dropped):
            self.progress.say(f"  {line}")
        whole = add_up(scale.shared, [each.weight for each in report.values()])
        is_over = "" if self.limits.allow(whole) else ", which is more than was asked for"
        self.progress.say(f"  together: about {say_weight(whole)}{is_over}")
        return report
