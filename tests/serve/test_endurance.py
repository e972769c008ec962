"""A server under load: its models are replaced, its workers are killed, and no client notices.

These talk to `longtail serve` as a process of its own.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command_line import LONGTAIL, planted_rows
from served import train_planted

import longtail
from longtail.serve.feedback import read_feedback
from longtail.serve.hosting import name_labels

PREDICT = "/v1/models/planted/predict"
TEXTS = [text for text, _ in planted_rows(8, 9)]


@contextmanager
def process(folder, *options):
    """Run `longtail serve`; yield its address and the process."""
    command = [*LONGTAIL, "serve", folder, "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = None
            for line in server.stderr:
                if found := re.search(r"Serving on (\S+)", line):
                    address = found[1]
                    break
            assert address, "the server did not start"
            yield address, server
        finally:
            server.terminate()
            server.communicate(timeout=90)


async def ask_for_long(address, stop, body, answers):
    """Ask again and again on one connection; count the answers. Plain, as 200 share a core."""
    _, host, port = address.replace("//", "").split(":")
    sent = json.dumps(body).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent
    reader, writer = await asyncio.open_connection(host, int(port))
    while not stop.is_set():
        writer.write(request)
        headers = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", headers)[1])
        answers[headers.split(b"\r\n")[0], await reader.readexactly(length)] += 1
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_200_clients_while_the_model_is_swapped_50_times(tmp_path, workers):
    n_clients, n_swaps = 200, 50
    folder = train_planted(tmp_path / "planted")
    versions = [train_planted(tmp_path / f"v{seed}", seed) for seed in (1, 2, 3)]
    models = [longtail.load_model(each) for each in (folder, *versions)]
    known = [
        [{"labels": labels} for labels in name_labels(model.predict(TEXTS, 3))] for model in models
    ]
    assert all(one != other for i, one in enumerate(known) for other in known[:i])

    async def run(address):
        stop, answers = asyncio.Event(), Counter()
        body = {"texts": TEXTS, "k": 3}
        asking = [
            asyncio.create_task(ask_for_long(address, stop, body, answers))
            for _ in range(n_clients)
        ]
        while answers.total() < n_clients:  # the first version speaks, too
            await asyncio.sleep(0.1)
        for i in range(n_swaps):
            await asyncio.to_thread(models[1 + i % 3].save, folder, overwrite=True)
            await asyncio.sleep(1.2)  # the server looks every second
        stop.set()
        await asyncio.gather(*asking)  # raises what went wrong with any of them
        return answers

    with process(folder, "--workers", workers) as (address, _):
        answers = asyncio.run(run(address))
    assert {line for line, _ in answers} == {b"HTTP/1.1 200 OK"}
    assert answers.total() > n_clients
    spoke = {}  # the model of each version
    for _, text in answers:
        held = json.loads(text)
        assert held["documents"] in known, "an answer mixes versions"
        which = known.index(held["documents"])
        assert spoke.setdefault(held["version"], which) == which
    assert set(spoke.values()) == {0, 1, 2, 3}


def count_listening(address):
    """Return how many sockets listen on the port of an address."""
    port = int(address.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def children_of(process_id):
    """Return the processes that a process has started and that serve."""
    listed = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [
        int(each) for each in listed if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_worker_that_is_killed_loses_nothing(tmp_path):
    """Others go on, the worker comes back, and feedback that was answered is on disk."""
    n_kills = 2
    folder, file = train_planted(tmp_path / "planted"), tmp_path / "said.db"
    stored, failed, predicted = [], [], []

    async def say(address, name, stop):
        number = 0
        while not stop.is_set():
            number += 1
            body = {"text": f"text {name} {number}", "accepted": ["beer"], "document": f"{name}"}
            try:  # each on a connection of its own, as from many machines
                async with httpx.AsyncClient(base_url=address, timeout=30) as client:
                    answer = await client.post("/v1/models/planted/feedback", json=body)
                    assert answer.status_code == 201
                    stored.append((answer.json()["id"], body["text"]))
                    answer = await client.post(PREDICT, json={"text": "rook pawn", "k": 1})
                    assert answer.status_code == 200
                    predicted.append(time.monotonic())
            except httpx.TransportError as error:
                failed.append((time.monotonic(), repr(error)))

    async def run(address, server):
        stop, kills = asyncio.Event(), []
        asking = [asyncio.create_task(say(address, name, stop)) for name in range(6)]
        for _ in range(n_kills):
            await asyncio.sleep(1.5)
            workers = children_of(server.pid)
            assert len(workers) == 2
            os.kill(workers[0], signal.SIGKILL)
            kills.append(time.monotonic())
            end = time.monotonic() + 60
            # The socket of the dead one is closed before the next one starts.
            while (
                len(set(children_of(server.pid)) - {workers[0]}) < 2 or count_listening(address) < 2
            ):
                assert time.monotonic() < end, "the worker does not come back"
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.5)
        stop.set()
        await asyncio.gather(*asking)
        return kills

    with process(folder, "--workers", "2", "--feedback", file) as (address, server):
        kills = asyncio.run(run(address, server))
    held = {number: each.text for number, each in read_feedback(file).items()}
    assert all(held.get(number) == text for number, text in stored), "feedback was lost"
    assert len({number for number, _ in stored}) == len(stored)
    # What fails is what had come to the killed worker, or waited for it until it was noted dead.
    since = [min((when - each for each in kills if each <= when), default=-1) for when, _ in failed]
    told = [f"{seconds:.1f} s: {error}" for seconds, (_, error) in zip(since, failed, strict=True)]
    assert all(0 <= seconds < 20 for seconds in since), told
    assert len(failed) <= 6 * n_kills, told
    for kill in kills:  # others went on
        assert any(0 < when - kill < 20 for when in predicted)
