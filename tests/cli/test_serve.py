"""`longtail serve` as a user starts it, in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from command_line import LONGTAIL, fail
from served import train_planted

from longtail.serve.feedback import read_feedback
from longtail.serve.listening import open_socket

PLAIN = {"timeout": 60, "verify": False}  # a client that is to verify reads all certificates first


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train_planted(tmp_path_factory.mktemp("models") / "planted")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_in_order(folder, stop):
    command = [*LONGTAIL, "serve", folder, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        assert line.startswith("Serving on http://127.0.0.1:")
        url = line.split()[2]
        answer = httpx.post(f"{url}/v1/models/planted/predict", json={"text": "hops", "k": 1})
        assert answer.json()["documents"][0]["labels"][0]["label"] == "beer"
        os.kill(server.pid, stop)
        rest = server.stderr.read()
    assert server.returncode == 0
    assert rest == "Stopped: every request that had come was answered.\n"


def test_what_is_refused(folder, tmp_path):
    assert "no such model folder" in fail("serve", tmp_path / "nobody", "--port", 0)
    assert "2 of the folders are called 'planted'" in fail("serve", folder, folder, "--port", 0)
    assert "--max-wait must be a time" in fail("serve", folder, "--max-wait", "5")
    assert "--max-batch must be at least 1" in fail("serve", folder, "--max-batch", "0")
    assert "cannot listen on" in fail("serve", folder, "--host", "256.0.0.1")
    assert "--port must be from 0 to 65535" in fail("serve", folder, "--port", "70000")
    short = tmp_path / "tokens"
    short.write_text("abc")
    assert "16 characters" in fail("serve", folder, "--port", 0, "--token-file", short)
    assert "No such file" in fail("serve", folder, "--port", 0, "--token-file", tmp_path / "no")
    with open_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert "choose another --host or --port" in fail("serve", folder, "--port", port)


def test_a_missing_package_is_named(folder, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("longtail.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = fail("serve", folder)
    assert "pip install '.[serve]'" in error
    assert "uvicorn" in error


# -- workers --------------------------------------------------------------------------------------


def find_workers(supervisor):
    """Return the processes that answer; beside them runs one of multiprocessing."""
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    return [
        int(each)
        for each in children
        if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@needs_proc
def test_a_worker_that_is_killed_is_replaced_and_loses_nothing_that_was_stored(folder, tmp_path):
    store = tmp_path / "said.db"
    command = [*LONGTAIL, "serve", folder, "--port", "0", "--workers", "2", "--feedback", store]
    stored, answered, stop = [], [], threading.Event()

    def ask(url):
        while not stop.is_set():
            try:
                with httpx.Client(base_url=f"{url}/v1/models/planted", **PLAIN) as client:
                    body = {"text": "hops", "accepted": ["beer"]}
                    stored.append(client.post("feedback", json=body).json()["id"])
                    answered.append(client.post("predict", json={"text": "hops"}).status_code)
            except httpx.TransportError:  # of the connections that the dead worker had
                continue

    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor,
        ThreadPoolExecutor(4) as pool,
    ):
        url = supervisor.stderr.readline().split()[2]
        before = find_workers(supervisor)
        asking = [pool.submit(ask, url) for _ in range(4)]
        try:
            wait_until(lambda: len(answered) > 20)
            os.kill(before[0], signal.SIGKILL)
            line = supervisor.stderr.readline()
            assert line == "Note: worker 0 was ended by signal 9; the next one is started now\n"
            wait_until(lambda: _count_ready(url) == 2)
        except BaseException:
            supervisor.kill()
            raise
        finally:
            stop.set()
        for each in asking:
            each.result()
        after = find_workers(supervisor)
        assert len(before) == len(after) == 2
        assert before[1] in after
        counted = re.search(r'/predict",status="200"} (\d+)', _show_metrics(url))
        supervisor.kill()
        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in after))
    assert set(answered) == {200}
    # A worker may die between counting an answer and sending it.
    assert len(answered) <= int(counted[1]) <= len(answered) + 4
    assert set(stored) <= set(read_feedback(store))


def _show_metrics(url):
    return httpx.get(f"{url}/metrics", **PLAIN).text


def _count_ready(url):
    """How many workers answer, as they say in the metrics."""
    found = re.search(r"longtail_model_info{[^}]*} (\d)", _show_metrics(url))
    return int(found[1]) if found else 0


@needs_proc
def test_workers_take_a_new_version_and_finish_what_they_have_begun(tmp_path):
    folder = train_planted(tmp_path / "planted")
    command = [*LONGTAIL, "serve", folder, "--port", "0", "--workers", "2", "--max-wait", "900ms"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor:
        url = supervisor.stderr.readline().split()[2]
        version = httpx.get(f"{url}/health/ready").json()["models"]["planted"]
        train_planted(folder, 1, overwrite=True)
        wait_until(lambda: f'version="{version}"}} 0.0' in _show_metrics(url))
        wait_until(lambda: re.search(r'version="\w+"} 2.0', _show_metrics(url)))
        assert httpx.get(f"{url}/health/ready").json()["models"]["planted"] != version
        with ThreadPoolExecutor(1) as pool:
            predict = f"{url}/v1/models/planted/predict"
            held = pool.submit(httpx.post, predict, json={"text": "hops"})
            wait_until(lambda: 'queue_documents{model="planted"} 1' in _show_metrics(url))
            os.kill(supervisor.pid, signal.SIGTERM)
            assert held.result().status_code == 200
        assert supervisor.wait(60) == 0
        # Said by one worker, not by each.
        assert supervisor.stderr.read().count("answers now") == 1


def test_what_workers_refuse(folder, tmp_path):
    def refuse(*given):
        return fail("serve", *given, "--port", 0, "--workers", 2)

    assert "no such model folder" in refuse(tmp_path / "nobody")
    assert "No such file" in refuse(folder, "--token-file", tmp_path / "no")
    assert "--workers must be from 1 to 256" in fail("serve", folder, "--workers", 0)
    with open_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        error = fail("serve", folder, "--port", port, "--workers", 2)
        assert "choose another --host or --port" in error


def wait_until(condition, seconds=60):
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
