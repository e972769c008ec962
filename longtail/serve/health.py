"""Health: for what watches the server."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from longtail.serve.problems import Json
from longtail.serve.schemas import example
from longtail.serve.state import state_of

router = APIRouter(tags=["health"])

COUNTERS = 'longtail_requests_total{method="GET",path="/v1/models",status="200"} 3.0'
TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": COUNTERS}}}
}


class Live(BaseModel):
    """That the process answers."""

    model_config = example({"status": "ok"})

    status: str


class Ready(Live):
    """That all models are loaded, and which version of each answers."""

    model_config = example({"status": "ok", "models": {"recipes": "5f2c9a0b77d1"}})

    models: dict[str, str]


@router.get("/health/live", response_model=Live)
async def is_alive() -> Json:
    """Say that the process answers."""
    return Json({"status": "ok"})


@router.get("/health/ready", response_model=Ready)
async def is_ready(request: Request) -> Json:
    """Say that all models are loaded; the server does not listen before they are."""
    versions = {name: each.current.name for name, each in state_of(request).hosted.items()}
    return Json({"status": "ok", "models": versions})


@router.get("/metrics", responses=TEXT, response_class=Response)
async def show_metrics(request: Request) -> Response:
    """Show counters, for Prometheus."""
    metrics = state_of(request).metrics
    return Response(metrics.write(), media_type=metrics.content_type)
