"""Origins: which pages of other addresses may ask, and read what is answered (CORS).

None may unless it is named. A browser asks before it sends what a page could not send by itself;
that request carries no token, so it is answered before the guard.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longtail.errors import ParameterError
from longtail.visible import visible

ASKING = "access-control-request-method"
ALLOWED = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}


class Origins:
    """Stands before the guard."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        """Let pages of these origins read what `app` answers."""
        self._app = app
        self._allowed = frozenset(check_origin(each) for each in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        named = {"Access-Control-Allow-Origin": origin} if origin in self._allowed else {}
        if named and scope["method"] == "OPTIONS" and ASKING in headers:
            answer = Response(status_code=204, headers={**named, **ALLOWED, "Vary": "Origin"})
            await answer(scope, receive, send)
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered.update(named)
                answered.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_named)


def check_origin(given: str) -> str:
    """Return an origin as browsers write it, or say that it is none."""
    split = urlsplit(given)
    if split.scheme in ("http", "https") and given == f"{split.scheme}://{split.netloc}".lower():
        return given
    raise ParameterError(
        "--allow-origin must be such as https://example.org, in small letters and without a path. "
        f"Got {visible(repr(given))} instead."
    )
