"""Annif's interface, under `/v1/projects`: what is built for Annif works here unchanged.

A model is a project and its labels are a vocabulary. A label without a URI gets one made of its
name: `urn:longtail:NAME`, percent-encoded. A threshold means scores, as in Annif. What is sent to
learn is stored as feedback, which `longtail update` takes in.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, quote, unquote

from fastapi import APIRouter, Query, Request, Response

from longtail.errors import ParameterError
from longtail.serve.annif_schemas import (
    LANGUAGE,
    URN,
    AnnifAnswers,
    AnnifBatch,
    AnnifInfo,
    AnnifLearned,
    AnnifProject,
    AnnifProjects,
    AnnifSubject,
    AnnifSuggestions,
    AnnifVocabularies,
)
from longtail.serve.api import PROBLEMS, find_hosted, label, store
from longtail.serve.feedback import Correction
from longtail.serve.hosting import Asked, Hosted
from longtail.serve.problems import Json
from longtail.serve.schemas import MOST_LABELS
from longtail.serve.state import state_of
from longtail.version import __version__

LIMIT = 10  # labels, unless the client says how many

Number = TypeVar("Number", int, float)

Limit = Annotated[int, Query(ge=1, le=MOST_LABELS)]
Least = Annotated[float, Query(ge=0, le=1)]


router = APIRouter(prefix="/v1", tags=["Annif"], responses=PROBLEMS)


@router.get("/", response_model=AnnifInfo)
async def show_info() -> Json:
    """Show what answers."""
    return Json({"title": "longtail, as Annif REST API", "version": __version__})


@router.get("/projects", response_model=AnnifProjects)
async def list_projects(request: Request) -> Json:
    """List the models as projects."""
    hosted = state_of(request).hosted.values()
    return Json({"projects": [_as_project(each) for each in hosted]})


@router.get("/projects/{project_id}", response_model=AnnifProject)
async def show_project(request: Request, project_id: str) -> Json:
    """Show a model as a project."""
    return Json(_as_project(find_hosted(state_of(request), project_id)))


@router.get("/vocabs", response_model=AnnifVocabularies)
async def list_vocabularies(request: Request) -> Json:
    """List the labels of each model as vocabularies."""
    hosted = state_of(request).hosted.values()
    return Json({"vocabs": [_as_vocabulary(each) for each in hosted]})


def _as_project(hosted: Hosted) -> dict[str, Any]:
    version = hosted.current
    return {
        "project_id": hosted.name,
        "name": hosted.name,
        "language": LANGUAGE,
        "vocab": _as_vocabulary(hosted),
        "vocab_language": LANGUAGE,
        "backend": {"backend_id": version.model.name},
        "is_trained": True,
        "modification_time": version.loaded,
    }


def _as_vocabulary(hosted: Hosted) -> dict[str, Any]:
    model = hosted.current.model
    return {
        "vocab_id": hosted.name,
        "languages": model.label_state_.languages or [LANGUAGE],
        "size": len(model.label_names_),
        "loaded": True,
    }


@router.post(
    "/projects/{project_id}/suggest",
    response_model=AnnifSuggestions,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/x-www-form-urlencoded": {
                    "example": {"text": "A dark beer", "limit": 3},
                    "schema": {
                        "type": "object",
                        "required": ["text"],
                        "properties": {
                            "text": {"type": "string"},
                            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_LABELS},
                            "threshold": {"type": "number", "minimum": 0, "maximum": 1},
                            "language": {"type": "string"},
                        },
                    },
                }
            },
        }
    },
)
async def suggest(request: Request, project_id: str) -> Json:
    """Return the labels of one text, sent as a form."""
    form = _read_form(await request.body())
    if "text" not in form:
        raise ParameterError("'text' is missing")
    limit = _read_number(form, "limit", LIMIT, 1, MOST_LABELS, int)
    least = _read_number(form, "threshold", 0.0, 0, 1, float)
    asked = Asked(limit, language=_find_language(form.get("language")))
    (found,) = await _suggest(request, project_id, [form["text"]], asked, least)
    return Json({"results": found})


@router.post("/projects/{project_id}/suggest-batch", response_model=list[AnnifAnswers])
async def suggest_batch(
    request: Request,
    project_id: str,
    body: AnnifBatch,
    limit: Limit = LIMIT,
    threshold: Least = 0.0,
    language: str | None = None,
) -> Json:
    """Return the labels of several texts."""
    texts = [document.text for document in body.documents]
    asked = Asked(limit, language=_find_language(language))
    found = await _suggest(request, project_id, texts, asked, threshold)
    ids = [document.document_id for document in body.documents]
    pairs = zip(ids, found, strict=True)
    return Json([{"document_id": name, "results": results} for name, results in pairs])


async def _suggest(
    request: Request, project_id: str, texts: list[str], asked: Asked, least: float
) -> list[list[dict[str, Any]]]:
    """Return Annif's form of the best labels of each text."""
    hosted = find_hosted(state_of(request), project_id)
    version = hosted.current
    found = await label(request, hosted, version, list(texts), asked)
    return [
        [
            {
                "uri": each.get("uri") or make_uri(each["label"]),
                "label": each["label"],
                "notation": None,
                "score": each["score"],
            }
            for each in labels
            if each["score"] >= least
        ]
        for labels in found
    ]


@router.post(
    "/projects/{project_id}/learn",
    status_code=204,
    responses={409: {**PROBLEMS[404], "description": "this server keeps no feedback"}},
)
async def learn(request: Request, project_id: str, body: list[AnnifLearned]) -> Response:
    """Store texts with their right labels as feedback; `longtail update` learns from it."""
    state = state_of(request)
    hosted = find_hosted(state, project_id)
    uris = hosted.current.model.label_uris or ()
    names = dict(zip(uris, hosted.current.model.label_names_, strict=False))

    def name(subjects: list[AnnifSubject]) -> list[str]:
        return list(dict.fromkeys(_name(subject, names) for subject in subjects))

    learned = [
        Correction(hosted.name, hosted.current.name, each.text, added=name(each.subjects))
        for each in body
    ]
    await store(state, learned)
    return Response(status_code=204)


def _name(subject: AnnifSubject, names: dict[str | None, str]) -> str:
    """Return the label that a subject means; `names` are those of the URIs that are known."""
    uri = subject.uri or ""
    if uri in names or subject.label:
        return names.get(uri) or subject.label or ""
    if not uri.startswith(URN) or uri == URN:
        raise ParameterError(f"the subject '{uri}' has neither a label nor a URI of this server")
    return unquote(uri.removeprefix(URN))


def _find_language(given: str | None) -> str | None:
    return None if given in (None, "", LANGUAGE) else given


def make_uri(name: str) -> str:
    """Return the URI of a label."""
    return URN + quote(name, safe="", errors="backslashreplace")


def _read_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form; each counts once."""
    try:
        held = parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise ParameterError("the body is not a form in UTF-8, with text=…") from None
    return {name: values[0] for name, values in held.items()}


def _read_number(
    form: dict[str, str],
    name: str,
    otherwise: Number,
    least: int,
    most: int,
    parse: Callable[[str], Number],
) -> Number:
    """Return a number of a form, within its range."""
    if name not in form:
        return otherwise
    try:
        value = parse(form[name])
        if least <= value <= most:
            return value
    except ValueError:
        pass
    what = "a whole number" if parse is int else "a number"
    raise ParameterError(
        f"{name} must be {what} from {least} to {most}. Got {form[name]!r:.60} instead."
    )
