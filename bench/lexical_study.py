"""What `lexical` finds alone, and what it adds to a fusion of linear and knn.

    python -m bench.lexical_study DATA [--documents 50000]

A fifth of the training documents is held out; the test split is not looked at. All models learn
from the others. Times are CPU seconds on one thread.
"""

import argparse
import time
from collections.abc import Mapping

import numpy as np

import longtail
from longtail.data import Dataset
from longtail.data.debian import load_debian
from longtail.evaluation.metrics import contains_pairs
from longtail.models import get_model_class
from longtail.topk import TopK

FUSIONS = ("linear,knn", "linear,knn,lexical")
FOUND_IN = (10, 50)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description="What lexical adds on held-out documents.")
    parser.add_argument("data", help="a data set of texts, or debian")
    parser.add_argument("--documents", type=int, help="draw so many, at random")
    asked = parser.parse_args()
    data = (load_debian() if asked.data == "debian" else longtail.load(asked.data)).train
    if asked.documents:
        drawn = np.random.default_rng(5).permutation(len(data))[: asked.documents]
        data = data.take(np.sort(drawn))
    longtail.set_threads(1)
    kept, held = data.split(0.2, seed=7)
    for name in ("lexical", "linear", "knn"):  # compiled code is made now, not when time counts
        get_model_class(name)().fit(kept.take(np.arange(200))).predict(held.take(np.arange(9)))
    print(f"{len(kept):,} documents to learn from, {len(held):,} held out")
    try_model("lexical", {}, kept, held)
    for members in FUSIONS:
        try_model("fusion", {"members": members}, kept, held)


def try_model(name: str, settings: Mapping[str, str], kept: Dataset, held: Dataset) -> None:
    """Train a model, predict, and print what it reaches."""
    began = time.process_time()
    model = get_model_class(name).from_settings(settings).fit(kept)
    trained = time.process_time()
    top = model.predict(held, k=max(FOUND_IN))
    took = time.process_time() - trained
    report = longtail.evaluate(top, held, train=kept)
    precision, psp = (
        " / ".join(f"{report[f'{metric}@{k}']:.1f}" for k in (1, 3, 5)) for metric in ("P", "PSP")
    )
    found = " / ".join(f"{recall(top, held, k):.1f}" for k in FOUND_IN)
    print(
        f"{settings.get('members', name)}: P@1/3/5 {precision}, PSP@1/3/5 {psp}, labels found "
        f"among 10 / 50: {found}, trained in {trained - began:.1f} s, "
        f"{len(held) / took:,.0f} documents/s"
    )


def recall(top: TopK, held: Dataset, k: int) -> float:
    """Return the share of all right labels that are among the first k."""
    labels = top.labels[:, :k]
    documents, places = np.nonzero(labels >= 0)
    hits = contains_pairs(held.Y, documents, labels[documents, places])
    return float(100 * hits.sum() / held.Y.nnz)


if __name__ == "__main__":
    main()
