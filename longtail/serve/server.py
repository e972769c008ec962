"""The server: listens on an address and ends in order."""

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from longtail.errors import ParameterError
from longtail.serve.app import make_app
from longtail.serve.batching import Limits
from longtail.serve.feedback import FeedbackStore
from longtail.serve.guard import ImpatientProtocol, describe_address, is_local, read_tokens
from longtail.serve.hosting import host_all

FINISH_SECONDS = 30  # that requests may take after the server was told to end
MOST_PORT = 65535
BACKLOG = 2048  # connections that wait to be taken


class QuietServer(uvicorn.Server):
    """A server that finishes what it has begun when it is told to end, and then returns."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order on Ctrl-C and SIGTERM, and let neither reach anybody else."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = {
            each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for each, before in usual.items():
                signal.signal(each, before)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, or say why it cannot."""
    if not 0 <= port <= MOST_PORT:  # which the system would wrap around
        raise ParameterError(f"--port must be from 0 to {MOST_PORT}. Got {port} instead.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ParameterError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from error
    return listening


def make_server(
    folders: list[Path],
    *,
    host: str,
    limits: Limits,
    token_file: Path | None = None,
    feedback: Path | None = None,
) -> QuietServer:
    """Load the models and return a server for them, which does not listen yet."""
    tokens = [] if token_file is None else read_tokens(token_file)
    hosted = host_all(folders)
    store = None if feedback is None else FeedbackStore(feedback, create=True)
    app = make_app(hosted, limits, tokens=tokens, local=is_local(host), feedback=store)
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        access_log=False,  # nor are texts written anywhere
        log_config=None,
        lifespan="on",
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(limits.patience),
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
    return QuietServer(config)


def serve(
    folders: list[Path],
    *,
    host: str,
    port: int,
    limits: Limits,
    token_file: Path | None,
    feedback: Path | None,
    say: Callable[[str], None],
) -> None:
    """Serve model folders until the process is told to end."""
    listening = open_socket(host, port)  # a port that is taken is said before models are loaded
    with listening:
        server = make_server(
            folders, host=host, limits=limits, token_file=token_file, feedback=feedback
        )
        address = describe_address(host, listening.getsockname()[1])
        if not is_local(host) and token_file is None:
            say("Note: everybody who reaches this address may use it; see --token-file")
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        say(f"Serving on {address} (Ctrl-C ends it)")
        server.run(sockets=[listening])
