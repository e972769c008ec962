"""Networks that processes of several nodes train together: one for each GPU, or for each node.

The processes are actors of Ray that get their places at once or not at all (a placement group), and
train as torchrun's would. The documents go through the object store; the trained model, what is to
be shown and the checkpoints come back. If a process dies, all begin anew from the last checkpoint,
with as many as there is room for then.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

from longtail.cluster.process import (
    Fitted,
    News,
    Place,
    TrainingProcess,
    list_files,
    mirror_files,
    read_files,
)
from longtail.cluster.tasks import GIGABYTE, Node, RayWorkers, WorkerError, translated
from longtail.cluster.versions import find_versions
from longtail.data import Dataset
from longtail.errors import LongtailError, LostProcessError, MemoryPlanError, ParameterError
from longtail.models.base import Model
from longtail.models.registry import build_model
from longtail.progress import Progress
from longtail.runtime.memory import full_size_of

RESTARTS = 20  # after processes that died
GRACE = 20.0  # seconds for the others to say why one cannot reach them
PLACE_SECONDS = 30.0  # to get places, before the nodes are counted again
TIDY_SECONDS = 5.0
LEAST_BYTES = 1 << 30  # what a process takes beside the documents, with torch


class Group(NamedTuple):
    """How many processes there are, and what each has."""

    n_processes: int
    cores: int
    gpus: int
    n_bytes: int

    def describe(self) -> str:
        """Say it, such as "2 processes with 4 cores and a GPU each"."""
        what = f"{self.cores} core{'s' * (self.cores > 1)}" + " and a GPU" * self.gpus
        return f"{self.n_processes} process{'es' * (self.n_processes > 1)} with {what} each"


class DeadProcessError(LongtailError):
    """A process is gone, or cannot be reached by the others."""


def choose_group(
    nodes: Sequence[Node], processes: int | None, device: str, n_bytes: int = 0
) -> Group:
    """Return how many processes train, and what each gets: as many cores as all can have.

    Args:
        nodes: what there is.
        processes: how many; None for one a GPU, or a node where there are none.
        device: "auto", "cpu" or "cuda".
        n_bytes: that each takes.
    """
    n_gpus = 0 if device == "cpu" else int(sum(node.gpus for node in nodes))
    count = processes or n_gpus or sum(node.cores >= 1 for node in nodes)
    if device == "cuda" and not n_gpus:
        raise ParameterError(
            "--device cuda needs a GPU, and the cluster has none; use --device cpu"
        )
    if n_gpus and count > n_gpus:
        raise ParameterError(
            f"{count} processes cannot have a GPU each, as the cluster has {n_gpus}; start fewer, "
            "or choose --device cpu"
        )
    for cores in range(int(max((node.cores for node in nodes), default=0)), 0, -1):
        group = Group(count, cores, int(n_gpus > 0), n_bytes)
        if sum(_count_places(node, group) for node in nodes) >= count:
            return group
    largest = max((node.n_bytes for node in nodes), default=0)
    raise MemoryPlanError(
        f"there is no room for {count} process{'es' * (count > 1)}: each takes a core and "
        f"{n_bytes / GIGABYTE:.1f} GB; the nodes have {int(sum(node.cores for node in nodes))} "
        f"cores in all and at most {largest / GIGABYTE:.1f} GB each; start fewer, or add nodes"
    )


def _count_places(node: Node, group: Group) -> int:
    """Return how many processes a node has room for."""
    places = [node.cores // group.cores]
    places += [node.gpus] if group.gpus else []
    places += [node.n_bytes // group.n_bytes] if group.n_bytes else []
    return int(min(places))


class NetworkTrainer:
    """Trains networks on a cluster, one after the other, by the same processes."""

    def __init__(self, workers: RayWorkers, processes: int | None = None) -> None:
        self.workers, self.ray, self.processes = workers, workers.ray, processes
        self._group: Group | None = None
        self._actors: list[Any] = []
        self._placement: Any = None
        self._looking: Any = None

    def fit(self, model: Model, dataset: Dataset, progress: Progress) -> tuple[Model, str | None]:
        """Train on the cluster; return the model with what stopped its training, if it did."""
        if model.run_dir is not None:
            model.run_dir = model.run_dir.absolute()  # workers have folders of their own
        documents = self.workers.share(dataset)
        n_bytes = LEAST_BYTES + _count_bytes(dataset)
        for n_left in range(RESTARTS, -1, -1):
            try:
                self._start(model, n_bytes, progress)
                fitted = self._train(model, documents, progress)
            except DeadProcessError as death:
                self.close()
                if not n_left:
                    raise WorkerError(f"{death}, {RESTARTS} times; training stops here") from None
                model.resume = model.run_dir is not None
                progress.say(f"Note: {death}; all begin again from the last checkpoint")
            else:
                return build_model(fitted.files, model.name), fitted.problem
        raise AssertionError  # the last round returns or raises

    def close(self) -> None:
        """End the processes, and give back their places."""
        from ray.util import remove_placement_group

        with suppress(Exception):  # what is dead need not tidy up
            self.ray.get([each.tidy.remote() for each in self._actors], timeout=TIDY_SECONDS)
        for actor in self._actors:
            self.ray.kill(actor)
        if self._placement is not None:
            remove_placement_group(self._placement)
        self._actors, self._placement = [], None

    # -- starting -------------------------------------------------------------------------------

    def _start(self, model: Model, n_bytes: int, progress: Progress) -> None:
        """Start the processes, unless they are there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self._actors:
            return
        self._group = group = self._find_room(model.get_parameters()["device"], n_bytes, progress)
        remote = self.ray.remote(TrainingProcess)
        for number in range(group.n_processes):
            there = PlacementGroupSchedulingStrategy(self._placement, number)
            options = {"num_cpus": group.cores, "num_gpus": group.gpus, "memory": group.n_bytes}
            options |= {"max_concurrency": 3, "scheduling_strategy": there}  # fit, look and tidy
            self._actors.append(remote.options(**options).remote())
        progress.say(f"{model.name} is trained by {group.describe()}")

    def _find_room(self, device: str, n_bytes: int, progress: Progress) -> Group:
        """Wait until the nodes have room for all processes; they may change meanwhile."""
        from ray.util import placement_group, remove_placement_group

        while True:
            group = choose_group(self.workers.nodes, self.processes, device, n_bytes)
            bundle = {"CPU": group.cores, "GPU": group.gpus, "memory": group.n_bytes}
            wanted = {name: amount for name, amount in bundle.items() if amount}
            strategy = "PACK" if group.gpus else "SPREAD"
            placement = placement_group([wanted] * group.n_processes, strategy)
            until = time.monotonic() + PLACE_SECONDS
            while time.monotonic() < until:
                progress.advance(0)  # lets Ctrl-C through
                if placement.wait(1):
                    self._placement = placement
                    return group
            remove_placement_group(placement)
            progress.say(f"Note: waiting until the cluster has room for {group.describe()}")

    # -- training -------------------------------------------------------------------------------

    def _train(self, model: Model, documents: Any, progress: Progress) -> Fitted:
        """Let all processes train; return what the first one does."""
        places, all_see = self._agree(model.run_dir)
        checkpoints = None
        if model.run_dir is not None and not all_see:
            names = list_files(model.run_dir) if model.resume else ()
            checkpoints = self.workers.share(read_files(model.run_dir, names))
        tickets = [
            actor.fit.remote(model, documents, place, checkpoints)
            for actor, place in zip(self._actors, places, strict=True)
        ]
        return self._await(tickets, model.run_dir, progress)

    def _agree(self, run_dir: Path | None) -> tuple[list[Place], bool]:
        """Return the places of the processes, and whether all see the folder of the run."""
        group = cast(Group, self._group)
        with _marked(run_dir) as mark:
            asked = [actor.locate.remote(find_versions(), mark) for actor in self._actors]
            found = [self._get(ticket, rank) for rank, ticket in enumerate(asked)]
        address, port, _ = found[0]
        places = [
            Place(rank, group.n_processes, address, port, group.cores, bool(group.gpus))
            for rank in range(group.n_processes)
        ]
        return places, all(sees for _, _, sees in found)

    def _await(self, tickets: Sequence[Any], run_dir: Path | None, progress: Progress) -> Fitted:
        """Show how it goes, until all processes are done or one is not there any more."""
        waiting = {ticket: rank for rank, ticket in enumerate(tickets)}
        self._looking = self._actors[0].look.remote()
        fitted, gives_up, reason = None, math.inf, ""
        while waiting and time.monotonic() < gives_up:
            progress.advance(0)  # lets Ctrl-C through
            for ticket in self.workers.wait(list(waiting)):
                try:
                    fitted = self._get(ticket, waiting.pop(ticket)) or fitted
                except LostProcessError as error:  # another one may know why
                    reason = reason or str(error).partition(";")[0]
                    gives_up = min(gives_up, time.monotonic() + GRACE)
            self._look(run_dir, progress)
        if fitted is None:
            raise DeadProcessError(reason)
        return cast(Fitted, fitted)

    def _look(self, run_dir: Path | None, progress: Progress) -> None:
        """Show what the first process has to show, and keep its checkpoints, once it answers."""
        if not self.ray.wait([self._looking], timeout=0)[0]:
            return
        news: News = self._get(self._looking, 0)
        for name, arguments in news.shown:
            getattr(progress, name)(*arguments)
        if run_dir is not None and news.names:
            mirror_files(run_dir, news.changed, news.names)
        self._looking = self._actors[0].look.remote()

    def _get(self, ticket: Any, rank: int) -> Any:
        """Return what a process answers; an error that it raised is raised here as it was."""
        from ray.exceptions import RayActorError

        with translated():
            try:
                return self.ray.get(ticket)
            except RayActorError:
                who = f"process {rank} of {len(self._actors)}"
                raise DeadProcessError(f"{who} has died, or its node") from None


@contextmanager
def _marked(run_dir: Path | None) -> Iterator[str | None]:
    """Put a file into the folder by which others can tell whether they see it."""
    if run_dir is None:
        yield None
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    mark = run_dir / f".{uuid4().hex}"
    mark.touch()
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)


def _count_bytes(dataset: Dataset) -> int:
    """Return about how many bytes documents take on a node."""
    matrices = [matrix for matrix in (dataset.X, dataset.Y) if matrix is not None]
    letters = sum(map(len, dataset.texts or ()))
    return full_size_of(*matrices) + letters
