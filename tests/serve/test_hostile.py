"""Clients that are slow, broken or hostile: they are cut off, and others notice nothing."""

import json
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress

import pytest
from served import served, train_planted

from longtail.serve.batching import Limits

PATIENCE = 1.0
PREDICT = "/v1/models/planted/predict"
BODY = json.dumps({"text": "hops and malt", "k": 2}).encode()
HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
CLOSE = b"Connection: close\r\n\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = train_planted(tmp_path_factory.mktemp("models") / "planted")
    patch = pytest.MonkeyPatch()
    patch.setattr("longtail.serve.guard.ImpatientProtocol.patience", PATIENCE)
    limits = Limits(patience=PATIENCE, max_bytes=100_000)
    with served(folder, limits=limits) as found:
        yield found
    patch.undo()


def connect(running):
    link = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def read_all(link):
    """Return what comes until the server closes."""
    held = b""
    with suppress(ConnectionResetError, BrokenPipeError):
        while part := link.recv(65536):
            held += part
    return held


def check_others(running):
    """Ask as a usual client does; the answer comes, and soon."""
    began = time.perf_counter()
    answer = running.client.post(
        PREDICT, content=BODY, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    assert time.perf_counter() - began < 5


def test_slowloris(running):
    """Many clients that send a byte now and then hold no place for longer than the patience."""
    begun = (b"", b"POST / HTTP/1.1\r\nX-a: ", HEAD + b"Content-Length: 99\r\n\r\n")
    with ExitStack() as stack:
        links = [stack.enter_context(connect(running)) for _ in range(150)]
        for i, link in enumerate(links):
            link.sendall(begun[i % len(begun)])
        end = time.monotonic() + 3 * PATIENCE
        while time.monotonic() < end:
            for link in links:
                with suppress(OSError):
                    link.send(b"1")
            check_others(running)
            time.sleep(0.2)
        for link in links:
            held = read_all(link)
            assert held == b"" or held.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 "))


def test_clients_that_take_no_answer(running):
    """Answers that nobody reads hold neither the model nor others."""
    many = json.dumps({"texts": ["hops and malt, then yeast"] * 900, "k": 4}).encode()
    sent = HEAD + b"Content-Length: %d\r\n\r\n" % len(many) + many
    with ExitStack() as stack:
        for _ in range(20):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            link.connect(("127.0.0.1", running.port))
            link.settimeout(5)
            with suppress(OSError):
                for _ in range(50):
                    link.sendall(sent)
        check_others(running)
    check_others(running)


def test_clients_that_leave_in_the_middle(running):
    for cut in (10, len(HEAD), len(WHOLE) - 5, len(WHOLE)):
        for _ in range(20):
            link = connect(running)
            link.sendall(WHOLE[:cut])
            # a reset, as of a machine that is switched off
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
    check_others(running)
    end = time.monotonic() + 10
    while running.state.batchers["planted"].n_waiting:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),  # TLS
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"\r\n\r\n\r\nnonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY, b"400"),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", b"4"),
        (HEAD + b"Content-Length: 200000\r\n\r\n{", b"413"),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b"x" * 0x4000 + b"\r\n",
            b"4",
        ),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 50_000 + b"\r\n", b""),
        (b"GET /%ff%00%c0%ae HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
        (
            b"GET /v1/models/%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            b"404",
        ),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"4"),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"40"),
    ],
)
def test_malformed_and_oversized_requests(running, sent, status):
    """Each is refused with its status, or cut off where it would have to be read first."""
    with connect(running) as link:
        with suppress(OSError):
            link.sendall(sent)
        held = read_all(link)
    assert held == b"" if not status else held.startswith(b"HTTP/1.1 " + status), held[:200]
    assert b"Traceback" not in held
    check_others(running)


def test_requests_one_behind_the_other_on_a_connection(running):
    """They are answered in order."""
    texts = [
        json.dumps({"text": each}).encode() for each in ("hops malt", "rook pawn", "mast wind")
    ]
    sent = [HEAD + b"Content-Length: %d\r\n\r\n" % len(text) + text for text in texts]
    with connect(running) as link:
        link.sendall(b"".join(sent) + b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n" + CLOSE)
        held = read_all(link)
    *answers, last = [part.partition(b"\r\n\r\n")[2] for part in held.split(b"HTTP/1.1 200 OK")[1:]]
    assert last == b'{"status":"ok"}'
    names = [json.loads(each)["documents"][0]["labels"][0]["label"] for each in answers]
    assert names == ["beer", "chess", "sailing"]


def test_many_connections_at_once(running):
    """Hundreds of connections that do nothing leave room for those that ask."""
    links = []
    try:
        for _ in range(600):
            links.append(connect(running))
        done = []
        threads = [
            threading.Thread(target=lambda: done.append(check_others(running))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 8
    finally:
        for link in links:
            link.close()
