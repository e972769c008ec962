"""Training with Amazon-3M's number of labels on one GPU: speed, memory, and how busy it is.

    python -m bench.many_labels attention-xml --documents 200000
    python -m bench.many_labels glas --documents 200000 --set dim=1024

Made-up documents (see bench.made_up) with 36 labels and about 100 words each, as Amazon-3M has
them, 2,812,281 labels in all. A part of the 1,717,899 documents is enough: every step takes the
same memory, and what an epoch of all of them would take is told by the speed. Labels lie on a
line, so attention-xml gets the tree that cuts it; building one is not measured, nor is the search
index of glas. Where the GPU spends its time comes from a second, profiled training on fewer
documents.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bench import gpu_time
from bench.made_up import SCALES, WORDS_OF_A_STRETCH, _draw_places, _draw_ranks
from longtail.labels.pairs import thin_labels
from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.model import AttentionXML
from longtail.models.glas.model import GLaS
from longtail.models.neural import Neural
from longtail.progress import SILENT, Silent
from longtail.runtime.parallel import n_threads
from longtail.runtime.rows import weigh_rows
from longtail.text.tokens import SPECIAL, TokenRows

DOCUMENTS, LABELS = 1_717_899, 2_812_281  # of Amazon-3M
LABELS_EACH, USUAL_WORDS, MOST_WORDS, N_WORDS = 36, 80, 500, 300_000
BLOCK = 10_000  # documents made at a time
PROFILED = 20_000
N_WARM, WARM_LABELS = 2_000, 100_000


class MadeUp(NamedTuple):
    """Documents as words in their order, and their labels."""

    tokens: TokenRows
    Y: sp.csr_matrix

    def take(self, n: int) -> "MadeUp":
        """Return the first ones."""
        return MadeUp(self.tokens.take(np.arange(n)), self.Y[:n])

    def count_words(self) -> sp.csr_matrix:
        """Return a row for each document: how often it holds each word."""
        data = np.ones(len(self.tokens.tokens), np.float32)
        shape = (self.tokens.n_documents, len(SPECIAL) + N_WORDS)
        X = sp.csr_matrix((data, self.tokens.tokens, self.tokens.start), shape=shape)
        X.sum_duplicates()
        return X


def make_up(n_documents: int, n_labels: int) -> MadeUp:
    """Make documents on all cores, the first ones the same however many there are."""
    shared = np.random.default_rng(0)
    words = [
        _draw_ranks(shared, N_WORDS, (scale, WORDS_OF_A_STRETCH), power=0.5) for scale in SCALES
    ]

    def make_block(first: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        rng = np.random.default_rng([1, first])
        n = min(BLOCK, n_documents - first)
        places = _draw_places(rng, n, LABELS_EACH)
        drawn = rng.lognormal(np.log(USUAL_WORDS), 0.6, n)
        lengths = drawn.clip(5, MOST_WORDS).astype(np.int64)
        owners = np.repeat(np.arange(n), lengths)
        near = places[owners, rng.integers(LABELS_EACH, size=len(owners))]
        tokens = _draw_ranks(rng, N_WORDS, (1, len(owners)))[0]
        kinds = rng.integers(len(SCALES) + 1, size=len(owners))
        for kind, (scale, own) in enumerate(zip(SCALES, words, strict=True)):
            here = np.flatnonzero(kinds == kind)
            which = rng.integers(WORDS_OF_A_STRETCH, size=len(here))
            tokens[here] = own[(near[here] * scale).astype(np.int32), which]
        return lengths, tokens + np.int32(len(SPECIAL)), (places * n_labels).astype(np.int32)

    with ThreadPoolExecutor(n_threads()) as pool:
        blocks = list(pool.map(make_block, range(0, n_documents, BLOCK)))
    lengths, tokens, labels = (np.concatenate(part) for part in zip(*blocks, strict=True))
    start = np.concatenate(([0], np.cumsum(lengths)))
    indptr = np.arange(0, labels.size + 1, LABELS_EACH)
    ones = np.ones(labels.size, np.float32)
    Y = sp.csr_matrix((ones, labels.ravel(), indptr), shape=(n_documents, n_labels))
    Y.sum_duplicates()
    Y.data[:] = 1
    return MadeUp(TokenRows(start, tokens), Y)


def cut_line(n_labels: int, branching: int, levels: int) -> LabelTree:
    """Return the tree of labels that lie on a line, neighbours together."""
    sizes = [n_labels]
    for _ in range(levels):
        sizes.insert(0, -(-sizes[0] // branching))
    children = [np.array([0, sizes[0]], np.int32)]
    for above, below in pairwise(sizes):
        children.append(np.minimum(np.arange(above + 1) * branching, below).astype(np.int32))
    return LabelTree(children, np.arange(n_labels, dtype=np.int32))


def train_attention(data: MadeUp, settings: dict[str, Any]) -> Neural:
    """Train all levels of a tree, one epoch each."""
    from longtail.models.attention_xml.training import (
        LevelDocuments,
        TreeTrainer,
        choose_width,
    )

    n, n_labels = data.Y.shape
    sized = AttentionXML.from_settings({"epochs": 1, "inner_epochs": 1, **settings})
    model = sized.sized_for(DOCUMENTS, "cuda")
    tree = cut_line(n_labels, model.branching, model._n_levels(n_labels))
    width = model.candidates or choose_width(data.Y, tree, model.branching, model.compared)
    hidden, word_dim = model._choose_sizes(DOCUMENTS)
    shape = model._shape(len(SPECIAL) + N_WORDS, word_dim, hidden, n_labels)
    config = model.make_config(
        1, model.choose_batch(DOCUMENTS), clip=model.clip, averaging="mean", averaging_start=0.75
    )
    known = LevelDocuments.of(data.tokens, data.Y, np.arange(n))
    trainer = TreeTrainer(model, config, 1, shape, width, None, known, None)
    trainer.train_tree(0, tree, _Timed())
    model.history_ = trainer.history
    return model


def train_glas(data: MadeUp, settings: dict[str, Any]) -> Neural:
    """Train the network and the labels' vectors for one epoch."""
    model = GLaS.from_settings({"epochs": 1, **settings})
    X = data.count_words()
    pairs = thin_labels(data.Y, model.seed, SILENT) if model.regularizer == "glas" else data.Y
    rows = weigh_rows(X, model.weigh(X), model.normalize)
    task = model.prepare(rows, data.Y, pairs, "cuda" if settings["device"] == "cuda" else "cpu")
    config = model.make_config(1, model.choose_batch(DOCUMENTS))
    model.train_task(task, config, X, data.Y, SILENT)
    return model


class _Timed(Silent):
    """Says on stderr when each level begins."""

    def say(self, line: str) -> None:
        print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)


TRAIN: dict[str, Callable[[MadeUp, dict[str, Any]], Neural]] = {
    "attention-xml": train_attention,
    "glas": train_glas,
}


def measure(name: str, data: MadeUp, settings: dict[str, Any], n_profiled: int) -> dict[str, Any]:
    """Return what a training takes, and what an epoch of all documents would."""
    n, device = data.Y.shape[0], settings["device"]
    n_labels = data.Y.shape[1]  # fewer take another way through glas
    n_warm = min(n_labels, WARM_LABELS) if name == "attention-xml" else n_labels
    few = make_up(min(n, N_WARM), n_warm)
    TRAIN[name](few, settings)  # compiles what is compiled on first use
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    model = TRAIN[name](data, settings)
    took = time.perf_counter() - start
    results: dict[str, Any] = {
        "model": name,
        "settings": settings,
        "documents": n,
        "labels": data.Y.shape[1],
        "seconds in all": round(took, 1),
        **gpu_time.describe_training(model, device),
        "minutes in all for every document": round(took * DOCUMENTS / n / 60, 1),
    }
    if device == "cuda":
        results["GiB of GPU memory reserved"] = round(torch.cuda.max_memory_reserved() / 2**30, 1)
    if device == "cuda" and n_profiled:
        torch.cuda.empty_cache()
        found = gpu_time.profile(lambda: TRAIN[name](data.take(min(n, n_profiled)), settings))
        step = 1000 * model.history_.seconds / model.history_.n_steps
        busy = found["milliseconds a step, computing"] / step
        results |= found | {
            "milliseconds a step, not profiled": round(step, 2),
            "share of such a step the GPU computes": round(busy, 3),
        }
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=sorted(TRAIN))
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--labels", type=int, default=LABELS)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--profiled", type=int, default=PROFILED, help="documents; 0: none")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args(arguments)
    settings = {"device": given.device} | dict(pair.split("=", 1) for pair in given.set)
    start = time.perf_counter()
    data = make_up(given.documents, given.labels)
    made = round(time.perf_counter() - start, 1)
    results = measure(given.model, data, settings, given.profiled)
    print(json.dumps({"seconds to make documents": made, **results}, indent=2))


if __name__ == "__main__":
    main()
