"""A model's parameters: built from settings and presets, copied, checked."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from longtail.errors import ParameterError, suggest
from longtail.runtime.settings import (
    check_names,
    check_settings,
    configurable,
    parse_settings,
    seeds,
    setting,
    settings_of,
)
from longtail.text.tfidf import Tfidf


@configurable
class Parameterized:
    """Has parameters, and presets of them."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # named sets of parameters

    seed: int = setting(0, "fixes everything that is random", seeds())
    tfidf: Tfidf | None = setting(None, "how texts become rows")

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        check_settings(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build the model from named settings, whose values may be strings, and check them.

        `preset` names one of `presets`, which other settings override; `tfidf.x` sets the
        parameter x of the features that raw texts become.
        """
        named = dict(settings)
        preset = named.pop("preset", None)
        text = {key: named.pop(key) for key in list(named) if key.startswith("tfidf.")}
        parameters = parse_settings(cls, named, also=("preset", "tfidf."))
        if text:
            bare = {key.removeprefix("tfidf."): value for key, value in text.items()}
            parameters["tfidf"] = Tfidf(**parse_settings(Tfidf, bare))
        return cls._build(parameters) if preset is None else cls.preset(str(preset), **parameters)

    @classmethod
    def preset(cls, name: str, /, **parameters: Any) -> Self:
        """Build the model that one of `presets` names, and check it.

        Parameters given here override those of the preset: `GLaS.preset("paper", dim=512)`.
        """
        if name not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise ParameterError(
                f"{cls.__name__} has no preset '{name}'{suggest(name, cls.presets)} "
                f"(known: {known})"
            )
        check_names(cls, parameters)
        return cls._build({**cls.presets[name], **parameters})

    @classmethod
    def _build(cls, parameters: Mapping[str, Any]) -> Self:
        model = cls(**parameters)
        model.check_parameters()
        return model

    @classmethod
    def has_parameter(cls, name: str) -> bool:
        """Whether the constructor takes a parameter of this name."""
        return name in settings_of(cls)

    def get_parameters(self) -> dict[str, Any]:
        """Return the constructor's parameters with the values given, but for `tfidf`."""
        return {name: getattr(self, name) for name in settings_of(type(self)) if name != "tfidf"}

    def with_parameters(self, **other: Any) -> Self:
        """Return an untrained model with the same parameters but for those given."""
        return type(self)(**{**self.get_parameters(), "tfidf": self.tfidf, **other})

    def require(self, name: str, condition: bool, range_text: str) -> None:
        """Raise ParameterError with the parameter's name, range and value unless `condition`."""
        if not condition:
            raise ParameterError(
                f"The '{name}' parameter of {type(self).__name__} must be {range_text}. "
                f"Got {getattr(self, name)!r} instead."
            )
