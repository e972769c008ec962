"""`longtail models`: every model, when to choose it, and its parameters with their defaults."""

import inspect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from longtail.models import Model


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
    from longtail.cli.show import model_table, parameter_table, preset_table, show, write_json
    from longtail.models import get_model_class, model_names

    names = model_names() if name is None else [name]
    classes = [get_model_class(each) for each in names]
    if json is not None:
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
    """Return the parameters of a model as its constructor has them."""
    described = dict(_read_args(inspect.getdoc(model) or ""))
    return [
        Parameter(
            name=each.name,
            type=inspect.formatannotation(each.annotation).replace("typing.", ""),
            default=each.default,
            description=described.get(each.name, ""),
        )
        for each in inspect.signature(model).parameters.values()
    ]


def _as_json(model: "type[Model]") -> dict[str, Any]:
    return {
        "name": model.name,
        "summary": model.summary,
        "choose_when": model.choose_when,
        "parameters": [asdict(each) for each in list_parameters(model)],
        "presets": {name: dict(values) for name, values in model.presets.items()},
    }


def _read_args(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield (name, description) from the Args section of a docstring."""
    _, found, section = docstring.partition("Args:\n")
    name = ""
    words: list[str] = []
    for line in section.splitlines() if found else []:
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
