"""Kill -9 at random moments, on three nodes in one machine: the result is that of a quiet run.

`LONGTAIL_TEST_KILLS=50` kills so many of each kind; five otherwise.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
from cluster.clusters import STORE, find_workers, forget_processes, kill
from planted import planted_texts, write_planted_texts

import longtail

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LONGTAIL_TEST_KILLS", "5"))
LONGEST = 60 + 60 * KILLS  # seconds
DRIVER = Path(__file__).with_name("driver.py")
QUIET: dict[str, float] = {}  # seconds of a run of each task that nothing disturbs


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    nodes = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=nodes)
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
    yield cluster
    cluster.shutdown()
    forget_processes()


@pytest.fixture(scope="module")
def made(tmp_path_factory, cluster):
    """Documents, a model, and what runs that nothing disturbs make of them."""
    folder = tmp_path_factory.mktemp("made")
    longtail.Linear().fit(planted_texts(900)).save(folder / "model")
    write_planted_texts(folder / "train.jsonl", 3000)
    texts = planted_texts(8000, seed=1).texts
    lines = (json.dumps({"id": str(i), "text": text}) for i, text in enumerate(texts))
    (folder / "in.jsonl").write_text("\n".join(lines))
    for task in ("predict", "train"):
        began = time.monotonic()
        quiet = folder / f"quiet-{task}"
        assert start(task, folder, quiet, cluster).wait(LONGEST) == 0, said_by(quiet).read_text()
        QUIET[task] = time.monotonic() - began
    return folder


def start(task, folder, out, cluster):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    command = [sys.executable, str(DRIVER), task, str(folder), str(out)]
    with said_by(out).open("wb") as said:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=said)


def said_by(out):
    """Return the file of what the last driver said, by its output."""
    return out.with_name(f"{out.name}.said")


def read(task, out):
    if task == "predict":
        return ds.dataset(out).to_table().to_pydict()
    return longtail.load_model(out).to_files().arrays


def same(task, out, quiet):
    found, expected = read(task, out), read(task, quiet)
    if task == "predict":
        return found == expected
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in found
    )


def strike(kind, cluster, driver):
    """Kill something of a kind; return whether there was something."""
    if kind == "driver":
        return kill(driver.pid)
    if kind == "node":
        cluster.remove_node(random.choice(list(cluster.worker_nodes)), allow_graceful=False)
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        return True
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    workers = [worker for raylet in raylets for worker in find_workers(raylet)]
    return bool(workers) and kill(random.choice(workers))


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("predict", "worker"),
        ("predict", "node"),
        ("predict", "driver"),
        ("train", "worker"),
        ("train", "node"),
        ("train", "driver"),
    ],
)
def test_the_result_is_that_of_a_quiet_run(task, kind, made, cluster, tmp_path):
    out, n_killed, n_starts = tmp_path / "out", 0, 0
    began = time.monotonic()
    while n_killed < KILLS:
        if out.exists() and task == "predict":  # it was finished: some of it has to be done again
            for part in random.sample(sorted(out.glob("part-*")), k=len(list(out.glob("part-*")))):
                if random.random() < 0.7:
                    part.unlink()
        driver = start(task, made, out, cluster)
        n_starts += 1
        while driver.poll() is None and n_killed < KILLS:
            time.sleep(random.uniform(0.5, 4))
            n_killed += driver.poll() is None and strike(kind, cluster, driver)
            assert time.monotonic() - began < LONGEST
        code = driver.wait(LONGEST)
        assert code == (-9 if kind == "driver" and code else 0), said_by(out).read_text()
    assert start(task, made, out, cluster).wait(LONGEST) == 0, said_by(out).read_text()
    assert same(task, out, made / f"quiet-{task}")
    took = time.monotonic() - began
    print(  # noqa: T201
        f"{task}, {kind}: {n_killed} killed in {took:.0f} s and {n_starts + 1} runs; "
        f"a quiet run takes {QUIET[task]:.1f} s"
    )


WAITING = """
import time
from longtail.cluster import connected
with connected("auto"):
    print("connected", flush=True)
    time.sleep(120)
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # files of Ray's, never closed
@pytest.mark.parametrize("through", ["head", "client"])
def test_the_head_gone_is_one_line(through):
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    alone = Cluster(initialize_head=True, head_node_args={**node, "ray_client_server_port": port})
    try:
        host = alone.address.partition(":")[0]
        place = alone.address if through == "head" else f"ray://{host}:{port}"
        driver = subprocess.Popen(
            [sys.executable, "-c", WAITING],
            env={**os.environ, "RAY_ADDRESS": place},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert driver.stdout.readline() == "connected\n"
        for server in ("ray_client_server", "gcs_server"):
            assert kill(alone.head_node.all_processes[server][0].process.pid)
        _, said = driver.communicate(timeout=60)
        assert driver.returncode == 2
        assert said == (
            f"Error: the head of the cluster, {host}, is gone; start the same command again: "
            "what was finished is kept\n"
        )
    finally:
        alone.shutdown()
        forget_processes()
