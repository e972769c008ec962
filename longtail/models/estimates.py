"""What training takes: seconds and bytes, estimated before it begins."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import scipy.sparse as sp

from longtail.errors import ParameterError
from longtail.models.cost import MOST_SECONDS, Facts, format_seconds
from longtail.models.parameters import Parameterized
from longtail.progress import Progress
from longtail.runtime import memory
from longtail.runtime.settings import configurable, learned, settings_of

WORTH_SAYING = 1 << 28  # bytes of memory
LONG = 60.0  # seconds of training


@configurable
class Estimated(Parameterized):
    """Says what training takes, and refuses what cannot end well."""

    needs_torch: ClassVar[bool] = False  # for training

    _made_of_texts: int = learned(default=0)  # bytes of the rows that training made of texts

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Return about how many seconds one training takes on two cores, or on one GPU.

        A fusion measures instead, where it can; what counts there is how the time grows.
        """
        return 10 + 0.005 * facts.n_documents

    @classmethod
    def has_estimate(cls) -> bool:
        """Whether the estimate is its own, which says how its time grows with the documents."""
        above = cls.__mro__[: cls.__mro__.index(Estimated)]
        return any("estimate_cost" in vars(each) for each in above)

    @classmethod
    def member_kinds(cls, facts: Facts) -> Sequence[str | None]:
        """Return the presets that are members of a fusion, each by itself; None is the defaults."""
        return (None,)

    def choose_epochs(self, n_documents: int) -> int:
        """Return how many passes over so many documents there are; 0 for a model without such."""
        return 0

    def work(self, facts: Facts) -> float:
        """Return how much work training is, in any unit: its parameters' part of the time."""
        return 1.0

    def extra_seconds(self, facts: Facts) -> float:
        """Return what the parameters' own work adds to the estimate: nothing, unless overridden."""
        return 0.0

    def estimate_training(self, facts: Facts) -> float:
        """Return about how many seconds training takes with these parameters."""
        usual = type(self)()
        share = self.work(facts) / usual.work(facts)
        return self.estimate_cost(facts) * share + self.extra_seconds(facts)

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> memory.Needs:
        """Return the stages of training on these rows and what each holds; none if unknown."""
        return ()

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return about how many bytes of that the trained model keeps."""
        needs = self.needs_of(X, Y, "cpu")
        return memory.total_ram(needs) // 3 if needs else 0

    def say_memory(
        self,
        needs: Callable[[Self], memory.Needs],
        others: Sequence[Mapping[str, Any]],
        progress: Progress,
        device_type: str = "cpu",
    ) -> None:
        """Say what training will take, or stop and say which of `others` parameters would fit.

        `needs` returns what a model with given parameters takes. Little memory goes without saying,
        but for networks, which take more than their documents let expect.
        """

        def try_others() -> dict[str, memory.Needs]:
            return {
                ", ".join(f"{name}={value}" for name, value in other.items()): needs(
                    self.with_parameters(**other)
                )
                for other in others
            }

        made = {"rows of texts": self._made_of_texts}
        own = [stage.also(made) for stage in needs(self)]
        plan = memory.plan_memory(own, device=device_type, alternatives=try_others)
        if self.needs_torch or memory.total_ram(own) >= WORTH_SAYING:
            progress.say(f"Memory: {plan}")

    def say_time(self, facts: Facts, progress: Progress) -> None:
        """Say how long training takes if that is long; stop where a parameter makes it absurd."""
        seconds = self.estimate_training(facts)
        if seconds > MOST_SECONDS:
            self._refuse_time(seconds, facts)
        if seconds >= LONG:
            progress.say(f"Time: training takes about {format_seconds(seconds)}")

    def _refuse_time(self, seconds: float, facts: Facts) -> None:
        """Raise ParameterError with the parameter that costs the most; data alone are no error."""
        usual = {each.name: each.default for each in settings_of(type(self)).values()}
        given = {k: v for k, v in self.get_parameters().items() if v != usual[k]}
        times = {k: self.with_parameters(**{k: usual[k]}).estimate_training(facts) for k in given}
        name = min(times, key=lambda k: times[k], default=None)
        if name is None or times[name] > seconds / 2:
            return
        raise ParameterError(
            f"training would take about {format_seconds(seconds)} with {name}={given[name]}, and "
            f"about {format_seconds(times[name])} without that; choose a smaller {name}"
        )
