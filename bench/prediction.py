"""`python -m bench.prediction MODEL DATA`: where the time of a fusion's predictions goes.

The test texts (or the first `--documents` of them) are labelled at once, then the first 400 one by
one, each three times; the quickest round counts. CPU seconds are those of all threads together, so
that a busy machine matters less than by the clock. Then each step is timed by itself. The last line
is a fingerprint of labels and scores: two versions that print the same one give the same bits.
"""

import argparse
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import longtail
from bench.table import markdown
from longtail.models.fusion import candidates
from longtail.models.fusion.model import Fusion
from longtail.models.fusion.stacking import Stacker

SINGLE, ROUNDS = 400, 3
STEPS = ("read_rows", "predict_rows", "score_rows", "read_texts", "predict_texts", "score_texts")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.prediction", description=__doc__)
    parser.add_argument("model", help="a saved fusion that reads texts")
    parser.add_argument("data", help="a data set with a test part")
    parser.add_argument("--documents", type=int, default=4096, metavar="N")
    args = parser.parse_args(arguments)
    model, (_, test) = longtail.load_model(args.model), longtail.load(args.data)
    if not isinstance(model, Fusion) or test is None or test.texts is None:
        raise SystemExit("a fusion and a test part of texts are needed")
    texts = list(test.texts[: args.documents])
    model.predict(texts[:300])  # compiles what is not compiled yet
    model.predict(texts[:1])
    cpu, wall = min(_time(lambda: model.predict(texts)) for _ in range(ROUNDS))
    one = min(_time_single(model, texts[:SINGLE]) for _ in range(ROUNDS))
    print(f"{len(texts):,} at once: {len(texts) / wall:,.0f}/s, {2 * len(texts) / cpu:,.0f} in two")
    print(f"seconds of the processor; one by one: p50 {one[0]:.2f} ms, {one[1]:.2f} ms of it\n")
    print(markdown(["step", "µs of the processor for a document"], _time_steps(model, texts)))
    top = model.predict(texts)
    print(hashlib.sha256(top.labels.tobytes() + top.scores.tobytes()).hexdigest()[:16])


def _time(work: Callable[[], Any]) -> tuple[float, float]:
    """Return what something takes: CPU seconds, and seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _time_single(model: Fusion, texts: Sequence[str]) -> tuple[float, float]:
    """Return the median milliseconds of a single text, and the mean of the CPU's."""
    times = np.array([_time(lambda text=text: model.predict([text])) for text in texts]) * 1000
    return float(np.median(times[:, 1])), float(times[:, 0].mean())


def _time_steps(model: Fusion, texts: Sequence[str]) -> list[list[str]]:
    """Return a row for each step, the longest first."""
    taken: dict[str, float] = defaultdict(float)

    def watch(owner: Any, name: str, step: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            found = function(*args, **named)
            taken[step] += time.process_time() - began
            return found

        setattr(owner, name, timed)

    watch(model.features_, "transform", "texts to rows")
    for name, member in model.members_.items():
        ending = "rows" if member.trained_on == "rows" else "texts"
        for step in STEPS:
            if step.endswith(ending):
                watch(member, step, f"{name}: {step}")
    watch(candidates, "unite", "unite the proposed")
    watch(Stacker, "rank", "stack")
    cpu, _ = _time(lambda: model.predict(texts))
    taken["all of it"] = cpu
    ordered = sorted(taken, key=lambda step: -taken[step])
    return [[step, f"{1e6 * taken[step] / len(texts):.0f}"] for step in ordered]


if __name__ == "__main__":
    main()
