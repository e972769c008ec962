"""The server: models behind HTTP in one process, which ends in order."""

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from longtail.serve.app import make_app
from longtail.serve.batching import Limits
from longtail.serve.feedback import FeedbackStore
from longtail.serve.guard import ImpatientProtocol, read_tokens
from longtail.serve.hosting import host_all
from longtail.serve.listening import is_local, open_socket
from longtail.serve.origins import Origins, check_origin

FINISH_SECONDS = 30  # that requests may take after the server was told to end
BACKLOG = 2048  # connections that wait to be taken


class QuietServer(uvicorn.Server):
    """A server that finishes what it has begun when it is told to end, and then returns.

    Attributes:
        ending_signals: which tell it to end.
        on_started: called once it listens.
    """

    ending_signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
    on_started: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.on_started is not None:
            self.on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order when a signal says so, and let it reach nobody else."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = {each: signal.signal(each, self.handle_exit) for each in self.ending_signals}
        try:
            yield
        finally:
            for each, before in usual.items():
                signal.signal(each, before)


def make_server(
    folders: list[Path],
    *,
    host: str,
    limits: Limits,
    token_file: Path | None = None,
    feedback: Path | None = None,
    origins: Sequence[str] = (),
) -> QuietServer:
    """Load the models and return a server for them, which does not listen yet."""
    allowed = [check_origin(each) for each in origins]
    tokens = [] if token_file is None else read_tokens(token_file)
    hosted = host_all(folders)
    store = None if feedback is None else FeedbackStore(feedback, create=True)
    app = make_app(hosted, limits, tokens=tokens, local=is_local(host), feedback=store)
    config = uvicorn.Config(
        Origins(app, allowed) if allowed else app,
        http=ImpatientProtocol,
        ws="none",
        access_log=False,  # nor are texts written anywhere
        log_config=None,
        lifespan="on",
        server_header=False,
        proxy_headers=False,  # nothing asks for the address of a client
        backlog=BACKLOG,
        timeout_keep_alive=int(limits.patience),
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    return QuietServer(config)


def serve(*, port: int, options: dict[str, Any], on_ready: Callable[[int], None]) -> None:
    """Serve in this process until it is told to end; `on_ready` is told the port."""
    # A port that is taken is said before models are loaded.
    with open_socket(options["host"], port) as listening:
        server = make_server(**options)
        server.on_started = lambda: on_ready(listening.getsockname()[1])
        server.run(sockets=[listening])
