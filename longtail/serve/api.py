"""Our own interface, under `/v1/models`."""

import asyncio
import json
import logging
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request

from longtail.errors import DataError, ParameterError
from longtail.evaluation.calibration import AUTOMATIC
from longtail.evaluation.ordering import DEPTH, order_documents
from longtail.models.card import FEW
from longtail.serve.batching import Work
from longtail.serve.feedback import Correction
from longtail.serve.hosting import Asked, Hosted, Version, name_labels
from longtail.serve.problems import (
    ConflictError,
    GoneError,
    Json,
    UnavailableError,
    say_unknown,
)
from longtail.serve.schemas import (
    MOST_LABELS,
    ExplainRequest,
    Explanation,
    FeedbackRequest,
    ModelDetails,
    Models,
    Ordered,
    OrderRequest,
    Prediction,
    PredictRequest,
    Problem,
    Stored,
    Thresholds,
)
from longtail.serve.state import State, state_of
from longtail.topk import NO_LABEL, TopK
from longtail.visible import visible

EXPLAINED_DOCUMENTS, EXPLAINED_LABELS, EXPLAINED_TERMS = 20, 10, 20  # of predict, at most

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": what, "content": {"application/problem+json": {}}}
    for code, what in {
        401: "no token, or a wrong one",
        404: "no such model or label",
        413: "the body is too large",
        422: "something in the request is wrong",
        503: "too many documents wait, or feedback cannot be stored; try again after Retry-After",
    }.items()
}

_log = logging.getLogger("longtail.serve")

router = APIRouter(prefix="/v1/models", tags=["models"], responses=PROBLEMS)


# -- models ---------------------------------------------------------------------------------------


@router.get("", response_model=Models)
async def list_models(request: Request) -> Json:
    """List the models and which version of each answers."""
    return Json({"models": [_summarize(each) for each in state_of(request).hosted.values()]})


@router.get("/{model}", response_model=ModelDetails)
async def show_model(request: Request, model: str) -> Json:
    """Show a model's card, with what was measured on held-out documents, and its limits."""
    state = state_of(request)
    hosted = find_hosted(state, model)
    fitted = hosted.current.model
    return Json(
        {
            **_summarize(hosted),
            "card": None if fitted.card_ is None else json.loads(fitted.card_.to_json()),
            "thresholds": _name_thresholds(hosted.current),
            "languages": fitted.label_state_.languages,
            "limits": {
                "documents": state.limits.max_documents,
                "bytes": state.limits.max_bytes,
                "rare": FEW,
            },
            "feedback": state.feedback is not None,
        }
    )


@router.get("/{model}/thresholds", response_model=Thresholds)
async def show_thresholds(
    request: Request,
    model: str,
    k: Annotated[
        int | None, Query(ge=1, le=MOST_LABELS, description="labels for each document, at most")
    ] = None,
) -> Json:
    """Show the precision and recall to expect at each threshold, by held-out documents."""
    version = find_hosted(state_of(request), model).current
    calibration = version.model.calibration_
    tradeoff = None if calibration is None else calibration.tradeoff
    expected = [] if tradeoff is None else tradeoff.expect(k)
    return Json(
        {
            "version": version.name,
            "k": k,
            "documents": 0 if calibration is None else calibration.n_documents,
            "named": _name_thresholds(version),
            "expected": [each._asdict() for each in expected],
        }
    )


def _name_thresholds(version: Version) -> dict[str, float]:
    """Return the thresholds that clients may name; none if the model gives no probabilities."""
    found = version.model.calibration_
    return {} if found is None else {name: found.find_threshold(name) for name in AUTOMATIC}


def _summarize(hosted: Hosted) -> dict[str, Any]:
    version = hosted.current
    model = version.model
    return {
        "name": hosted.name,
        "type": model.name,
        "version": version.name,
        "loaded": version.loaded,
        "labels": len(model.label_names_),
        "documents": model.trained_on,
        "calibrated": model.calibration_ is not None,
        "explains": model.can_explain,
        "problem": hosted.problem,
    }


def find_hosted(state: State, name: str) -> Hosted:
    """Return the model of this name."""
    if name not in state.hosted:
        raise say_unknown("model", name, list(state.hosted))
    return state.hosted[name]


# -- predictions ----------------------------------------------------------------------------------


@router.post("/{model}/predict", response_model=Prediction)
async def predict(request: Request, model: str, body: PredictRequest) -> Json:
    """Return the best labels of each document, exactly those that `longtail predict` gives."""
    state = state_of(request)
    hosted = find_hosted(state, model)
    version = hosted.current
    asked = Asked(body.k, body.threshold, body.language)
    documents = _documents_of(body, version)
    if body.explain:
        _check_explainable(version, documents)
    found = await label(request, hosted, version, documents, asked)
    if body.explain:
        for document, labels in zip(documents, found, strict=True):
            for each in labels[:EXPLAINED_LABELS]:
                name = version.model.label_names_[each["id"]]
                each["why"] = await _find_why(request, hosted, version, document, name)
    return Json(
        {
            "model": hosted.name,
            "version": version.name,
            "documents": [{"labels": labels} for labels in found],
        }
    )


async def label(
    request: Request, hosted: Hosted, version: Version, documents: list[Any], asked: Asked
) -> list[list[dict[str, Any]]]:
    """Return the labels of each document, in a batch with those of other requests."""
    state_of(request).limits.check(len(documents))
    version.check(asked)
    if not documents:
        return []

    def work(batch: list[Any]) -> list[list[dict[str, Any]]]:
        return name_labels(version.predict(batch, asked))

    return await submit(request, hosted, (version, asked), documents, work)


async def submit(
    request: Request, hosted: Hosted, key: object, documents: list[Any], work: Work
) -> list[Any]:
    """Let the model's thread work on documents, for as long as the client waits for it."""
    batcher = state_of(request).batchers[hosted.name]
    done = batcher.submit(key, documents, work)
    leaving = asyncio.ensure_future(_wait_for_leaving(request))
    leaving.add_done_callback(lambda _: done.cancel())
    try:
        return await done
    except asyncio.CancelledError:
        if leaving.cancelled() or not leaving.done():
            raise  # it is the server that ends
        raise GoneError("the client went away") from None
    finally:
        leaving.cancel()


def _documents_of(body: PredictRequest | OrderRequest, version: Version) -> list[Any]:
    """Return the texts or rows of a request."""
    known = [name for name in ("text", "texts", "rows") if hasattr(body, name)]
    given = {name: getattr(body, name) for name in known if getattr(body, name) is not None}
    if len(given) != 1:
        names = f"{', '.join(known[:-1])} and {known[-1]}"
        got = " and ".join(given) or "none"
        raise ParameterError(f"give one of {names}. Got {got} instead.")
    wanted = version.model.trained_on
    if (body.rows is None) != (wanted == "texts"):
        raise DataError(f"the model was trained on {wanted}; send '{wanted}'")
    if body.rows is not None:
        return [version.make_row(row.indices, row.values) for row in body.rows]
    return list(given.get("texts", [given.get("text")]))


async def _wait_for_leaving(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# -- explanations ---------------------------------------------------------------------------------


def _check_explainable(version: Version, documents: list[Any]) -> None:
    """Raise ParameterError if the labels of these documents cannot be explained."""
    version.model.check_explains()
    if len(documents) > EXPLAINED_DOCUMENTS:
        raise ParameterError(
            f"{len(documents):,} documents in one request with explain; "
            f"this server takes {EXPLAINED_DOCUMENTS} at most"
        )


async def _find_why(
    request: Request, hosted: Hosted, version: Version, document: Any, name: str
) -> dict[str, Any]:
    """Return the heaviest words of a label; other clients' documents may come in between."""
    (found,) = await explain_one(request, hosted, version, document, name)
    return {"terms": found["terms"][:EXPLAINED_TERMS], "members": found["members"]}


async def explain_one(
    request: Request, hosted: Hosted, version: Version, document: Any, name: str | None
) -> list[dict[str, Any]]:
    """Let the model's thread explain one label of one document."""

    def work(documents: list[Any]) -> list[dict[str, Any]]:
        return [version.model.explain(each, name).to_dict() for each in documents]

    return await submit(request, hosted, object(), [document], work)


@router.post("/{model}/explain", response_model=Explanation)
async def explain(request: Request, model: str, body: ExplainRequest) -> Json:
    """Return the words that speak for and against a label, with their places in the text."""
    hosted = find_hosted(state_of(request), model)
    version = hosted.current
    version.model.check_explains()
    (found,) = await explain_one(request, hosted, version, body.text, body.label)
    return Json({"model": hosted.name, "version": version.name, **found})


# -- what to look at first -----------------------------------------------------------------------


@router.post("/{model}/order", response_model=Ordered)
async def order(request: Request, model: str, body: OrderRequest) -> Json:
    """Order documents by where the model is least sure, or would learn most from a person."""
    hosted = find_hosted(state_of(request), model)
    version = hosted.current
    found = await label(request, hosted, version, _documents_of(body, version), Asked(DEPTH))
    top = _as_topk(found)
    counts = version.model.training_counts_
    chosen, values = await asyncio.to_thread(order_documents, top, counts, body.by)
    rounded = [round(value, 6) for value in values.tolist()]
    return Json({"version": version.name, "order": chosen.tolist(), "values": rounded})


def _as_topk(found: list[list[dict[str, Any]]]) -> TopK:
    """Return labels and scores of each document as arrays."""
    labels = np.full((len(found), DEPTH), NO_LABEL, np.int32)
    scores = np.zeros((len(found), DEPTH), np.float32)
    for i, each in enumerate(found):
        labels[i, : len(each)] = [one["id"] for one in each]
        scores[i, : len(each)] = [one["score"] for one in each]
    return TopK(labels, scores)


# -- feedback -------------------------------------------------------------------------------------


@router.post(
    "/{model}/feedback",
    response_model=Stored,
    status_code=201,
    responses={409: {**PROBLEMS[404], "description": "this server keeps no feedback"}},
)
async def add_feedback(request: Request, model: str, body: FeedbackRequest) -> Json:
    """Store which labels a person accepted, rejected and added; it is on disk when this returns."""
    state = state_of(request)
    hosted = find_hosted(state, model)
    said = [*body.accepted, *body.rejected, *body.added]
    if len(set(said)) < len(said):
        twice = next(each for each in said if said.count(each) > 1)
        raise ParameterError(f"'{twice}' is named twice among accepted, rejected and added")
    correction = Correction(
        model=hosted.name,
        version=body.version or hosted.current.name,
        text=body.text,
        shown=[each.model_dump() for each in body.shown],
        accepted=body.accepted,
        rejected=body.rejected,
        added=body.added,
        by=body.by,
        document=body.document,
    )
    (number,) = await store(state, [correction])
    return Json({"id": number}, status_code=201)


async def store(state: State, corrections: list[Correction]) -> list[int]:
    """Store corrections, if the server was started for that."""
    feedback = state.feedback
    if feedback is None:
        raise ConflictError("this server keeps no feedback; start it with --feedback FILE.db")
    try:
        return await asyncio.to_thread(feedback.add, corrections)
    except DataError as error:  # which names the file, and that is no client's business
        _log.error("%s", visible(str(error)))
        raise UnavailableError("the feedback could not be stored; try again later") from None
