"""Label Studio's ML backend, under `/label-studio/M`: suggests labels, and learns from annotations.

Annotations are stored as feedback. Training is `longtail update`, in a process of its own: the
model folder is replaced when it is done, and the new version answers.
"""

import logging
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from longtail.errors import DataError
from longtail.integrations.label_studio import Control
from longtail.models.contract import DEFAULT_K
from longtail.serve.api import PROBLEMS, find_hosted, label, store
from longtail.serve.feedback import Correction
from longtail.serve.hosting import Asked, Hosted, Version
from longtail.serve.problems import ConflictError, Json
from longtail.serve.schemas import VERSION
from longtail.serve.state import State, state_of
from longtail.visible import visible

DEPTH = 100  # labels that are looked through for those of a project
CHANGED = "ANNOTATION_UPDATED"
LEARNED = ("ANNOTATION_CREATED", CHANGED)
START = "START_TRAINING"
CONFIG = (
    '<View><Text name="text" value="$text"/><Choices name="topic" toName="text" choice="multiple">'
    '<Choice value="beer"/><Choice value="bread"/></Choices></View>'
)
PROJECT = "7.1700000000"
TASK: Any = {"id": 12, "data": {"text": "Which yeast for a dark beer?"}}
RESULT: Any = {
    "from_name": "topic",
    "to_name": "text",
    "type": "choices",
    "value": {"choices": ["beer"]},
}

_log = logging.getLogger("longtail.serve")
_updates: dict[Path, Thread] = {}  # that run, by model folder

router = APIRouter(prefix="/label-studio/{model}", tags=["Label Studio"], responses=PROBLEMS)


class Body(BaseModel):
    """What Label Studio sends; it may hold more than is of use here."""

    model_config = ConfigDict(extra="allow")


class Setup(Body):
    """A project that is connected."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"project": PROJECT, "schema": CONFIG}]}
    )

    config: str = Field(alias="schema")


class Predict(Body):
    """Tasks to suggest labels for."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"tasks": [TASK], "project": PROJECT, "label_config": CONFIG}]
        }
    )

    tasks: list[dict[str, Any]]
    label_config: str


class Event(Body):
    """Something that happened in a project."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "action": "ANNOTATION_CREATED",
                    "project": {"id": 7, "label_config": CONFIG},
                    "task": TASK,
                    "annotation": {"id": 3, "completed_by": 1, "result": [RESULT]},
                }
            ]
        }
    )

    action: str
    project: dict[str, Any] = {}
    task: dict[str, Any] = {}
    annotation: dict[str, Any] = {}


class Suggested(BaseModel):
    """The labels of a task, as a prediction of Label Studio."""

    model_version: str
    score: float
    result: list[dict[str, Any]]


class Predictions(BaseModel):
    """A prediction for each task."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"results": [{"model_version": VERSION, "score": 0.93, "result": [RESULT]}]}
            ]
        }
    )

    results: list[Suggested]


class Ready(BaseModel):
    """The version of the model that answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model_version": VERSION}]})

    model_version: str


class Up(BaseModel):
    """That the backend answers."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "UP", "model_class": "linear"}]}
    )

    status: str
    model_class: str


class Done(BaseModel):
    """What was done about an event."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "ok", "result": {"feedback": 412}}]}
    )

    status: str
    result: dict[str, Any]


@router.get("/health", response_model=Up)
async def show_health(request: Request, model: str) -> Json:
    """Say that the backend answers."""
    hosted = find_hosted(state_of(request), model)
    return Json({"status": "UP", "model_class": hosted.current.model.name})


@router.post("/setup", response_model=Ready)
async def set_up(request: Request, model: str, body: Setup) -> Json:
    """Check that the labels of a project can be suggested."""
    hosted = find_hosted(state_of(request), model)
    Control.read(body.config)
    return Json({"model_version": hosted.current.name})


@router.post("/predict", response_model=Predictions)
async def predict(request: Request, model: str, body: Predict) -> Json:
    """Suggest labels for tasks: those that are probable enough, or the best five."""
    hosted = find_hosted(state_of(request), model)
    version = hosted.current
    control = Control.read(body.label_config)
    texts = [control.read_text(task, i) for i, task in enumerate(body.tasks, 1)]
    _check_reads(version)
    sure = version.model.calibration_ is not None and not control.single
    asked = Asked(DEPTH, "auto" if sure else None)
    found = await label(request, hosted, version, texts, asked)
    if not sure:  # those that the project has, of which the first few
        known = control.paths
        found = [[each for each in own if not known or each["label"] in known] for own in found]
        found = [own[:DEFAULT_K] for own in found]
    return Json({"results": [control.write(own, version.name) for own in found]})


def _check_reads(version: Version) -> None:
    if version.model.trained_on != "texts":
        raise DataError("the model was trained on rows, and tasks of Label Studio are texts")


@router.post(
    "/webhook",
    response_model=Done,
    status_code=201,
    responses={409: {**PROBLEMS[404], "description": "this server keeps no feedback"}},
)
async def learn(request: Request, model: str, body: Event) -> Json:
    """Store what a person annotated, or start training on all that was stored."""
    state = state_of(request)
    hosted = find_hosted(state, model)
    if body.action == START:
        start_update(state, hosted)
        return Json({"status": "ok", "result": {"training": "started"}}, 201)
    if body.action not in LEARNED:
        return Json({"status": "ignored", "result": {}}, 201)
    config = body.project.get("label_config")
    if not isinstance(config, str):
        raise DataError("the event has no project.label_config")
    control = Control.read(config)
    labels = control.read_labels(body.annotation, hosted.current.model.label_names_)
    takes_back = body.action == CHANGED and "result" in body.annotation
    if not labels and not takes_back:
        return Json({"status": "ignored", "result": {}}, 201)
    correction = Correction(
        hosted.name,
        hosted.current.name,
        control.read_text(body.task, 1),
        added=labels or (),
        by=_say_who(body.annotation.get("completed_by")),
        document=_say_which(body.task.get("id")),
    )
    (number,) = await store(state, [correction])
    return Json({"status": "ok", "result": {"feedback": number}}, 201)


def _say_who(person: Any) -> str | None:
    known = person.get("id") if isinstance(person, dict) else person
    return None if not isinstance(known, int | str) else f"label-studio:{known!s:.180}"


def _say_which(task: Any) -> str | None:
    return None if not isinstance(task, int | str) else f"label-studio:{task!s:.900}"


# -- training -------------------------------------------------------------------------------------


def start_update(state: State, hosted: Hosted) -> None:
    """Let the model learn from its feedback, unless that is under way already."""
    if state.feedback is None:
        raise ConflictError("this server keeps no feedback; start it with --feedback FILE.db")
    hosted.current.model.check_updatable()
    running = _updates.get(hosted.path)
    if running is None or not running.is_alive():
        # It ends with the server: an update that is cut short leaves the folder as it is.
        started = Thread(target=_update, args=(hosted, state.feedback.path), daemon=True)
        _updates[hosted.path] = started
        started.start()


def _update(hosted: Hosted, feedback: Path) -> None:
    """Run `longtail update`; the folder that it replaces is loaded by those who watch it."""
    folder, file = str(hosted.path), str(feedback)
    command = [sys.executable, "-m", "longtail", "update", folder, "--feedback", file]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    last = (done.stdout.decode(errors="replace").strip().splitlines() or [""])[-1]
    _log.info("update of %s: %s", visible(hosted.name), visible(last))
