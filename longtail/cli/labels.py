"""`longtail labels`: list, find, rename, merge, drop and add the labels of a saved model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli.exits import if_interrupted, say_what_is_in
from longtail.cli.output import check_json, write_json
from longtail.cli.terminal import echo
from longtail.errors import ParameterError, suggest
from longtail.storage import is_there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longtail.models.base import Model

ACTIONS = {
    "list": "",
    "search": "TEXT",
    "rename": "OLD NEW",
    "merge": "LABEL [LABEL…] INTO",
    "drop": "LABEL [LABEL…]",
    "add": "NAME",
}
LEAST = {"list": 0, "search": 1, "rename": 2, "merge": 2, "drop": 1, "add": 1}
MOST = {"list": 0, "search": 1, "rename": 2, "add": 1}


def labels(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    action: Annotated[
        str, typer.Argument(metavar="[ACTION]", help=f"{', '.join(ACTIONS)}; list unless given.")
    ] = "list",
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LABEL…]", help="Labels, by name, or by URI if they have any."),
    ] = None,
    other_names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Another name of a new label; repeatable."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="L", help="Show names in this language of the model's vocabulary."),
    ] = None,
    n: Annotated[int, typer.Option("-n", metavar="N", help="How many labels to show.")] = 20,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the labels as JSON; - for stdout.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR2", help="Save here and leave DIR as it is."),
    ] = None,
) -> None:
    """Look at the labels of a saved model, or change them without training.

    DIR lists labels with their documents, and DIR search TEXT finds them by the beginning of a
    name, by other names of the vocabulary, and with typos. DIR rename OLD NEW, DIR merge LABEL…
    INTO (its score is then the sum), DIR drop LABEL… (never given again) work with every model;
    DIR add NAME makes a label without documents findable by its names, where lexical is part of the
    model, or brings back one that was dropped. DIR is replaced as a whole at the end.
    """
    given = names or []
    _check_action(action, given, other_names or [], out)
    if action in ("list", "search"):
        _show(model, action, given, language, n, json)
        return
    from longtail.models import load_model
    from longtail.runtime.store import check_writable, locked

    place = out or model
    with if_interrupted(say_what_is_in(place)), locked(place):
        fitted = load_model(model)
        check_writable(place, overwrite=out is None)
        done = _change(fitted, action, given, other_names or [])
        fitted.save(place, overwrite=out is None)
    echo(f"In {place}, {done}.")


def _check_action(
    action: str, names: "Sequence[str]", others: "Sequence[str]", out: Path | None
) -> None:
    """Raise ParameterError unless the action exists and has what it needs."""
    if action not in ACTIONS:
        raise ParameterError(
            f"'{action}' is none of {', '.join(ACTIONS)}{suggest(action, ACTIONS)}"
        )
    if not LEAST[action] <= len(names) <= MOST.get(action, len(names)):
        form = f"longtail labels DIR {action} {ACTIONS[action]}".rstrip()
        raise ParameterError(f"the form is: {form}. Got {len(names)} names behind '{action}'.")
    if others and action != "add":
        raise ParameterError(f"--name is for labels that are added, not for {action}")
    if out is not None and action in ("list", "search"):
        raise ParameterError(f"{action} changes nothing; leave out --out")
    if out is not None and is_there(out):
        raise ParameterError(f"{out} already exists; choose another --out")


def _change(fitted: "Model", action: str, names: "list[str]", others: "list[str]") -> str:
    """Change the model; return what was done."""
    from longtail.models.relabel import add_label, drop_labels, merge_labels, rename_label

    if action == "rename":
        return rename_label(fitted, *names)
    if action == "merge":
        return merge_labels(fitted, names[:-1], names[-1])
    if action == "drop":
        return drop_labels(fitted, names)
    return add_label(fitted, names[0], others)


def _show(
    model: Path, action: str, names: "list[str]", language: str | None, n: int, json: str | None
) -> None:
    """Print labels, all or those that are found."""
    from longtail.cli.show import label_table, show
    from longtail.models import load_model
    from longtail.models.relabel import count_live, list_labels, search_labels

    check_json(json)
    if n < 1:
        raise ParameterError(f"-n must be at least 1. Got {n} instead.")
    fitted = load_model(model)
    if action == "list":
        found, title = list_labels(fitted, n, language), f"{count_live(fitted):,} labels"
    else:
        found, title = search_labels(fitted, names[0], n, language), f"found by '{names[0]}'"
    if not found:
        raise ParameterError(f"no label of the model has a name like '{names[0]}'")
    write_json(found, json)
    if json != "-":
        show(label_table(found, title))
