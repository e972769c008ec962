"""A connection to a Ray cluster: one that is started here, one that runs here, or one elsewhere.

What does not answer is refused at once, where Ray would wait for half a minute or for ever. Before
any work, every node is asked for its versions: those that could give other bits are refused.
A driver whose head is gone would be ended by Ray with a stack trace, or wait for ever, so a thread
looks after the head and ends this process with one line before that.
"""

import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from longtail.cluster.tasks import RETRIES, RayWorkers
from longtail.cluster.versions import ClusterError, find_versions
from longtail.errors import MissingExtraError, ParameterError
from longtail.runtime.parallel import chosen_threads, count_cores
from longtail.runtime.workers import use_cluster
from longtail.version import __version__

AUTO, LOCAL, CLIENT = "auto", "local", "ray://"
NAMED = "RAY_ADDRESS"  # the variable by which Ray is told its cluster
REACH_SECONDS = 10.0  # for a cluster to accept a connection
LOOK_SECONDS, PATIENCE = 1.0, 5  # between two looks at the head; looks in vain before it is gone
CLIENT_PATIENCE = 20  # through the client of Ray, which itself tries to connect again for 30 s
START_SECONDS = 180  # for a node to say its versions: a busy one starts processes slowly
USER_ERROR = 2
LOST = "is gone; start the same command again: what was finished is kept"


@contextmanager
def connected(address: str, cores: int | None = None) -> Iterator[RayWorkers]:
    """Let work inside go to the cluster at `address`.

    Args:
        address: "local" starts a cluster on this machine, "auto" joins the one that this machine
            belongs to, "ray://host:10001" one elsewhere.
        cores: how many a local cluster has; as many as there may be threads unless given.
    """
    check_address(address)
    if address == AUTO and os.environ.get(NAMED, "").startswith(CLIENT):
        address = os.environ[NAMED]
        check_address(address)
    ray = import_ray()
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, cores or chosen_threads() or count_cores())
    try:
        check_versions(ray)
        workers = RayWorkers(ray)
        with use_cluster(workers), _watched(ray, address), _telling_loss(address):
            yield workers
    finally:
        if ours:
            ray.shutdown()


def check_address(address: str) -> None:
    """Make sure that `address` is one that `connected` knows."""
    if address not in (AUTO, LOCAL) and _split_address(address) is None:
        raise ParameterError(
            f"--cluster must be auto, local or ray://HOST:10001. Got '{address}' instead."
        )


def _split_address(address: Any) -> tuple[str, int] | None:
    """Return host and port of ray://HOST:PORT; None for anything else."""
    if not isinstance(address, str) or not address.startswith(CLIENT):
        return None
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:  # no number, or too large a one
        return None
    return (host, port) if host and port and not parts.path else None


def import_ray() -> Any:
    """Return Ray, quiet."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to Ray's makers
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # no new cluster for one that is gone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of tasks that nobody waits for
    # A local cluster does this command's own work: no less urgent than without a cluster.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if (Path.home() / ".ray" / "auth_token").is_file():
        # `ray start` asks for the token of this file where there is one, but offers none itself.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError:
        raise MissingExtraError.of("--cluster needs Ray", "ray") from None
    return ray


def _start(ray: Any, address: str, cores: int) -> None:
    """Start or join a cluster; what Ray has to say about it becomes one line."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address == LOCAL:
                # Never a cluster that runs already: RAY_ADDRESS may name one.
                ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
            else:
                _reach(ray, address)
                ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise ClusterError(_say_why(address, error)) from None
    for name in ("dataclient", "logsclient"):  # a loss is one line of ours
        logging.getLogger(f"ray.util.client.{name}").disabled = True
    # Ray prints a page for each worker that dies, whatever it is told; its task is done again.
    with suppress(AttributeError):
        ray._private.worker.print_to_stdstream = _show_nothing


def _reach(ray: Any, address: str) -> None:
    """Raise ClusterError if nothing answers where the cluster should be."""
    host, port = _split_address(address) or _find_head(ray)
    try:
        socket.create_connection((host, port), timeout=REACH_SECONDS).close()
    except OSError as error:
        place = f"{host}:{port}" if address == AUTO else address
        hint = "look at the address, and at the cluster with `ray status`"
        if address == AUTO:
            hint += "; RAY_ADDRESS names another one, and --cluster local starts one"
        raise ClusterError(
            f"{place}: no Ray cluster answers there ({error.strerror or error}); {hint}"
        ) from None


def _find_head(ray: Any) -> tuple[str, int]:
    """Return where the cluster is that Ray would join: RAY_ADDRESS, or the last one started."""
    found = ray._private.services.canonicalize_bootstrap_address(AUTO)
    host, _, port = (found or "").rpartition(":")
    if not port.isdecimal():
        raise ConnectionError
    return host, int(port)


def _show_nothing(*_: Any, **__: Any) -> None:
    """Take what Ray would print."""


def _say_why(address: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300]
    if "ersion mismatch" in reason:
        return f"{address}: the cluster has other versions of Ray or Python: {reason}"
    if address == LOCAL:
        return f"a cluster could not be started on this machine: {reason}"
    token = "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
    if address != AUTO:
        return f"{address}: the Ray cluster there does not let us in; {token} ({reason})"
    if named := os.environ.get(NAMED):
        return (
            f"{NAMED} is '{named}', and no Ray cluster lets us in there; it must be HOST:6379 or "
            f"ray://HOST:10001; {token}"
        )
    return (
        "no Ray cluster answers on this machine; start one with `ray start --head`, join one "
        f"with `ray start --address=HEAD:6379` ({token}), or use --cluster local"
    )


# -- versions -------------------------------------------------------------------------------------


def check_versions(ray: Any) -> None:
    """Raise ClusterError if a node has other versions than this machine."""
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask, own = ray.remote(find_versions), find_versions()
    asked = {}
    for node in _list_alive(ray):
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        answer = ask.options(num_cpus=0, scheduling_strategy=there, max_retries=RETRIES).remote()
        asked[node["NodeID"]] = node["NodeManagerAddress"], answer
    for node_id, (where, answer) in asked.items():
        try:
            found = ray.get(answer, timeout=START_SECONDS)
        except GetTimeoutError:
            if node_id in {node["NodeID"] for node in _list_alive(ray)}:
                raise ClusterError(
                    f"the node {where} does not answer; look at it with `ray status`"
                ) from None
            continue
        except RayError as error:
            if "No module named" not in str(error):
                continue  # the node died meanwhile; every task looks at the versions again
            raise ClusterError(
                f"longtail is not installed on the node {where}; install longtail {__version__} "
                "there, with its Ray"
            ) from None
        if differs := own.differ(found):
            raise ClusterError(
                f"the node {where} has {differs}; install the same versions on all nodes"
            )


def _list_alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


# -- the head -------------------------------------------------------------------------------------


@contextmanager
def _watched(ray: Any, address: str) -> Iterator[None]:
    """End this process with one line if the head is gone while the work inside goes on."""
    place, patience = _split_address(address), CLIENT_PATIENCE
    if place is None:
        host, _, number = ray.get_runtime_context().gcs_address.rpartition(":")
        place, patience = (host, int(number)), PATIENCE
    ended = threading.Event()

    def watch() -> None:
        n_missed = 0
        while not ended.wait(LOOK_SECONDS):
            n_missed = 0 if _answers(*place) else n_missed + 1
            if n_missed >= patience and not ended.is_set():
                _end(f"the head of the cluster, {place[0]}, {LOST}")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def _telling_loss(address: str) -> Iterator[None]:
    """Say in one line that Ray's client has lost its cluster."""
    if not address.startswith(CLIENT):
        yield
        return
    from grpc import RpcError  # of Ray
    from ray.exceptions import RayError

    try:
        yield
    except (ConnectionError, RpcError, RayError):
        raise ClusterError(f"{address}: the cluster {LOST}") from None


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=LOOK_SECONDS):
        return True
    return False


def _end(reason: str) -> None:
    """End this process: the main thread may wait inside Ray for ever."""
    from longtail.terminal import echo

    echo(f"Error: {reason}", err=True)
    sys.stderr.flush()
    time.sleep(0.1)
    os._exit(USER_ERROR)
