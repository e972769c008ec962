"""Shortcut: the way of most requests, which takes a fraction of the time.

A request to predict that is plainly right is answered here, without the layers that route, check
and describe requests: they take longer than labelling a document does. Any other goes on to the
application as if it had not been here, so what is wrong with a request is said in one place only.
"""

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longtail.errors import LongtailError
from longtail.evaluation.calibration import AUTOMATIC
from longtail.serve.guard import LEAVING
from longtail.serve.hosting import Asked, Hosted, Version, write_labels
from longtail.serve.problems import GoneError, describe_bug, describe_error
from longtail.serve.schemas import MOST_LABELS, MOST_LANGUAGE
from longtail.serve.state import State

PATH = re.compile("/v1/models/([^/]+)/predict")
ROUTE = SimpleNamespace(path="/v1/models/{model}/predict")  # as metrics name it
JSON_TYPES = (b"application/json", b"application/json; charset=utf-8")
NAMED = tuple(AUTOMATIC)  # thresholds
OPTIONS = {"text", "texts", "k", "threshold", "language"}
SHORT = 1 << 13  # characters of texts that are labelled in no time by most models


class Question(NamedTuple):
    """What a request asks."""

    texts: list[str]
    asked: Asked


class Shortcut:
    """Stands before the application and answers what it can."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        """Pass on to `app` what is not plainly a request to predict."""
        self.app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        hosted = self._find_hosted(scope)
        if hosted is None:
            await self.app(scope, receive, send)
            return
        message = await receive()
        question = None if message.get("more_body") else read_question(message.get("body", b""))
        if question is None or hosted.current.model.trained_on != "texts":
            await self.app(scope, _put_back(message, receive), send)
            return
        scope["route"] = ROUTE
        try:
            body = await self._answer(hosted, question, scope["extensions"][LEAVING])
        except LongtailError as error:
            await describe_error(error)(scope, receive, send)
            return
        except Exception as error:
            await describe_bug(error)(scope, receive, send)
            return
        length = b"%d" % len(body)
        headers = [(b"content-length", length), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _find_hosted(self, scope: Scope) -> Hosted | None:
        """Return the model of a request to predict."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        found = PATH.fullmatch(scope["path"])
        if found is None or LEAVING not in scope.get("extensions", ()):
            return None
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        plain = len(kinds) == 1 and kinds[0].lower() in JSON_TYPES
        return self._state.hosted.get(found[1]) if plain else None

    async def _answer(
        self, hosted: Hosted, question: Question, leaving: set[asyncio.Future[Any]]
    ) -> bytes:
        """Return the body of the answer."""
        version, (texts, asked) = hosted.current, question
        self._state.limits.check(len(texts))
        version.check(asked)
        found: list[str] = []
        if texts:
            batcher = self._state.batchers[hosted.name]

            def work(batch: list[Any]) -> list[str]:
                return write_labels(version.predict(batch, asked))

            is_short = sum(map(len, texts)) <= SHORT
            done = batcher.submit((Shortcut, version, asked), texts, work, is_short=is_short)
            leaving.add(done)
            try:
                found = await done
            except asyncio.CancelledError:
                if done in leaving:
                    raise  # it is the server that ends
                raise GoneError("the client went away") from None
            finally:
                leaving.discard(done)
        return write_answer(hosted, version, found)


def read_question(body: bytes) -> Question | None:
    """Return what a body asks; None if it is not plainly right."""
    try:
        held = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if type(held) is not dict or not held.keys() <= OPTIONS:
        return None
    text, texts = held.get("text"), held.get("texts")
    if texts is None:
        texts = [text]
    elif text is not None or type(texts) is not list:
        return None
    k, threshold, language = held.get("k"), held.get("threshold"), held.get("language")
    right = (
        all(type(each) is str for each in texts)
        and (k is None or (type(k) is int and 1 <= k <= MOST_LABELS))
        and (threshold is None or threshold in NAMED or _is_share(threshold))
        and (language is None or (type(language) is str and len(language) <= MOST_LANGUAGE))
        and (b"\\u" not in body or _are_whole(texts))
    )
    return Question(texts, Asked(k, threshold, language)) if right else None


def _is_share(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def _are_whole(texts: list[str]) -> bool:
    """Whether no text holds half a character, which JSON can write and UTF-8 cannot."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def write_answer(hosted: Hosted, version: Version, documents: list[str]) -> bytes:
    """Return the answer with the labels of each document, which are JSON already."""
    held = ",".join([f'{{"labels":{labels}}}' for labels in documents])
    name = json.dumps(hosted.name)
    return f'{{"model":{name},"version":"{version.name}","documents":[{held}]}}'.encode()


def _put_back(message: Message, receive: Receive) -> Receive:
    """Return what receives a message that was received already, and then the rest."""
    held = [message]

    async def receive_again() -> Message:
        return held.pop() if held else await receive()

    return receive_again
