"""How well labels without documents are found by their names, after `longtail labels DIR add`.

Labels are hidden from training: no training document carries them. Then they are added by name to
the trained models, which label documents that do carry them.

    python -m bench.unseen_study --data DATA/yso --documents 25000 --models lexical,fusion
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from longtail import load
from longtail.data import Dataset
from longtail.evaluation.metrics import evaluate, find_hits
from longtail.models import get_model_class
from longtail.models.base import Model
from longtail.models.relabel import add_label

MEMBERS = "linear,lexical"


def hide_labels(data: Dataset, n_hidden: int, seed: int) -> tuple[Dataset, Dataset, list[str]]:
    """Return documents without some labels, others with all, and the labels."""
    train, held_out = data.split(0.2, seed)
    counts = held_out.count_labels()
    rng = np.random.default_rng(seed)
    hidden = set(rng.choice(np.flatnonzero(counts > 0), n_hidden, replace=False).tolist())
    names = data.label_names
    shown = [None if i in hidden else name for i, name in enumerate(names)]
    return train.rename(shown), held_out, [names[i] for i in sorted(hidden)]


def measure(model: Model, test: Dataset, hidden: list[str]) -> dict[str, float]:
    """Return P@1 on all documents, and the share of hidden pairs that are found."""
    top = model.predict(test, 10)
    known = set(model.label_names_)
    kept = test.rename([name if name in known else None for name in test.label_names])
    only = test.rename([name if name in hidden else None for name in test.label_names])
    Y = only.align(model.label_names_).Y
    found = {
        f"recall@{k} of the hidden": 100 * float(find_hits(top.first(k), Y).sum() / Y.nnz)
        for k in (1, 5, 10)
    }
    return {"P@1": evaluate(top, kept, k=1)["P@1"], **found}


def main() -> None:
    """Print a line for each model, before and after the hidden labels are added."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=25_000)
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--models", default="lexical,fusion")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = load(options.data).train
    rng = np.random.default_rng(options.seed)
    some = data.take(np.sort(rng.choice(len(data), min(len(data), options.documents), False)))
    train, test, hidden = hide_labels(some, options.hidden, options.seed)
    for name in options.models.split(","):
        given = {"members": MEMBERS} if name == "fusion" else {}
        model = get_model_class(name)(**given, seed=options.seed).fit(train)
        lines = {"before": measure(model, test, hidden)}
        for label in hidden:
            add_label(model, label)
        lines["after"] = measure(model, test, hidden)
        for when, found in lines.items():
            shown = ", ".join(f"{key} {value:.1f}" for key, value in found.items())
            sys.stdout.write(f"{name} {when}: {shown}\n")
        sys.stdout.write(f"{name}: {model.say_unseen()}\n")


if __name__ == "__main__":
    main()
