"""The application: all routes behind the guard, and what runs beside them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.resources import files

from fastapi import FastAPI, Response

from longtail.serve import annif, api, health, label_api, label_studio, uploads
from longtail.serve.batching import Batcher, Limits
from longtail.serve.description import describe
from longtail.serve.feedback import FeedbackStore
from longtail.serve.guard import Guard
from longtail.serve.hosting import Hosted
from longtail.serve.metrics import Metrics
from longtail.serve.problems import NotFoundError, add_problems
from longtail.serve.shortcut import Shortcut
from longtail.serve.state import State
from longtail.version import __version__
from longtail.visible import visible

LOOK_SECONDS = 1.0  # from one look at the model folders to the next
PAGE = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}

_log = logging.getLogger("longtail.serve")


def make_app(
    hosted: Mapping[str, Hosted],
    limits: Limits,
    *,
    tokens: list[str],
    local: bool,
    feedback: FeedbackStore | None,
) -> Guard:
    """Return the application that serves these models.

    Args:
        hosted: the models by name.
        limits: how much clients may ask for.
        tokens: of which a client has to send one; none, if the list is empty.
        local: whether it answers only to the names of this machine.
        feedback: where feedback goes; None if it is not kept.
    """
    metrics = Metrics()
    app = FastAPI(
        title="longtail",
        version=__version__,
        description="Gives each document the right few out of many labels.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=_live,
    )
    state = State(hosted, limits, metrics, feedback, {})
    app.state.longtail = state
    add_problems(app)
    app.include_router(api.router)
    app.include_router(label_api.router)
    app.include_router(annif.router)
    app.include_router(label_studio.router)
    app.include_router(uploads.router)
    app.include_router(health.router)
    describe(app)
    _add_page(app)
    return Guard(Shortcut(app, state), limits, tokens, local, metrics.count_request)


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    """Run the queues of all models, and look at their folders, while the server is up."""
    state: State = app.state.longtail
    async with AsyncExitStack() as stack:
        if state.feedback is not None:
            stack.callback(state.feedback.close)
        for name, hosted in state.hosted.items():
            batcher = Batcher(
                state.limits,
                state.metrics.batches_of(name),
                state.metrics.queue_of(name),
            )
            state.batchers[name] = batcher
            stack.callback(batcher.close)
            state.metrics.set_version(name, hosted.current.name)
            await stack.enter_async_context(_beside(_watch(state, hosted)))
        yield


@asynccontextmanager
async def _beside(work: object) -> AsyncIterator[None]:
    """Run something as long as the server is up."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _watch(state: State, hosted: Hosted) -> None:
    """Load what takes the place of a model folder; prepare the search for labels."""
    await _prepare_search(hosted)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        before, problem = hosted.current.name, hosted.problem
        if await asyncio.to_thread(hosted.refresh):
            state.metrics.set_version(hosted.name, hosted.current.name, before)
            _log.info("%s: version %s answers now", visible(hosted.name), hosted.current.name)
            await _prepare_search(hosted)
        elif hosted.problem not in (None, problem):
            _log.warning("%s; version %s goes on answering", visible(str(hosted.problem)), before)


async def _prepare_search(hosted: Hosted) -> None:
    """Prepare the search for labels; where that fails, whoever searches is told, and we go on."""
    try:
        await asyncio.to_thread(getattr, hosted.current, "labels")
    except Exception:
        _log.exception("%s: the search for labels cannot be prepared", visible(hosted.name))


def _add_page(app: FastAPI) -> None:
    folder = files("longtail.serve") / "page"
    held = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}

    def show(name: str) -> Response:
        return Response(held[name], media_type=PAGE["." + name.rpartition(".")[2]])

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return show("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def show_part(name: str) -> Response:
        if name not in held:
            raise NotFoundError(f"there is no page '{name}'")
        return show(name)
