"""`longtail models`: every model, when to choose it, and its parameters with their defaults."""

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.output import check_json, write_json
from longtail.cli.terminal import echo

if TYPE_CHECKING:
    from longtail.models.base import Model
    from longtail.runtime.settings import Setting


def complete_model(incomplete: str) -> list[str]:
    """Return the names of models that begin so, for the Tab key."""
    from longtail.models.registry import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show this model's parameters.", autocompletion=complete_model
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the list as JSON; - for stdout.")
    ] = None,
) -> None:
    """List the models; with NAME, its parameters."""
    from longtail.cli.show import model_table, parameter_table, preset_table, show
    from longtail.models.registry import find_models, get_model_class

    check_json(json)
    classes, problems = find_models() if name is None else ([get_model_class(name)], [])
    for problem in problems:
        echo(f"Note: {problem}", err=True)
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


def list_parameters(model: "type[Model]") -> "list[Setting]":
    """Return the parameters of a model, then those of its features as `tfidf.NAME`."""
    from longtail.runtime.settings import settings_of
    from longtail.text.tfidf import Tfidf

    own = [each for each in settings_of(model).values() if each.name != "tfidf"]
    text = settings_of(Tfidf).values()
    return own + [each._replace(name=f"tfidf.{each.name}") for each in text]


def _as_json(model: "type[Model]") -> dict[str, Any]:
    return {
        "name": model.name,
        "summary": model.summary,
        "choose_when": model.choose_when,
        "parameters": [
            {
                "name": each.name,
                "type": inspect.formatannotation(each.type).replace("typing.", ""),
                "default": each.default,
                "range": None if each.allowed is None else each.allowed.text,
                "description": each.describe(),
            }
            for each in list_parameters(model)
        ],
        "presets": {name: dict(values) for name, values in model.presets.items()},
    }
