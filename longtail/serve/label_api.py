"""Labels, under `/v1/models/M/labels`: found by what people type, and described."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from longtail.errors import ParameterError
from longtail.serve.api import PROBLEMS, find_hosted
from longtail.serve.hosting import Version
from longtail.serve.problems import Json, NotFoundError
from longtail.serve.schemas import MOST_LABELS, FoundLabels, LabelDetails
from longtail.serve.state import state_of

MOST_NUMBER = 2**31 - 1

router = APIRouter(prefix="/v1/models/{model}/labels", tags=["labels"], responses=PROBLEMS)

Language = Annotated[
    str | None, Query(max_length=35, description="name labels so, by the model's vocabulary")
]


@router.get("", response_model=FoundLabels)
async def find_labels(
    request: Request,
    model: str,
    q: Annotated[
        str | None,
        Query(
            max_length=1000, description="the beginning of a name or of words", examples=["brew"]
        ),
    ] = None,
    id: Annotated[
        list[Annotated[int, Field(ge=0, le=MOST_NUMBER)]] | None,
        Query(max_length=MOST_LABELS, description="of labels to name, instead of q; repeated"),
    ] = None,
    n: Annotated[int, Query(ge=1, le=100, description="how many labels q finds at most")] = 10,
    language: Language = None,
) -> Json:
    """Find labels by the beginning of any name or word, or with a typo; or name those of ids."""
    version = find_hosted(state_of(request), model).current
    if (q is None) == (id is None):
        raise ParameterError(f"give q or id. Got {'neither' if q is None else 'both'} instead.")
    for number in id or ():
        _check_number(version, number)

    def work() -> list[dict[str, Any]]:
        if id is not None:
            return version.labels.describe_all(id, language)
        return version.labels.find_all(q or "", n, language)

    return Json({"version": version.name, "labels": await asyncio.to_thread(work)})


@router.get("/{number}", response_model=LabelDetails)
async def show_label(
    request: Request,
    model: str,
    number: Annotated[int, Path(ge=0, le=MOST_NUMBER, description="its id in predictions")],
    language: Language = None,
) -> Json:
    """Show a label: its names, frequency, relations, labels like it and training documents."""
    version = find_hosted(state_of(request), model).current
    _check_number(version, number)
    found = await asyncio.to_thread(lambda: version.labels.describe_fully(number, language))
    return Json({"version": version.name, **found})


def _check_number(version: Version, number: int) -> None:
    n_labels = len(version.model.label_names_)
    if number >= n_labels:
        raise NotFoundError(f"there is no label {number}; the model has 0 to {n_labels - 1}")
