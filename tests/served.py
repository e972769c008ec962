"""A server in this process, on a free port of this machine, for tests that talk to it."""

import threading
import time
from contextlib import contextmanager

import httpx
from command_line import planted_rows

import longtail
from longtail.serve.batching import Limits
from longtail.serve.listening import open_socket
from longtail.serve.server import make_server


def train_planted(path, seed=0, *, overwrite=False):
    """Save a small calibrated model; another seed gives another version."""
    texts, labels = zip(*planted_rows(200, seed), strict=True)
    model = longtail.Linear(seed=seed).fit(list(texts), list(labels))
    held, truth = zip(*planted_rows(100, seed + 1), strict=True)
    model.calibrate(list(held), list(truth)).save(path, overwrite=overwrite)
    return path


class Served:
    """A server that runs: its address, its server object, and a client."""

    def __init__(self, server, port):
        self.server, self.port = server, port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    @property
    def state(self):
        return self.server.config.app._app.app.state.longtail


@contextmanager
def served(*folders, host="127.0.0.1", limits=None, **given):
    """Serve folders inside."""
    listening = open_socket("127.0.0.1", 0)
    server = make_server(list(folders), host=host, limits=limits or Limits(), **given)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        running = Served(server, listening.getsockname()[1])
        with running.client:
            yield running
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive()
