"""Problems: every error becomes `application/problem+json` with the command line's sentence."""

import json
import logging
from http import HTTPStatus
from traceback import format_tb
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from longtail.errors import LongtailError, suggest
from longtail.serve.batching import BusyError
from longtail.visible import visible

RETRY_SECONDS = 1
GONE = 499  # the client closed the connection, so nobody reads this
_SHOWN = 60  # characters of a value that is wrong

_log = logging.getLogger("longtail.serve")


class NotFoundError(LongtailError):
    """There is no such thing on this server."""


class ConflictError(LongtailError):
    """The server was not started for this."""


class UnavailableError(LongtailError):
    """The server cannot do this now; to be tried again later."""


class GoneError(LongtailError):
    """The client has gone away."""


class Json(Response):
    """JSON in which any name survives, even half a character."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class ProblemJson(Json):
    """A problem."""

    media_type = "application/problem+json"


def make_problem(status: int, detail: str, headers: dict[str, str] | None = None) -> ProblemJson:
    """Return the answer that tells a client what is wrong."""
    known = {each.value: each.phrase for each in HTTPStatus}
    title = known.get(status, "Problem")
    held = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return ProblemJson(held, status, headers)


def find_status(error: LongtailError) -> int:
    """Return the status of an error that the client can put right."""
    if isinstance(error, BusyError | UnavailableError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, NotFoundError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, ConflictError):
        return HTTPStatus.CONFLICT
    return GONE if isinstance(error, GoneError) else HTTPStatus.UNPROCESSABLE_ENTITY


def describe_error(error: LongtailError) -> ProblemJson:
    """Return the answer to what the client can put right."""
    status = find_status(error)
    later = status == HTTPStatus.SERVICE_UNAVAILABLE
    return make_problem(status, str(error), {"Retry-After": str(RETRY_SECONDS)} if later else None)


def describe_bug(error: Exception) -> ProblemJson:
    """Return the answer to what only we can put right, and log where it is."""
    name = type(error).__name__
    where = "".join(format_tb(error.__traceback__))  # the message may hold a client's text
    _log.error("a bug in longtail, %s:\n%s", name, where)
    return make_problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"a bug in longtail, {name}")


def describe_invalid(error: RequestValidationError) -> str:
    """Say in one sentence what is wrong with the first field that is."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "the body is not JSON"
    if first["loc"] == ("body",):
        return "the body must be JSON as described, with Content-Type: application/json"
    place = ".".join(str(each) for each in first["loc"][1:])
    message = str(first["msg"])
    if first["type"] == "extra_forbidden":
        return f"there is no field '{visible(place)}'"
    if first["type"] == "missing":
        return f"'{visible(place)}' is missing"
    got = visible(repr(first.get("input")))
    shown = got if len(got) <= _SHOWN else got[:_SHOWN] + "…"
    return f"{visible(place)}: {message}. Got {shown} instead."


def say_unknown(what: str, name: str, known: list[str]) -> NotFoundError:
    """Return the error for a name that is not there, with the nearest that is."""
    return NotFoundError(f"there is no {what} '{name}'{suggest(name, known)}")


def add_problems(app: FastAPI) -> None:
    """Let the application answer errors so."""

    @app.exception_handler(LongtailError)
    async def _(request: Request, error: LongtailError) -> Response:
        return describe_error(error)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        return make_problem(HTTPStatus.UNPROCESSABLE_ENTITY, describe_invalid(error))

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        if error.status_code == HTTPStatus.BAD_REQUEST:  # FastAPI's, for bytes that are no text
            return make_problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is not JSON in UTF-8")
        headers = dict(error.headers) if error.headers else None
        return make_problem(error.status_code, str(error.detail), headers)

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> Response:
        return describe_bug(error)
