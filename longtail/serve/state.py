"""State: what all requests share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from longtail.serve.batching import Batcher, Limits
from longtail.serve.feedback import FeedbackStore
from longtail.serve.hosting import Hosted
from longtail.serve.metrics import Metrics


@dataclass
class State:
    """The models, their queues, and where feedback goes.

    Attributes:
        hosted: the models by name.
        limits: how much clients may ask for.
        metrics: what is counted.
        feedback: where feedback goes; None if it is not kept.
        batchers: the queue of each model; made when the server starts.
    """

    hosted: Mapping[str, Hosted]
    limits: Limits
    metrics: Metrics
    feedback: FeedbackStore | None
    batchers: dict[str, Batcher]


def state_of(request: Request) -> State:
    """Return what the requests of this server share."""
    return cast(State, request.app.state.longtail)
