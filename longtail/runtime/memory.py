"""The memory plan: what training will take, computed before it begins; an error if it cannot fit.

A model lists the stages of its training, each with all that is held at the same time beside the
documents that it was given: the largest stage is what training takes. With a GPU, weights,
gradients, optimizer state, averages and activations lie there; the rest lies in RAM.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import MemoryPlanError
from longtail.runtime.mapped import Extent, is_mapped

USABLE = 0.95  # of what is free; the rest is for what the plan leaves out


# What threads and libraries keep for themselves, measured; it does not grow with the documents.
WORKSPACE = 40 << 20


class Stage(NamedTuple):
    """What is held at the same time: bytes by name, in RAM and on a GPU."""

    ram: Mapping[str, int]
    gpu: Mapping[str, int] = {}

    def also(self, ram: Mapping[str, int]) -> "Stage":
        """Return the stage with more in RAM."""
        return Stage({**self.ram, **ram}, self.gpu)


Needs = Sequence[Stage]


def train_stage(
    device: str,
    *,
    parameters: int,
    gradients: int,
    optimizer: int,
    activations: int,
    averages: int = 0,
    best: int = 0,
    held: int = 0,
    on_host: int = 0,
) -> Stage:
    """Return what is held while a network is trained.

    Args:
        device: "cpu" or "cuda", where it is trained.
        parameters: the weights.
        gradients: the largest set of gradients at any time; those of touched rows if sparse.
        optimizer: what the optimizers remember.
        activations: the rest of a step: batch, embeddings, scores and their gradients.
        averages: the running mean of the weights, if there is one.
        best: the copy of the best weights that validation keeps; always in RAM.
        held: what else is there all the time, such as weighted rows; always in RAM.
        on_host: what the optimizers remember in RAM while a GPU trains.
    """
    trained = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "averages": averages,
    }
    beside = {"best weights": best, "rows and counts": held}
    if device == "cpu":
        return Stage({**trained, **beside, "workspace": WORKSPACE})
    return Stage({"parameters": parameters, **beside, "optimizer": on_host}, trained)


def size_of(*matrices: sp.csr_matrix) -> int:
    """Return the bytes that sparse matrices take in memory; what lies in files takes none."""
    return sum(array.nbytes for array in _arrays_of(matrices) if not is_mapped(array))


def full_size_of(*matrices: sp.csr_matrix) -> int:
    """Return the bytes of sparse matrices, wherever they lie: what another machine gets."""
    return sum(array.nbytes for array in _arrays_of(matrices))


def _arrays_of(matrices: Sequence[sp.csr_matrix]) -> list[NDArray[Any]]:
    real = [each for each in matrices if not isinstance(each, Extent)]
    return [array for each in real for array in (each.data, each.indices, each.indptr)]


def total_ram(needs: Needs) -> int:
    """Return how many bytes of RAM the largest stage takes."""
    return int(max(sum(stage.ram.values()) for stage in needs))


def plan_memory(
    needs: Needs,
    *,
    device: str = "cpu",
    alternatives: Callable[[], Mapping[str, Needs]] = dict,
    what: str = "training",
    advice: str = "train on fewer documents",
    refuse: bool = True,
) -> str:
    """Return one line on what training takes, or raise MemoryPlanError if it cannot fit.

    Args:
        needs: what the model as it is set will take.
        device: "cpu" or "cuda", where the weights will be.
        alternatives: returns what it would take with other settings, such as
            {"dim=128": [Stage(…)]}; the error names those that fit.
        what: takes it, in the sentence.
        advice: what to do if no alternative fits.
        refuse: whether what does not fit is an error.
    """
    free = {"RAM": free_ram()}
    if device != "cpu":
        free["GPU memory"] = free_gpu_memory()
    for place in reversed(free):
        size, parts = _largest(needs, place)
        if refuse and not _fits(size, free[place]):
            fitting = _name_fitting(alternatives(), free)
            beside = f" of RAM beside the GPU's {_say_size(needs, 'GPU memory')}"
            raise MemoryPlanError(
                f"{what} would take about {_describe(size, parts)}"
                f"{beside if place == 'RAM' and device != 'cpu' else ''}, "
                f"but only {_say_free(place, free[place])}; {fitting or advice}"
            )
    place = next(reversed(free))
    described = _describe(*_largest(needs, place))
    return f"{what} takes about {described}; {_say_free(place, free[place])}"


def fits_memory(needs: Needs, device: str) -> bool:
    """Return whether what training takes is free."""
    try:
        plan_memory(needs, device=device)
    except MemoryPlanError:
        return False
    return True


def _largest(needs: Needs, place: str) -> tuple[int, Mapping[str, int]]:
    """Return what the largest stage takes in RAM or GPU memory: in all, and by name."""
    stages = [stage.ram if place == "RAM" else stage.gpu for stage in needs]
    parts = max(stages, key=lambda parts: sum(parts.values()))
    return sum(parts.values()), parts


def _say_size(needs: Needs, place: str) -> str:
    return format_bytes(_largest(needs, place)[0])


def _fits(size: int, free: int | None) -> bool:
    return free is None or size <= free * USABLE


def _describe(size: int, parts: Mapping[str, int]) -> str:
    named = ", ".join(f"{name} {format_bytes(part)}" for name, part in parts.items() if part)
    return f"{format_bytes(size)} ({named})"


def _say_free(place: str, free: int | None) -> str:
    if free is None:
        return f"how much {place} is free is unknown"
    return f"{format_bytes(free)} of {place} is free"


def _name_fitting(alternatives: Mapping[str, Needs], free: dict[str, int | None]) -> str:
    """Return which settings would fit, with what each takes in the place that is asked last."""
    place = next(reversed(free))
    fitting = [
        f"{setting} ({_say_size(other, place)})"
        for setting, other in alternatives.items()
        if all(_fits(_largest(other, where)[0], free[where]) for where in free)
    ]
    return f"what fits: {' or '.join(fitting)}" if fitting else ""


def format_bytes(size: int) -> str:
    """Return 3.2 GiB, 410 MiB or 12 KiB."""
    for unit, name in ((1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            value = size / unit
            return f"{value:.1f} {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{-(-size // 1024)} KiB"


# ------------------------------------------------------------------------------- what is free


def free_gpu_memory() -> int | None:
    """Return the free bytes of the current GPU, with those that torch has reserved."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def free_ram(root: str | Path = "/") -> int | None:
    """Return how many bytes this process may still take; None where the system does not tell.

    In a container, or under `ulimit -v`, the limit is often far below what the machine has: the
    smallest one counts.
    """
    root = Path(root)
    known = [_machine_ram(root), _container_ram(root / "sys/fs/cgroup"), _allowed_ram(root)]
    return min((size for size in known if size is not None), default=None)


def _machine_ram(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _total_ram()


def _total_ram() -> int | None:
    """Return all the RAM there is, where nothing says how much of it is free."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has none of these names
        return None


def _allowed_ram(root: Path) -> int | None:
    """Return what a limit of the address space (`ulimit -v`) leaves."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = _read(root / "proc/self/statm").split()
    return max(limit - int(pages[0]) * resource.getpagesize(), 0) if pages else limit


def _container_ram(cgroup: Path) -> int | None:
    """Return what the container's limit leaves; file caches count as free."""
    names = ("memory.max", "memory.current", "memory.stat", "inactive_file ")
    if not (cgroup / names[0]).exists():
        cgroup /= "memory"
        names = (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "memory.stat",
            "total_inactive_file ",
        )
    limit, used = _read(cgroup / names[0]).strip(), _read(cgroup / names[1]).strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    stat = _read(cgroup / names[2]).splitlines()
    cache = sum(int(line.split()[1]) for line in stat if line.startswith(names[3]))
    return max(int(limit) - int(used) + cache, 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
