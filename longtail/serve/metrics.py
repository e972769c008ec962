"""Metrics: what the server counts, as Prometheus reads it.

With several workers, each counts in files of a folder that they share, and whichever is asked adds
them up; prometheus-client does so where an environment variable names the folder.
"""

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from longtail.serve.workers import METRICS_FOLDER

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters of one server."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._registry = CollectorRegistry()
        # Looking for a counter by its labels takes longer than counting.
        self._found: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "longtail_requests",
            "Requests that were answered",
            ["method", "path", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "longtail_request_seconds",
            "Time from a request to the end of its answer",
            ["path"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._sizes = Histogram(
            "longtail_batch_documents",
            "Documents that were labelled together",
            ["model"],
            buckets=SIZES,
            registry=self._registry,
        )
        self._waiting = Gauge(
            "longtail_queue_documents",
            "Documents that wait",
            ["model"],
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._versions = Gauge(
            "longtail_model_info",
            "How many workers answer with this version of a model",
            ["model", "version"],
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer; `path` is that of the route, so that there are few."""
        key = method, path, status
        if key not in self._found:
            counter = self._requests.labels(method, path, str(status))
            self._found[key] = counter, self._seconds.labels(path)
        counter, histogram = self._found[key]
        counter.inc()
        histogram.observe(seconds)

    def queue_of(self, model: str) -> Callable[[float], None]:
        """Return what is to be told how many documents wait."""
        return self._waiting.labels(model).set

    def batches_of(self, model: str) -> Callable[[float], None]:
        """Return what is to be told the size of each batch."""
        return self._sizes.labels(model).observe

    def set_version(self, model: str, version: str, before: str | None = None) -> None:
        """Note which version of a model answers from now on."""
        if before is not None and METRICS_FOLDER in os.environ:
            self._versions.labels(model, before).set(0)  # files cannot forget it
        elif before is not None:
            self._versions.remove(model, before)
        self._versions.labels(model, version).set(1)

    def write(self) -> bytes:
        """Return all of it."""
        if METRICS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
        return generate_latest(everybody)
