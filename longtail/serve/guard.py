"""Guard: what every request passes before anything reads it, and every answer on its way out.

Checks the name by which the server is called, the token, the size of the body and the time that a
client takes; adds the headers that keep browsers from doing more than the page needs.
"""

import asyncio
import hmac
import time
from base64 import b64decode
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from longtail.errors import DataError
from longtail.serve.batching import Limits
from longtail.serve.problems import make_problem

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
OPEN = ("/health/", "/page/")  # beginnings of paths that need no token; so does "/" itself
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_HEADER_BYTES = 1 << 16
LEAST_TOKEN = 16  # characters
CLOSE = {"Connection": "close"}
LEAVING = "longtail.leaving"  # in a request's extensions: what to cancel when its client leaves

Count = Callable[[str, str, int, float], None]


class Guard:
    """Stands before the application."""

    def __init__(
        self, app: ASGIApp, limits: Limits, tokens: list[str], local: bool, count: Count
    ) -> None:
        """Let requests through to `app`; `local`: only those that call this machine by name."""
        self._app = app
        self._limits = limits
        self._tokens = [token.encode() for token in tokens]
        self._local = local
        self._count = count
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, begun = 500, False

        async def send_guarded(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        try:
            headers = dict(scope["headers"])
            if problem := self._find_fault(scope["path"], headers):
                await make_problem(*problem)(scope, receive, send_guarded)
            else:
                await self._app(scope, self._limit(receive), send_guarded)
        except HTTPException as error:  # a body that `_limit` gave up, where nobody else read it
            if not begun:
                answer = make_problem(error.status_code, error.detail, dict(error.headers or {}))
                await answer(scope, receive, send_guarded)
        except Exception:  # which was logged; the client got 500
            if not begun:
                await make_problem(status, "a bug in longtail")(scope, receive, send_guarded)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._count(scope["method"], path, status, time.perf_counter() - began)

    def _find_fault(
        self, path: str, headers: dict[bytes, bytes]
    ) -> tuple[int, str, dict[str, str] | None] | None:
        """Return the answer to a request that may not pass."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._local and name.lower() not in LOCAL_NAMES:
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server answers to localhost only; see --host",
                None,
            )
        if self._tokens and path != "/" and not path.startswith(OPEN):
            given = _find_token(headers.get(b"authorization", b""))
            # All are compared, so that the time says nothing about which is nearest.
            known = [hmac.compare_digest(given, token) for token in self._tokens]
            if not any(known):
                detail = "a token is needed: Authorization: Bearer TOKEN"
                return HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"}
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limits.max_bytes:
            return say_too_large(self._limits.max_bytes)
        return None

    def _limit(self, receive: Receive) -> Receive:
        """Return what receives the body, as far as it is neither too large nor too slow."""
        patience, most = self._limits.patience, self._limits.max_bytes
        deadline = asyncio.get_running_loop().time() + patience
        n_bytes, whole = 0, False

        async def receive_limited() -> Message:
            nonlocal n_bytes, whole
            if whole:  # what comes now is that the client goes away
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"the body did not come within {patience:g} s"
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail, CLOSE) from None
            n_bytes += len(message.get("body", b""))
            if n_bytes > most:
                raise HTTPException(*say_too_large(most))
            whole = not message.get("more_body", False)
            return message

        return receive_limited


def _find_token(authorization: bytes) -> bytes:
    """Return the token of a header; as a password it comes from clients that know only Basic."""
    kind, _, given = authorization.partition(b" ")
    if kind.lower() == b"bearer":
        return given
    try:
        return b64decode(given, validate=True).partition(b":")[2] if kind == b"Basic" else b""
    except ValueError:
        return b""


def say_too_large(most: int) -> tuple[int, str, dict[str, str]]:
    """Return status, sentence and headers of the answer to a body that is too large."""
    detail = f"the body is larger than {most:,} bytes, which this server takes at most"
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, CLOSE


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP that cuts off clients which do not end their headers, or do not take the answer."""

    patience = Limits.patience
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _n_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._leaving: set[asyncio.Future[Any]] = set()
        self._deadline = self.loop.call_later(self.patience, self._cut)

    def data_received(self, data: bytes) -> None:
        """Read on; wait no longer for a request that has begun to be answered."""
        super().data_received(data)
        busy = self.cycle is not None and not self.cycle.response_complete
        self._n_bytes = 0 if busy else self._n_bytes + len(data)
        if busy:
            self._stop_waiting()
        elif self._n_bytes > MAX_HEADER_BYTES:
            self._cut()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.patience, self._cut)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as all problems are answered."""
        answer = make_problem(HTTPStatus.BAD_REQUEST, "this is not a request in HTTP/1.1", CLOSE)
        headers = b"".join(b"%b: %b\r\n" % each for each in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + headers + b"\r\n" + answer.body)
        self.transport.close()

    def pause_writing(self) -> None:
        """Begin to wait for a client that takes its answer slowly."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience, self._cut)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client, and what is done for it."""
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        left = list(self._leaving)
        self._leaving.clear()
        for each in left:
            each.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Let the request say what to cancel when the client goes away."""
        super().on_message_begin()
        self.scope["extensions"] = {LEAVING: self._leaving}  # type: ignore[dict-item]

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._stop_waiting()
        self.transport.abort()


def read_tokens(path: Path) -> list[str]:
    """Return the tokens of a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise DataError(f"cannot read tokens: {error.strerror}", path=path) from error
    except UnicodeDecodeError:
        raise DataError("a file with tokens is plain text, one a line", path=path) from None
    if not lines:
        raise DataError("there is no token in this file; write one a line", path=path)
    if short := [line for line in lines if len(line) < LEAST_TOKEN]:
        raise DataError(
            f"a token needs {LEAST_TOKEN} characters or more, and one has {len(short[0])}; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one",
            path=path,
        )
    return lines
