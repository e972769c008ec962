"""What a fusion may weigh and take, and which members are dropped where that is too much.

The member that gains least for what it weighs and takes is dropped, again and again, until the rest
is within the limits.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from longtail.errors import ParameterError
from longtail.models.cost import Cost
from longtail.models.fusion.weight import Weight, add_up, say_bytes

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
Gain = Callable[[Sequence[str]], float]  # how good some members are together


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
