"""How quick AttentionXML is: training, the share of it in which a GPU computes, and prediction.

    python -m bench.attention_speed DATA --device cuda --set epochs=3

The speed of training is that after loading: a small warm-up first compiles what is compiled on
first use. Where a GPU spends its time comes from one more epoch, profiled, since profiling slows
training down. Prediction is timed in one batch on the device, then text by text on two threads of
the CPU. DATA's test part, if it has one, is what is predicted; accuracy is not looked at.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import longtail
from bench import gpu_time
from longtail.data.dataset import Dataset
from longtail.models.attention_xml import AttentionXML
from longtail.parallel import set_threads

N_WARM, N_SINGLE, THREADS = 2_000, 200, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--documents", type=int, help="of the training part; all by default")
    given = parser.parse_args(arguments)
    settings = {"device": given.device} | dict(pair.split("=", 1) for pair in given.set)
    train, test = longtail.load(given.data)
    train = train.take(np.arange(min(given.documents or len(train), len(train))))
    texts = (test or train).texts
    if texts is None:
        raise SystemExit(f"{given.data} holds rows of features; attention-xml needs texts")
    results = measure(train, texts, settings, profile=not given.no_profile)
    print(json.dumps(results, indent=2))


def measure(
    train: Dataset, texts: Sequence[str], settings: dict[str, Any], *, profile: bool
) -> dict[str, Any]:
    """Train and predict; return what there is to report."""
    device = choose_device(settings["device"])
    make(settings, epochs=1).fit(train.take(np.arange(min(N_WARM, len(train)))))
    start = time.perf_counter()
    model = make(settings).fit(train)
    results: dict[str, Any] = {
        "settings": settings,
        "documents": len(train),
        "labels": train.Y.shape[1],
        "words": model.tokens_.n_words_,
        "seconds of fit": round(time.perf_counter() - start, 2),
        **gpu_time.describe_training(model, device),
        "training documents per second": round(rate_of_training(model, len(train))),
    }
    if device == "cuda" and profile:
        results |= gpu_time.profile(lambda: make(settings, epochs=1).fit(train))
    return results | time_prediction(model, texts)


def rate_of_training(model: AttentionXML, n_documents: int) -> float:
    """Return how many documents a second of training takes, on whatever level of a tree."""
    n_levels = sum(member.tree.depth for member in model.members_)
    n_known = n_documents - round(n_documents * model.valid)
    return n_known * model.epochs * n_levels / model.history_.seconds


def make(settings: dict[str, Any], **more: Any) -> AttentionXML:
    """Return an untrained model."""
    return AttentionXML.from_settings({**settings, **more})


def choose_device(name: str) -> str:
    """Return "cpu" or "cuda"."""
    from longtail.processes import choose_device

    return choose_device(name).type


def time_prediction(model: AttentionXML, texts: Sequence[str]) -> dict[str, float]:
    """Return documents per second in a batch, and milliseconds for one text on a CPU."""
    model.predict(list(texts[:100]))  # what is compiled or moved on first use
    start = time.perf_counter()
    model.predict(list(texts))
    rate = len(texts) / (time.perf_counter() - start)
    times = time_single(model, texts[:N_SINGLE])
    return {
        "predicted documents per second": round(rate),
        "one text p50 ms": round(float(np.percentile(times, 50)), 2),
        "one text p99 ms": round(float(np.percentile(times, 99)), 2),
    }


def time_single(model: AttentionXML, texts: Sequence[str]) -> list[float]:
    """Return the milliseconds each text takes alone, by the saved and loaded model on a CPU."""
    import torch

    set_threads(THREADS)
    torch.set_num_threads(THREADS)
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        loaded = longtail.load_model(Path(folder) / "model")
    loaded.device = "cpu"
    loaded.predict(list(texts[:1]))
    times = []
    for text in texts:
        start = time.perf_counter()
        loaded.predict([text])
        times.append(1000 * (time.perf_counter() - start))
    return times


if __name__ == "__main__":
    main()
