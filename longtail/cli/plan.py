"""`longtail plan`: what training would take, at any size and on any number of machines."""

from typing import Annotated

import typer

from longtail.cli.models import complete_model
from longtail.cli.output import check_json, write_json
from longtail.cli.settings import parse_pairs


def plan(
    documents: Annotated[str, typer.Option(metavar="N", help="How many, such as 300k or 100M.")],
    labels: Annotated[str, typer.Option(metavar="N", help="How many, such as 5M.")],
    words: Annotated[
        str, typer.Option(metavar="N", help="Different words, or features, of a document.")
    ] = "100",
    labels_each: Annotated[
        str, typer.Option("--labels-each", metavar="N", help="Labels of a document.")
    ] = "5",
    features: Annotated[
        str, typer.Option(metavar="N", help="Different words, or features, in all.")
    ] = "1M",
    nodes: Annotated[str, typer.Option(metavar="N", help="Machines.")] = "1",
    cores: Annotated[
        str | None, typer.Option(metavar="N", help="Cores of each; as many as here unless given.")
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="N", help="GPUs of all machines together.")] = "0",
    network: Annotated[
        str, typer.Option(metavar="GBIT", help="Gigabits a second between machines.")
    ] = "10",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this model.", autocompletion=complete_model),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="A parameter of the model, or preset=NAME."),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the plan as JSON; - for stdout.")
    ] = None,
) -> None:
    """Say what training would take: time, memory, disk and network.

    The numbers come from the formulas by which training plans its memory and time; nothing is
    trained and no data are read. Time supposes that machines divide the work evenly.
    """
    from dataclasses import asdict

    from longtail.cli.show import show, size_blocks
    from longtail.errors import ParameterError
    from longtail.models.sizing import Size, parse_count, size_models
    from longtail.runtime.parallel import count_cores

    check_json(json)
    if settings and model is None:
        raise ParameterError("--set is for the parameters of one model; name it with --model")
    given = {
        "documents": documents,
        "labels": labels,
        "words": words,
        "labels_each": labels_each,
        "features": features,
        "nodes": nodes,
        "cores": str(count_cores()) if cores is None else cores,
        "gpus": gpus,
        "network": network,
    }
    named = {"words": "words of a document", "labels_each": "labels of a document"}
    size = Size(**{name: parse_count(text, named.get(name, name)) for name, text in given.items()})
    found = size_models(size, model, parse_pairs(settings or []))
    write_json({"size": asdict(size), "models": [asdict(each) for each in found]}, json)
    if json != "-":
        show(*size_blocks(size, found))
