"""State: what all requests share."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from longtail.serve.batching import Batcher, Limits
from longtail.serve.feedback import FeedbackStore
from longtail.serve.hosting import Hosted
from longtail.serve.metrics import Metrics

READERS = 2  # processes that read .docx and .pdf files at once
MOST_FILES = 8  # that are read or wait for it, each of which lies in memory


@dataclass
class State:
    """The models, their queues, and where feedback goes.

    Attributes:
        hosted: the models by name.
        limits: how much clients may ask for.
        metrics: what is counted.
        feedback: where feedback goes; None if it is not kept.
        batchers: the queue of each model; made when the server starts.
        readers: lets so many files be read at once.
        n_files: that are read or wait for it.
    """

    hosted: Mapping[str, Hosted]
    limits: Limits
    metrics: Metrics
    feedback: FeedbackStore | None
    batchers: dict[str, Batcher]
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))
    n_files: int = 0


def state_of(request: Request) -> State:
    """Return what the requests of this server share."""
    return cast(State, request.app.state.longtail)
