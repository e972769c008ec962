"""How far Rank-AE's channel attention is from a constant, before and after training.

    python -m bench.rank_ae_attention DATA/stackexchange --form gain=1 --form gain=100 \
        --form attention=false --documents 4000 --out attention.jsonl

For each form, `key=value,…`, a model is trained on four fifths of the training split and looked at
on the others. Over the words of up to 500 documents it prints the mean of the attention a, its
standard deviation, that of a word's mean over the channels, both once more before training, and
Spearman's rank correlation, within documents, of what `explain` shows with the words' own weights.
A correlation of 1 means that the picture shows these weights (tf-idf, for texts) and no attention.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import longtail
from bench.table import markdown
from longtail.models.rank_ae.model import RankAE
from longtail.models.rank_ae.reader import attend_row, weigh_cells
from longtail.models.rank_ae.sequence import attend_states, cut_texts, run_bilstm
from longtail.runtime.rows import view_rows

LOOKED_AT = 500  # documents
FEWEST_WORDS = 5  # of a document whose ranks are compared
UNTRAINED = {"epochs": 1, "learning_rate": 1e-9}
MEASURES = ("mean", "spread", "by word", "spread at start", "by word at start", "rank", "P@1")


def measure_attention(model: RankAE, held: longtail.Dataset) -> dict[str, float]:
    """Return the mean and the spreads of the attention, and what `explain` shares with tf-idf."""
    documents = held.take(np.arange(min(LOOKED_AT, len(held))))
    X = model._rows_of(documents)
    rows, seen, alike = view_rows(X), [], []
    for i in range(X.shape[0]):
        own = weigh_cells(model.reader_, rows, i, model._options)
        if model.bilstm_ is not None and model.features_ is not None:
            words = cut_texts(model.features_, [documents.texts[i]], model.max_length).tokens
            states = run_bilstm(model.reader_, model.bilstm_, words)
            A = attend_states(model.reader_, states, model._options)
            place = np.searchsorted(X[i].indices, words)
            shown = np.bincount(place, A.mean(axis=1), minlength=X[i].nnz)
        else:
            A = attend_row(model.reader_, rows, i, model._options)
            shown = model.explain_row(X[i], None)
        seen.append(A)
        if X[i].nnz >= FEWEST_WORDS:
            alike.append(spearmanr(shown, own)[0])
    every = np.concatenate(seen)
    return {
        "mean": float(every.mean()),
        "spread": float(every.std()),
        "by word": float(every.mean(axis=1).std()),
        "rank": float(np.nanmean(alike)) if alike else float("nan"),
    }


def measure(path: Path, form: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one form, and look at it before and after."""
    train, held = longtail.load(path).train.split(0.2)
    if args.documents and args.documents < len(train):
        chosen = np.random.default_rng(0).permutation(len(train))[: args.documents]
        train = train.take(np.sort(chosen))
    settings: dict[str, Any] = {"device": args.device, "seed": seed}
    settings |= dict(pair.split("=", 1) for pair in form.split(",") if pair)
    start = measure_attention(RankAE.from_settings({**settings, **UNTRAINED}).fit(train), held)
    begun = time.perf_counter()
    model = RankAE.from_settings(settings).fit(train)
    seconds = time.perf_counter() - begun
    report = longtail.evaluate(model.predict(held), held)
    found = measure_attention(model, held)
    found |= {f"{name} at start": start[name] for name in ("spread", "by word")}
    found["P@1"] = report["P@1"]
    figures = {name: round(value, 4) for name, value in found.items()}
    return {"data": path.name, "form": form, "seed": seed, **figures, "seconds": round(seconds, 1)}


def summarize(runs: Sequence[dict[str, Any]]) -> str:
    """Return a table of means over the seeds."""
    rows = []
    for data, form in dict.fromkeys((run["data"], run["form"]) for run in runs):
        mine = [run for run in runs if (run["data"], run["form"]) == (data, form)]
        means = [np.mean([run[name] for run in mine]) for name in MEASURES]
        rows.append([data, form or "defaults", str(len(mine)), *(f"{mean:.3f}" for mean in means)])
    return markdown(["data", "form", "seeds", *MEASURES], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every form on every set with every seed, then print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.rank_ae_attention", description=__doc__)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--form", action="append", metavar="KEY=VALUE,…")
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file, a line a run")
    args = parser.parse_args(arguments)
    runs = []
    for path in args.data:
        for form in args.form or [""]:
            for seed in range(args.seeds):
                runs.append(measure(path, form, seed, args))
                with args.out.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(json.dumps(runs[-1]), flush=True)
    print(summarize(runs))


if __name__ == "__main__":
    main()
