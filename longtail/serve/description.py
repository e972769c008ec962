"""Description: the OpenAPI document of a server, with what FastAPI cannot know by itself."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

JSON, PROBLEM = "application/json", "application/problem+json"
NAMED = {"model": "recipes", "project_id": "recipes", "number": 17}  # parameters of paths
OPEN = ("/health/",)  # paths that need no token


def describe(app: FastAPI) -> None:
    """Let the application describe its problems as such, its token, and an example of each name."""
    usual = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add_to(usual())
        return usual()

    app.openapi = openapi  # type: ignore[method-assign]


def _add_to(found: dict[str, Any]) -> None:
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operation in _operations(found):
        if not path.startswith(OPEN):
            operation["security"] = [{"token": []}, {}]  # none where the server was given no file
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in NAMED:
                parameter.setdefault("example", NAMED[parameter["name"]])
        for answer in operation["responses"].values():
            content = answer.get("content", {})
            if PROBLEM in content:
                content[PROBLEM] = content.pop(JSON)


def _operations(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, held in found["paths"].items():
        for operation in held.values():
            yield path, operation
