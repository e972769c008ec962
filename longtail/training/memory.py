"""The memory plan: what training will take, computed before it begins; an error if it cannot fit.

Weights, gradients, optimizer state, averages and activations lie on the device; the batches, the
best weights so far and, while it is built, the model itself lie in RAM.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longtail.errors import MemoryPlanError

USABLE = 0.95  # of what is free; the rest is for what the plan leaves out


@dataclass(frozen=True)
class Needs:
    """Bytes that training takes.

    Attributes:
        parameters: the weights.
        gradients: the largest set of gradients at any time; those of touched rows if sparse.
        optimizer: what the optimizers remember.
        activations: the rest of a step: batch, embeddings, scores and their gradients.
        averages: the running mean of the weights, if there is one.
        best: the copy of the best weights that validation keeps; always in RAM.
        counts: what is counted over all documents beforehand; always in RAM.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    averages: int = 0
    best: int = 0
    counts: int = 0

    def on(self, device: str) -> int:
        """Return how much of it lies on the device, "cpu" meaning RAM."""
        trained = self.parameters + self.gradients + self.optimizer
        total = trained + self.activations + self.averages
        return total + self.best + self.counts if device == "cpu" else total

    @property
    def beside_gpu(self) -> int:
        """Return how much RAM training on a GPU takes."""
        return self.parameters + self.best + self.counts


def plan_memory(
    needs: Needs,
    *,
    device: str = "cpu",
    alternatives: Mapping[str, Needs] | None = None,
) -> str:
    """Return one line on what training takes, or raise MemoryPlanError if it cannot fit.

    Args:
        needs: what the model as it is set will take.
        device: "cpu" or "cuda", where the weights will be.
        alternatives: what it would take with other settings, such as {"dim=128": Needs(…)}; the
            error names those that fit.
    """
    free = {"RAM": free_ram()}
    if device != "cpu":
        free["GPU memory"] = free_gpu_memory()
    for place in reversed(free):
        if not _fits(_part(needs, place, device), free[place]):
            raise MemoryPlanError(_refuse(needs, place, device, free, alternatives or {}))
    place = next(reversed(free))
    return f"training takes about {_describe(needs, device)}; {_say_free(place, free[place])}"


def _part(needs: Needs, place: str, device: str) -> int:
    """Return how much of the needs lies in RAM or in GPU memory."""
    if place == "RAM" and device != "cpu":
        return needs.beside_gpu
    return needs.on(device)


def _fits(size: int, free: int | None) -> bool:
    return free is None or size <= free * USABLE


def _describe(needs: Needs, device: str) -> str:
    parts = {
        "parameters": needs.parameters,
        "gradients": needs.gradients,
        "optimizer": needs.optimizer,
        "activations": needs.activations,
        "averages": needs.averages,
        "best weights": needs.best if device == "cpu" else 0,
        "counts": needs.counts if device == "cpu" else 0,
    }
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    return f"{format_bytes(needs.on(device))} ({named})"


def _say_free(place: str, free: int | None) -> str:
    if free is None:
        return f"how much {place} is free is unknown"
    return f"{format_bytes(free)} of {place} is free"


def _refuse(
    needs: Needs,
    place: str,
    device: str,
    free: Mapping[str, int | None],
    alternatives: Mapping[str, Needs],
) -> str:
    """Return the error's text, with the settings that would fit."""
    fitting = [
        f"{setting} ({format_bytes(other.on(device))})"
        for setting, other in alternatives.items()
        if all(_fits(_part(other, where, device), free[where]) for where in free)
    ]
    takes = _describe(needs, device)
    if place == "RAM" and device != "cpu":
        takes = f"{format_bytes(needs.beside_gpu)} of RAM beside the GPU's {takes}"
    general = "try a smaller dim, a sampled loss or a smaller batch"
    advice = f"what fits: {' or '.join(fitting)}" if fitting else general
    return f"training would take about {takes}, but only {_say_free(place, free[place])}; {advice}"


def format_bytes(size: int) -> str:
    """Return 3.2 GiB, 410 MiB or 12 KiB."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
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

    In a container the limit is often far below what the machine has: the smaller one counts.
    """
    root = Path(root)
    known = [_machine_ram(root), _container_ram(root / "sys/fs/cgroup")]
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
