"""`longtail models`: every model, when to choose it, and its parameters with their defaults."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from longtail.cli.output import check_json, write_json

if TYPE_CHECKING:
    from longtail.models.base import Model


@dataclass(frozen=True)
class Parameter:
    """One keyword of a model's constructor."""

    name: str
    type: str
    default: Any
    description: str


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this model's parameters.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the list as JSON; - for stdout.")
    ] = None,
) -> None:
    """List the models; with NAME, its parameters."""
    from longtail.cli.show import model_table, parameter_table, preset_table, show
    from longtail.models import get_model_class, model_names

    check_json(json)
    names = model_names() if name is None else [name]
    classes = [get_model_class(each) for each in names]
    write_json([_as_json(each) for each in classes], json)
    if json == "-":
        return
    if name is None:
        show(model_table(classes), "longtail models NAME shows the parameters of a model.")
        return
    model = classes[0]
    show(f"{model.name}: {model.summary}", f"Choose it when {model.choose_when}", "")
    show(parameter_table(list_parameters(model), title="Parameters (--set KEY=VALUE)"))
    if model.presets:
        show(preset_table(model.presets))


def list_parameters(model: "type[Model]") -> list[Parameter]:
    """Return the parameters of a model, and of its features, as the constructors have them."""
    from longtail.text.tfidf import Tfidf

    own = [each for each in _read_signature(model, "") if each.name != "tfidf"]
    return own + _read_signature(Tfidf, "tfidf.")


def _read_signature(source: type, prefix: str) -> list[Parameter]:
    described = dict(_read_args(inspect.getdoc(source) or ""))
    return [
        Parameter(
            name=prefix + each.name,
            type=inspect.formatannotation(each.annotation).replace("typing.", ""),
            default=each.default,
            description=described.get(each.name, "") + _name_choices(each.annotation),
        )
        for each in inspect.signature(source).parameters.values()
    ]


def _name_choices(annotation: Any) -> str:
    if get_origin(annotation) is not Literal:
        return ""
    return f" One of {', '.join(map(str, get_args(annotation)))}."


def _as_json(model: "type[Model]") -> dict[str, Any]:
    return {
        "name": model.name,
        "summary": model.summary,
        "choose_when": model.choose_when,
        "parameters": [asdict(each) for each in list_parameters(model)],
        "presets": {name: dict(values) for name, values in model.presets.items()},
    }


def _read_args(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield (name, description) from the Args or Attributes section of a docstring."""
    _, *section = re.split(r"^(?:Args|Attributes):\n", docstring, maxsplit=1, flags=re.MULTILINE)
    name = ""
    words: list[str] = []
    for line in "".join(section).splitlines():
        if line.strip() and not line.startswith(" "):
            break  # the section has ended
        if line.startswith(" " * 4) and not line.startswith(" " * 5):
            if name:
                yield name, " ".join(words)
            name, _, rest = line.strip().partition(":")
            words = rest.split()
        else:
            words += line.split()
    if name:
        yield name, " ".join(words)
