"""How quick AttentionXML is: training, the share of it in which a GPU computes, and prediction.

    python -m bench.attention_speed DATA --device cuda --set epochs=3
    python -m bench.attention_speed --labels 500000 --documents 200000 --set epochs=1

The second takes made-up texts (see bench.made_up), whose accuracy only shows that something was
learned. The speed of training is that after loading: a small warm-up first compiles what is
compiled on first use. Where a GPU spends its time comes from one more epoch, profiled, since
profiling slows training down. Prediction is timed in one batch on the device, then text by text on
two threads of the CPU. DATA's test split, if it has one, is what is predicted; the accuracy is not
measured.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse as sp

import longtail
from bench import gpu_time
from bench.made_up import make_up
from longtail.data.dataset import Dataset
from longtail.evaluation.metrics import evaluate
from longtail.models.attention_xml.model import AttentionXML
from longtail.runtime.parallel import set_threads
from longtail.training.graphs import StepGraphs

N_WARM, N_TEST, N_SINGLE, THREADS = 2_000, 2_000, 200, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA", nargs="?")
    parser.add_argument("--labels", type=int, help="make up texts with so many labels")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--no-graphs", action="store_true", help="start each kernel by itself")
    parser.add_argument("--documents", type=int, help="of the training split; all by default")
    given = parser.parse_args(arguments)
    if (given.data is None) == (given.labels is None):
        parser.error("give either DATA or --labels")
    if given.no_graphs:
        StepGraphs.of = lambda *given: None  # type: ignore[assignment,method-assign]
    settings = {"device": given.device} | dict(pair.split("=", 1) for pair in given.set)
    train, test = read(given.data) if given.data else make_up_texts(given.labels, given.documents)
    train = train.take(np.arange(min(given.documents or len(train), len(train))))
    model, results = measure_training(train, settings, profile=not given.no_profile)
    results |= measure_prediction(model, test)
    if given.data is None:
        results["P@1"] = round(evaluate(model.predict(test), test)["P@1"], 2)
    print(json.dumps(results, indent=2))


def read(path: Path) -> tuple[Dataset, Dataset]:
    """Return the documents to train on and those to predict."""
    train, test = longtail.load(path)
    if train.texts is None:
        raise SystemExit(f"{path} holds rows of features; attention-xml needs texts")
    return train, train if test is None else test


def make_up_texts(n_labels: int, n_documents: int | None) -> tuple[Dataset, Dataset]:
    """Return made-up texts; every feature is a word."""
    made = make_up(n_documents=n_documents or 100_000, n_labels=n_labels, n_test=N_TEST)
    names = [str(label) for label in range(n_labels)]
    return (
        Dataset(Y=made.Y, label_names=names, texts=write_texts(made.X)),
        Dataset(Y=made.test_Y, label_names=names, texts=write_texts(made.test_X)),
    )


def write_texts(X: sp.csr_matrix) -> list[str]:
    """Return a text for each row, with a word for each of its features."""
    words = np.array([f"w{feature}" for feature in X.indices.tolist()], object)
    return [
        " ".join(words[begin:end]) for begin, end in zip(X.indptr[:-1], X.indptr[1:], strict=True)
    ]


def measure_training(
    train: Dataset, settings: dict[str, Any], *, profile: bool
) -> tuple[AttentionXML, dict[str, Any]]:
    """Train; return the model and what there is to report."""
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
        step = 1000 * model.history_.seconds / model.history_.n_steps
        results["milliseconds a step, not profiled"] = round(step, 2)
        busy = results["milliseconds a step, computing"] / step
        results["share of such a step the GPU computes"] = round(busy, 3)
    return model, results


def rate_of_training(model: AttentionXML, n_documents: int) -> float:
    """Return how many documents a second of training takes, on whatever level of a tree."""
    n_levels = sum(each.tree.depth for each in model.trees_)
    n_known = n_documents - round(n_documents * model.valid)
    return n_known * model.epochs * n_levels / model.history_.seconds


def make(settings: dict[str, Any], **more: Any) -> AttentionXML:
    """Return an untrained model."""
    return AttentionXML.from_settings({**settings, **more})


def choose_device(name: str) -> str:
    """Return "cpu" or "cuda"."""
    from longtail.training.processes import choose_device

    return choose_device(name).type


def measure_prediction(model: AttentionXML, test: Dataset) -> dict[str, float]:
    """Return documents per second in a batch, and milliseconds for one text on a CPU."""
    texts = list(test.texts or [])
    model.predict(texts[:100])  # what is compiled or moved on first use
    start = time.perf_counter()
    model.predict(texts)
    rate = len(texts) / (time.perf_counter() - start)
    p50, p99 = np.percentile(time_single(model, texts[:N_SINGLE]), [50, 99]).tolist()
    return {
        "predicted documents per second": round(rate),
        "one text p50 ms": round(p50, 2),
        "one text p99 ms": round(p99, 2),
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
