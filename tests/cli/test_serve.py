"""`longtail serve` as a user starts it, in a process of its own."""

import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
from command_line import LONGTAIL, fail
from served import train_planted

from longtail.serve.server import open_socket


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
        wait_for(f"{url}/health/ready")
        answer = httpx.post(f"{url}/v1/models/planted/predict", json={"text": "hops", "k": 1})
        assert answer.json()["documents"][0]["labels"][0]["label"] == "beer"
        os.kill(server.pid, stop)
        rest = server.stderr.read()
    assert server.returncode == 0
    assert rest == "Stopped: every request that had come was answered.\n"


def wait_for(url):
    for _ in range(500):
        try:
            return httpx.get(url)
        except httpx.ConnectError:
            time.sleep(0.02)
    raise AssertionError(f"{url} does not answer")


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
