"""`longtail verify`: is a saved model whole?"""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
) -> None:
    """Check that no file of a saved model is damaged."""
    from longtail.cli.show import show, verified_line
    from longtail.runtime.store import verify_folder

    show(verified_line(model, verify_folder(model)))
