"""What members weigh and take, and which are dropped where a fusion has to be small or quick.

A fusion's bytes are those of its members and of what they share: words and label names. A document
takes the time of its members, which are asked side by side. Where that is too much, the member that
gains least for what it weighs and takes is dropped, again and again.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from longtail.errors import ParameterError
from longtail.models.cost import Cost
from longtail.runtime.parallel import n_threads
from longtail.runtime.schema import Config, Value, number, whole

TIMED = 15  # documents, one by one
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
Gain = Callable[[Sequence[str]], float]  # how good some members are together


class Weight(NamedTuple):
    """What a member, or what all of them share, costs.

    Attributes:
        n_bytes: in the model folder.
        milliseconds: for one document, at the median.
    """

    n_bytes: int
    milliseconds: float


class Limits(NamedTuple):
    """What a fusion may cost; None is any number.

    Attributes:
        n_bytes: of the model folder.
        milliseconds: for one document, at the median.
    """

    n_bytes: float | None = None
    milliseconds: float | None = None

    @classmethod
    def parse(cls, max_size: str | None, max_latency: str | None) -> "Limits":
        """Return the limits of 300MB and 5ms, or say what is wrong with them."""
        n_bytes = None if max_size is None else _parse(max_size, UNITS, "max_size", "300MB or 2GB")
        latency = {"ms": 1.0, "s": 1e3}
        most = None
        if max_latency is not None:
            most = _parse(max_latency, latency, "max_latency", "5ms or 0.5s")
        return cls(n_bytes, most)

    @property
    def any(self) -> bool:
        """Whether there are limits."""
        return self.n_bytes is not None or self.milliseconds is not None

    def allow(self, weight: Weight | Cost) -> bool:
        """Whether it costs no more than is allowed."""
        return self.excess(weight) <= 1

    def say_excess(self, weight: Weight | Cost) -> str:
        """Say what it costs by the limit that is exceeded most."""
        if self.n_bytes is not None and weight.n_bytes / self.n_bytes == self.excess(weight):
            return f"has at least {say_bytes(weight.n_bytes)}"
        return f"takes at least {weight.milliseconds:.3g} ms for one document"

    def excess(self, weight: Weight | Cost) -> float:
        """Return how many times too much it is, by the limit that is exceeded most."""
        too_much = [0.0]
        if self.n_bytes is not None:
            too_much.append(weight.n_bytes / self.n_bytes)
        if self.milliseconds is not None:
            too_much.append(weight.milliseconds / self.milliseconds)
        return max(too_much)

    def refuse(self, weight: Weight | Cost, what: str, advice: str = "allow at least that") -> None:
        """Raise ParameterError if `what` costs too much, which is the least that is possible."""
        for name, limit, least in (
            ("max_size", self.n_bytes, weight.n_bytes),
            ("max_latency", self.milliseconds, weight.milliseconds),
        ):
            if limit is not None and least > limit:
                is_size = name == "max_size"
                shown, most = (
                    (say_bytes(value) if is_size else f"{value:.3g} ms") for value in (least, limit)
                )
                raise ParameterError(
                    f"{name} {most} cannot be met: {what} {'has' if is_size else 'takes'} {shown}"
                    f"{'' if is_size else ' for one document'}; {advice}"
                )


NO_LIMITS = Limits()


def _parse(text: str, units: Mapping[str, float], name: str, examples: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    by_lower = {unit.lower(): factor for unit, factor in units.items()}
    if found is None or found[2].lower() not in by_lower or not float(found[1]):
        raise ParameterError(
            f"The '{name}' parameter of Fusion must be such as {examples}. Got {text!r} instead."
        )
    return float(found[1]) * by_lower[found[2].lower()]


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


def choose_members(
    weights: Mapping[str, Weight], shared: Weight, limits: Limits, judge: Gain
) -> list[str]:
    """Return the members to keep: those that gain least for what they cost are dropped.

    Raises:
        ParameterError: not even one member can be kept; it says what the least is.
    """
    kept = list(weights)

    def total(names: Sequence[str]) -> Weight:
        return add_up(shared, [weights[name] for name in names])

    while limits.excess(total(kept)) > 1:
        alone = {name: limits.excess(total([name])) for name in kept}
        if len(kept) == 1 or min(alone.values()) > 1:
            least = min(alone, key=lambda name: alone[name])
            limits.refuse(total([least]), f"{least} alone, the least of the members,")
        too_large = [name for name in kept if alone[name] > 1]
        kept.remove(too_large[0] if too_large else _find_least(kept, weights, limits, judge))
    return kept


def _find_least(
    names: Sequence[str], weights: Mapping[str, Weight], limits: Limits, judge: Gain
) -> str:
    """Return the member that gains least for what it costs."""
    whole = judge(names)

    def rate(name: str) -> float:
        gain = whole - judge([other for other in names if other != name])
        return gain / max(limits.excess(weights[name]), 1e-9)

    return min(names, key=rate)


def time_documents(ask: Callable[[int], Any], n_documents: int) -> float:
    """Return the median of the milliseconds that one document takes; the first does not count."""
    seconds = []
    for which in range(min(TIMED, n_documents) + 1):
        began = time.perf_counter()
        ask(which % n_documents)
        seconds.append(time.perf_counter() - began)
    return 1e3 * float(np.median(seconds[1:]))


class MemberReport(NamedTuple):
    """What is known of a member.

    Attributes:
        gain: percent of the mean of P@1, P@3 and P@5 that held-out documents lose without it; None
            if that was not measured.
        n_bytes: in the model folder.
        milliseconds: for one document, at the median.
        seconds: of training, in all.
    """

    gain: float | None
    n_bytes: int
    milliseconds: float
    seconds: float

    @staticmethod
    def describe() -> Config:
        """Return the schema of a report in config.json."""
        return {
            "gain": Value(float | None),
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
        gain = "" if self.gain is None else f"gains {self.gain:.2f}, "
        return f"{gain}{say_weight(self.weight)}, trained in {self.seconds:.0f} s"
