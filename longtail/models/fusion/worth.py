"""Which members pay: what each gains on held-out documents, for what it weighs and takes.

A member's gain is what held-out documents lose without it, in points: the mean of P@1, P@5 and
PSP@5 in percent, by logistic stacking. A member that would be dropped for little gets a second
opinion, by boosted stacking, which takes several times as long; then the mean of both counts. Its
price depends on how much larger and slower the fusion is with it: PRICE points for each doubling of
the bytes, and as much for each doubling of the milliseconds; hundreds of megabytes are dear beside
whatever else, so each gigabyte costs GIGABYTE more, and each kilobyte for a training document
KILOBYTE: few documents are no reason for a large folder. What a fusion costs below FREE_BYTES and
FREE_MILLISECONDS is not counted: more of them on a GPU, where one document waits for many small
launches that a batch shares.

A gain is uncertain: another set of documents would say something else. The differences between two
fusions, document by document, have a standard error. The more of it there is, the more the gain is
drawn towards what members gain as a rule (MEMBERS). So a member that a few documents say little of
is kept, and one of which thousands say that it gains nothing is dropped. A second seed of a model
gains little as a rule, hardly ever much and hardly ever less than nothing (SECOND_SEED). Each one
that follows gains less: of what k seeds get wrong by chance, their mean keeps the k-th part.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.evaluation.metrics import TrainingCounts, evaluate_documents
from longtail.models.cost import DeviceType
from longtail.models.fusion.candidates import voice_of
from longtail.models.fusion.stacking import ENOUGH, Choice, StackerName, learn_stacking
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.models.fusion.weight import Scale, Weight
from longtail.topk import TopK

METRICS = ("P@1", "P@5", "PSP@5")
WIDTH = 30  # labels of each member, to judge it by
SHARE = 0.04  # of the budget, for judging members
SECOND_SHARE = 0.03  # of the budget, for second opinions
BOOSTED = 5.0  # times as long as logistic stacking takes boosted stacking
DOUBT = 2.0  # standard errors that a gain may be below its price, to be worth a second opinion
ROUNDS = 2.0  # in which each member is left out of all, about; what is known is not judged again
LEAST_JUDGED = 500  # held-out documents
STACKERS = 6.0  # times as long as judging takes learning the stacker for as many documents
FEW = 40  # held-out documents, to load compiled code with
PRICE = 0.15  # points, for each doubling of bytes or of milliseconds
GIGABYTE = 0.75  # points, for each of them
KILOBYTE = 0.1  # points, for each of them that there is for each training document
LEAST_GAIN = 0.02  # points of a member, however small and quick it is
FREE_BYTES = 30e6
FREE_MILLISECONDS: Mapping[DeviceType, float] = {"cpu": 2.0, "cuda": 10.0}

Held = Mapping[str, HeldOutMember]


class Rule(NamedTuple):
    """Points that members gain as a rule, and their standard deviation."""

    points: float
    spread: float

    def after(self, n_seeds: int) -> "Rule":
        """Return what a further seed gains after so many, if this is what the second gains."""
        share = 2 / (n_seeds * (n_seeds + 1))
        return Rule(share * self.points, share * self.spread)


MEMBERS, SECOND_SEED = Rule(0.3, 0.5), Rule(0.1, 0.1)


class Gain(NamedTuple):
    """Points that a member gains, and their standard error."""

    points: float
    error: float

    def expect(self, rule: Rule) -> float:
        """Return the points to expect, after what is known of such members as a rule."""
        trust = rule.spread**2 / (rule.spread**2 + self.error**2)
        return trust * self.points + (1 - trust) * rule.points


class Judge:
    """Says how good some of the members are together, on documents that they have not seen."""

    def __init__(self, trainer: MemberTrainer) -> None:
        self.trainer = trainer
        self.counts = TrainingCounts.of(trainer.dataset)
        self._known: dict[tuple[str, frozenset[str]], NDArray[np.float64]] = {}
        self._fixed = 0.0  # seconds that stacking takes for hardly any documents
        self._second = 0.0  # seconds that second opinions took
        self._take(1.0)

    def _take(self, share: float) -> None:
        """Judge by a share of the held-out documents of each fold."""
        splits = self.trainer.splits
        self._numbers = [max(1, round(share * len(held))) for _, held in splits]
        parts = [held[:n] for (_, held), n in zip(splits, self._numbers, strict=True)]
        self.rows = np.concatenate(parts) if parts else np.empty(0, np.int64)

    def prepare(self, members: Held) -> None:
        """Load the compiled code of stacking, and learn how long it takes."""
        few = [min(FEW, n) for n in self._numbers]
        self._stack(members, few, "boosted")
        began = time.monotonic()
        self._stack(members, few, "logistic")
        self._fixed = time.monotonic() - began
        began = time.monotonic()
        self.value(members)
        self._keep_to_time(max(0.0, time.monotonic() - began - self._fixed))

    def _keep_to_time(self, seconds: float) -> None:
        """Judge by fewer documents, if what took so long for one member takes too long for all."""
        budget = self.trainer.plan.budget
        n_members = len(self.trainer.plan.members)
        needed = ROUNDS * seconds * n_members**2  # stacking takes as long as there are members
        if budget is not None and needed > SHARE * budget:
            least = min(1.0, LEAST_JUDGED / max(1, len(self.rows)))
            self._known.clear()
            self._take(max(least, SHARE * budget / needed))

    def values(self, members: Held, stacker: StackerName = "logistic") -> NDArray[np.float64]:
        """Return the points of each document; their mean is that of METRICS, in percent."""
        asked = (stacker, frozenset(members))
        if asked not in self._known:
            self._known[asked] = self._judge(members, stacker)
        return self._known[asked]

    def value(self, members: Held) -> float:
        """Return the points of all documents, 0 if none carries a label."""
        return float(self.values(members).mean())

    def gain(self, members: Held, name: str) -> Gain:
        """Return what is lost without a member; all, if it is the only one.

        If there is a second opinion, it is the mean of both.
        """
        others = _without(members, name)
        lost = self.values(members) - (self.values(others) if others else 0.0)
        whole, less = (self._known.get(("boosted", frozenset(each))) for each in (members, others))
        if whole is not None and less is not None:
            lost = (lost + whole - less) / 2
        return Gain(float(lost.mean()), float(lost.std() / np.sqrt(len(lost))))

    def ask_again(self, members: Held, name: str) -> bool:
        """Get a second opinion on the gain of a member, if there is time; return whether."""
        sets = (members, _without(members, name))
        new = [each for each in sets if ("boosted", frozenset(each)) not in self._known]
        once = self.trainer.stacking / STACKERS * len(self.rows) * len(members)
        needed, budget = BOOSTED * once * len(new), self.trainer.plan.budget
        is_long = budget is not None and self._second + needed > SECOND_SHARE * budget
        if is_long or len(self.rows) < ENOUGH:
            return False
        began = time.monotonic()
        for each in new:
            self.values(each, "boosted")
        self._second += time.monotonic() - began
        return True

    def _judge(self, members: Held, stacker: StackerName) -> NDArray[np.float64]:
        began = time.monotonic()
        choice = self._stack(members, self._numbers, stacker)
        took = max(0.0, time.monotonic() - began - self._fixed)
        if stacker == "logistic":
            self.trainer.stacking = STACKERS * took / (len(self.rows) * len(members))
        if choice is None:
            return np.zeros(max(1, len(self.rows)))
        Y = self.trainer.dataset.Y[choice.rows]
        found = evaluate_documents(choice.unseen, Y, train=self.counts)
        parts = [found[name].reached / max(found[name].possible.mean(), 1e-9) for name in METRICS]
        points: NDArray[np.float64] = 100 * np.mean(parts, axis=0)
        return points

    def _stack(self, members: Held, numbers: Sequence[int], stacker: StackerName) -> Choice | None:
        """Learn stacking from some held-out documents of each fold."""
        lists = {
            name: [
                TopK(top.labels[:n, :WIDTH], top.scores[:n, :WIDTH])
                for top, n in zip(held.lists, numbers, strict=True)
            ]
            for name, held in members.items()
        }
        splits = [(k, h[:n]) for (k, h), n in zip(self.trainer.splits, numbers, strict=True)]
        return learn_stacking(lists, splits, self.trainer.dataset, stacker)


def find_price(
    whole: Weight, without: Weight, n_documents: int, device: DeviceType = "cpu"
) -> float:
    """Return the points that a fusion must gain by what makes it so much larger and slower."""
    large, small = (max(weight.n_bytes, FREE_BYTES) for weight in (whole, without))
    free = FREE_MILLISECONDS[device]
    slow, quick = (max(weight.milliseconds, free) for weight in (whole, without))
    doublings = float(np.log2(large / small * slow / quick))
    a_byte = GIGABYTE / 1e9 + KILOBYTE / (1e3 * max(1, n_documents))
    return PRICE * doublings + a_byte * (large - small)


class Worth(NamedTuple):
    """What a member gains, and what it has to gain for what it weighs and takes."""

    gain: Gain
    price: float
    rule: Rule

    @property
    def surplus(self) -> float:
        """The points that are to be expected beyond the price."""
        return self.gain.expect(self.rule) - self.price

    @property
    def pays(self) -> bool:
        """Whether it is expected to gain what it has to."""
        return self.surplus >= 0

    def line(self) -> str:
        """Say it in a few words."""
        gains = f"gains {self.gain.points:.2f} ± {self.gain.error:.2f}"
        expected = f"{self.gain.expect(self.rule):.2f}"
        if expected != f"{self.gain.points:.2f}":
            gains += f", probably {expected} by what members gain as a rule"
        return f"{gains}, and should gain {self.price:.2f} for what it weighs and takes"


def _without(members: Held, name: str) -> dict[str, HeldOutMember]:
    return {each: held for each, held in members.items() if each != name}


def find_worth(members: Held, name: str, judge: Judge, scale: Scale) -> Worth:
    """Return what one of the members is worth among them."""
    others = _without(members, name)
    facts = judge.trainer.facts
    whole, without = scale.total(members), scale.total(others)
    price = max(LEAST_GAIN, find_price(whole, without, facts.n_documents, facts.device))
    gain = judge.gain(members, name)
    n_seeds = sum(voice_of(each) == voice_of(name) for each in others)
    if n_seeds:
        return Worth(gain, price, SECOND_SEED.after(n_seeds))
    return Worth(gain, price, MEMBERS)


def confirm_worth(members: Held, name: str, judge: Judge, scale: Scale) -> Worth:
    """Return what a member is worth, by a second opinion too if it would be dropped for little."""
    worth = find_worth(members, name, judge, scale)
    gain = worth.gain
    is_doubtful = not worth.pays and gain.points + DOUBT * gain.error >= worth.price
    if is_doubtful and judge.ask_again(members, name):
        return find_worth(members, name, judge, scale)
    return worth


def find_unpaid(members: Held, judge: Judge, scale: Scale) -> dict[str, Worth]:
    """Return the members to drop: again and again the one that pays least, until all pay."""
    kept, dropped = dict(members), dict[str, Worth]()
    while len(kept) > 1 and (found := _find_least(kept, judge, scale)) is not None:
        name, worth = found
        dropped[name] = worth
        del kept[name]
    return dropped


def _find_least(members: Held, judge: Judge, scale: Scale) -> tuple[str, Worth] | None:
    """Return the member that pays least, and does not pay; None if all do."""
    first = {name: find_worth(members, name, judge, scale).surplus for name in members}
    for name in sorted(first, key=lambda name: first[name]):
        worth = confirm_worth(members, name, judge, scale)
        if not worth.pays:
            return name, worth
    return None
