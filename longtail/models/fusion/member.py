"""A member as it is planned: a registered model in one of its forms."""

from typing import TYPE_CHECKING, Any, NamedTuple

from longtail.models.cost import Cost, DeviceType
from longtail.models.registry import get_model_class

if TYPE_CHECKING:
    from longtail.models.base import Model

SEED_STEP = 7_919  # between the seeds of members of one model


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
