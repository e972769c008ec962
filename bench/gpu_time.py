"""How much of its training time a GPU computes, for the recipes that train on one."""

from collections.abc import Callable
from typing import Any

from longtail.models.neural import Neural


def profile(train: Callable[[], Neural]) -> dict[str, Any]:
    """Train under the profiler; return where the GPU's time goes.

    Profiling slows training down: take one epoch, and the seconds of training from another run.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA]) as profiler:
        model = train()
    kernels = [
        (average.self_device_time_total / 1e6, average.count, average.key[:80])
        for average in profiler.key_averages()
        if average.self_device_time_total > 0 and not average.key.startswith("Mem")  # copies
    ]
    busy = sum(seconds for seconds, _, _ in kernels)
    largest = sorted(kernels, reverse=True)[:12]
    return {
        "share of time the GPU computes": round(busy / model.history_.seconds, 3),
        "milliseconds a step, computing": round(1000 * busy / model.history_.n_steps, 2),
        "milliseconds a step": round(1000 * model.history_.seconds / model.history_.n_steps, 2),
        "kernels": [f"{s:.3f} s in {n} calls of {name}" for s, n, name in largest],
    }


def describe_training(model: Neural, device: str) -> dict[str, Any]:
    """Return what training took: seconds, waiting, steps, and memory if on a GPU."""
    results: dict[str, Any] = {
        "seconds of training": round(model.history_.seconds, 2),
        "seconds waiting for batches": round(model.history_.waiting, 2),
        "steps": model.history_.n_steps,
    }
    if device == "cuda":
        import torch

        results["GiB of GPU memory"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return results
