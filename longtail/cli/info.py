"""`longtail info`: the card of a saved model."""

from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.output import check_json, write_json
from longtail.errors import ModelFileError


def info(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the card as JSON; - for stdout.")
    ] = None,
) -> None:
    """Show where a saved model comes from and how good it is.

    Shows the model's card: the training documents with their checksum, date, command, versions,
    settings, metrics on held-out documents, size, speed and limits. The same is in DIR/card.md.
    """
    from longtail.cli.show import card_blocks, show
    from longtail.models.card import Card
    from longtail.runtime.store import read_card

    check_json(json)
    manifest, held = read_card(model)
    if held is None:
        raise ModelFileError(
            f"{model}: holds a {manifest.model_name} model that longtail "
            f"{manifest.longtail_version} saved, but no card.json; saving it again adds one"
        )
    try:
        card = Card.from_json(held)
    except ModelFileError as error:
        raise ModelFileError(f"{model}: {error}") from error
    write_json(held, json)
    if json != "-":
        show(*card_blocks(card, model))
