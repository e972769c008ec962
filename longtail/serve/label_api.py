"""Labels, under `/v1/models/M/labels`: found by what people type, and described."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from longtail.serve.api import PROBLEMS, find_hosted
from longtail.serve.problems import Json, NotFoundError
from longtail.serve.schemas import FoundLabels, LabelDetails
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
        str,
        Query(
            max_length=1000, description="the beginning of a name or of words", examples=["brew"]
        ),
    ],
    n: Annotated[int, Query(ge=1, le=100, description="how many labels at most")] = 10,
    language: Language = None,
) -> Json:
    """Find labels by the beginning of any of their names or words, or with a typo."""
    version = find_hosted(state_of(request), model).current
    labels = await asyncio.to_thread(lambda: version.labels.find_all(q, n, language))
    return Json({"version": version.name, "labels": labels})


@router.get("/{number}", response_model=LabelDetails)
async def show_label(
    request: Request,
    model: str,
    number: Annotated[int, Path(ge=0, le=MOST_NUMBER, description="its id in predictions")],
    language: Language = None,
) -> Json:
    """Show a label: its names, frequency, relations, labels like it and training documents."""
    version = find_hosted(state_of(request), model).current
    n_labels = len(version.model.label_names_)
    if number >= n_labels:
        raise NotFoundError(f"there is no label {number}; the model has 0 to {n_labels - 1}")
    found = await asyncio.to_thread(lambda: version.labels.describe_fully(number, language))
    return Json({"version": version.name, **found})
