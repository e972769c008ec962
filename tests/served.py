"""A server in this process, on a free port of this machine, for tests that talk to it."""

import threading
import time
from contextlib import contextmanager

import httpx
from command_line import planted_rows

import longtail
from longtail.data import Dataset, build_label_matrix
from longtail.labels.state import LabelState
from longtail.labels.vocabulary import Concept, Vocabulary
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


def train_named(path):
    """Save a model whose vocabulary names its labels in English and Finnish."""
    texts = ["malt hops", "rook pawn", "oven flour"] * 5
    Y, names = build_label_matrix([["beer"], ["chess"], ["drink"]] * 5)
    dataset = Dataset(Y=Y, label_names=names, texts=texts)
    model = longtail.Linear().fit(dataset)
    concepts = [
        Concept("x:1", {"en": "beer", "fi": "olut"}, broader=["x:2"], related=["x:3"]),
        Concept("x:3", {"en": "chess", "fi": "šakki"}),
        Concept("x:2", {"en": "drink", "fi": "juoma"}),
    ]
    model.label_state_ = LabelState.of(Vocabulary.build(concepts), dataset)
    model.save(path)
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
