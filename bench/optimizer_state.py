"""What coarser optimizer state costs: losses, precision, bytes.

    python -m bench.optimizer_state DATA --model glas --seeds 3 --set preset=fast

Trains a model once for each form and seed on the training split; prints a line for each: P@1 and
nDCG@5 on the test split, the loss of the last tenth of the steps, by how much losses differ from
those of float32 at most, bytes that the optimizers remember, CPU seconds.
"""

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from longtail import data as datasets
from longtail.data.dataset import Dataset
from longtail.evaluation.metrics import evaluate
from longtail.models.registry import get_model_class
from longtail.training import loop
from longtail.training.history import Clock
from longtail.training.moments import OptimizerState


class Noted:
    """Losses of all steps and the bytes that optimizers remember, noted while inside."""

    def __enter__(self) -> "Noted":
        """Begin to note."""
        self.losses: list[float] = []
        self.n_bytes = 0
        self.count, self.finish = Clock.count, loop._Run.finish

        def count(clock: Clock, loss: float, n_documents: int) -> None:
            self.losses.append(loss)
            self.count(clock, loss, n_documents)

        def finish(run: loop._Run) -> None:
            memories = [memory for each in run.optimizers for memory in each.state.values()]
            tensors = [value for memory in memories for value in memory.values()]
            self.n_bytes = max(self.n_bytes, sum(tensor.nbytes for tensor in tensors))
            self.finish(run)

        Clock.count, loop._Run.finish = count, finish  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        """Note no more."""
        Clock.count, loop._Run.finish = self.count, self.finish  # type: ignore[method-assign]


def measure(
    name: str, train: Dataset, test: Dataset, settings: dict[str, Any]
) -> tuple[dict[str, Any], list[float]]:
    """Train; return what came of it, and all losses."""
    with Noted() as noted:
        start = time.process_time()
        model = get_model_class(name).from_settings(settings).fit(train)
        took = time.process_time() - start
    found = evaluate(model.predict(test, k=5), test.Y)
    late = noted.losses[-max(1, len(noted.losses) // 10) :]
    return {
        **{metric: round(found[metric], 2) for metric in ("P@1", "nDCG@5")},
        "late loss": round(float(np.mean(late)), 5),
        "bytes": noted.n_bytes,
        "CPU seconds": round(took, 1),
    }, noted.losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", default="glas")
    parser.add_argument("--forms", default=",".join(get_args(OptimizerState)[:3]))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--documents", type=int, help="of training; all unless given")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args(arguments)
    train, test = datasets.load(given.data)
    if given.documents:
        train = train.take(np.arange(min(given.documents, train.n_documents)))
    settings = dict(pair.split("=", 1) for pair in given.set)
    for seed in range(given.seeds):
        first: list[float] = []
        for form in given.forms.split(","):
            own = {**settings, "optimizer_state": form, "seed": str(seed)}
            found, losses = measure(given.model, train, test, own)
            first = first or losses
            apart = np.abs(np.array(losses) / np.array(first) - 1).max()
            line = {"form": form, "seed": seed, **found, "largest change of a loss": float(apart)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
