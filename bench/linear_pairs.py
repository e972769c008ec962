"""Whether pairs of words pay for `linear`, and whether a quick trial would have told.

    python -m bench.linear_pairs DATA/stackexchange DATA/yso bundled --words 10 40 --seeds 5

Pairs pay if words and pairs are better than words alone on held-out documents, in the mean of P@1,
3, 5 and PSP@1, 3, 5, with the preset `fast` on all other training documents. A trial does the same
with a few of them: it draws documents, or labels with all documents that carry one (and no other
label), learns from four fifths and measures on the rest. --words also takes the texts of the first
set cut to so many words: other data, of which it is not known either. CPU s are those of a trial
(both trainings, and reading), in brackets as a share of those of the default `linear`.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import longtail
from bench.table import markdown
from bench.trials import PRECISION, TAIL, read_part
from longtail.data.dataset import Dataset

SIZES = (2000, 8000)


class Gain(NamedTuple):
    """What pairs add to the mean of the metrics, and the CPU seconds it took to find out."""

    points: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every set, print a table of each."""
    parser = argparse.ArgumentParser(prog="python -m bench.linear_pairs", description=__doc__)
    parser.add_argument("data", nargs="+", help="folders of texts, or bundled")
    parser.add_argument("--words", nargs="*", type=int, default=[], help="cut texts to so many")
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--seeds", type=int, default=5, help="trials of each size")
    args = parser.parse_args(arguments)
    for place, data in enumerate(args.data):
        train, held = read_part(data, "valid", args.documents)
        study(Path(data).name, train, held, args.seeds)
        for n_words in args.words if place == 0 else []:
            name = f"{Path(data).name}, {n_words} words"
            study(name, cut(train, n_words), cut(held, n_words), args.seeds)


def cut(data: Dataset, n_words: int) -> Dataset:
    """Return the documents with the first words of their texts."""
    texts = [" ".join(text.split()[:n_words]) for text in data.texts or []]
    return Dataset(data.Y, data.label_names, texts=texts)


def study(name: str, train: Dataset, held: Dataset, n_seeds: int) -> None:
    """Print what pairs gain on a set, and what trials say."""
    begun = time.process_time()
    longtail.Linear.from_settings({}).fit(train)
    usual = time.process_time() - begun
    true = measure(train, held)
    print(f"\n{name}: pairs gain {true.points:+.2f}; the default trains {usual:.1f} CPU s\n")
    rows = []
    for by in ("documents", "labels"):
        for size in SIZES:
            if size > len(train) // 2:
                continue
            found = [run_trial(train, by, size, seed) for seed in range(n_seeds)]
            points = [each.points for each in found]
            right = sum((each > 0) == (true.points > 0) for each in points)
            seconds = statistics.fmean(each.seconds for each in found)
            spread = statistics.stdev(points) if n_seeds > 1 else 0.0
            said = f"{statistics.fmean(points):+.2f} ± {spread:.2f}"
            cost = f"{seconds:.1f} ({seconds / usual:.2f})"
            rows.append([f"{size:,} {by}", said, f"{right} of {n_seeds}", cost])
    print(markdown(["drawn", "gain by trial", "right", "CPU s"], rows), flush=True)


def run_trial(train: Dataset, by: str, size: int, seed: int) -> Gain:
    """Return what pairs gain on some of the documents."""
    rng = np.random.default_rng(seed)
    drawn = draw_documents(train, size, rng) if by == "documents" else draw_labels(train, size, rng)
    return measure(*drawn.split(0.2, seed=seed))


def draw_documents(train: Dataset, size: int, rng: np.random.Generator) -> Dataset:
    """Return some documents."""
    return train.take(np.sort(rng.permutation(len(train))[:size]))


def draw_labels(train: Dataset, size: int, rng: np.random.Generator) -> Dataset:
    """Return all documents of some labels, about as many as wanted, with these labels alone."""
    columns = train.Y.tocsc()
    counts = np.diff(columns.indptr)
    # a label of most documents would leave no room for others
    few = np.flatnonzero((counts > 0) & (counts <= size // 4))
    is_in, drawn = np.zeros(len(train), bool), []
    for label in rng.permutation(few if len(few) else train.n_labels):
        is_in[columns.indices[columns.indptr[label] : columns.indptr[label + 1]]] = True
        drawn.append(label)
        if is_in.sum() >= size:
            break
    kept = np.sort(drawn)
    some = train.take(np.flatnonzero(is_in))
    names = [train.label_names[label] for label in kept]
    return Dataset(some.Y[:, kept].tocsr(), names, texts=some.texts)


def measure(train: Dataset, held: Dataset) -> Gain:
    """Return by how much words and pairs are better than words alone."""
    begun = time.process_time()
    words, pairs = (measure_ngrams(train, held, ngrams) for ngrams in (1, 2))
    return Gain(pairs - words, time.process_time() - begun)


def measure_ngrams(train: Dataset, held: Dataset, ngrams: int) -> float:
    """Return the mean of the metrics."""
    model = longtail.Linear.from_settings({"preset": "fast", "tfidf.ngrams": ngrams}).fit(train)
    found = longtail.evaluate(model.predict(held), held, train=train)
    return statistics.fmean(found[name] for name in (*PRECISION, *TAIL))


if __name__ == "__main__":
    main()
