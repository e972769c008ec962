"""What a fusion's members say of held-out documents, kept so that stacking is studied in seconds.

    python -m bench.kept_scores DATA --out FILE [--members linear,knn] [--folds 3] [--most 50]

A fifth of the training documents is set aside as a check. The others are held out in folds, as a
fusion does it (with --folds 1, a tenth of them), and members are trained on the rest; then members
trained on all of them label the check. The file holds, for each fold and last for the check, the
labels that any member proposes and all members' log-odds of them. The file is written anew after
each fold, so that a run that is stopped leaves those that are done.

DATA may be `bundled`. Its check shares no source package with the other documents, as it is with
its test split; with --grouped, held-out documents share none with those that members are trained on
either.
"""

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import longtail
from longtail.data import Dataset
from longtail.data.debian import PATH, load_debian
from longtail.models import get_model_class
from longtail.models.base import Model
from longtail.models.fusion.candidates import MOST_PROPOSED, unite
from longtail.models.fusion.training import documents_for
from longtail.text.tfidf import Tfidf

CHECKED, HELD_OUT = 0.2, 0.1
FINEST = 1e-6  # probabilities are kept from this to 1 less this


class Part(NamedTuple):
    """What members that were trained on some documents say of others.

    Attributes:
        kept, held: rows of the training documents that members had, and those they label.
        labels: (n, c) what members propose for each document; -1 is none.
        scores: (members, n, c) what each says of it.
    """

    kept: NDArray[np.int64]
    held: NDArray[np.int64]
    labels: NDArray[np.int32]
    scores: NDArray[np.float32]


def split(
    n: int, folds: int, seed: int, groups: NDArray[Any] | None = None, grouped: bool = False
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return which documents are kept and held out in each fold, and last for the check.

    Documents of one group are all in the check or all outside; in one fold too, if `grouped`.
    """
    rng = np.random.default_rng(seed)
    groups = np.arange(n) if groups is None else groups
    places = rng.permutation(int(groups.max()) + 1)[groups]
    order = np.argsort(places, kind="stable")
    n_checked = round(CHECKED * n)
    check, rest = np.sort(order[:n_checked]), order[n_checked:]
    if not grouped:
        rest = rng.permutation(rest)
    n_held = round(HELD_OUT * len(rest)) if folds == 1 else -(-len(rest) // folds)
    parts = [rest[fold * n_held : (fold + 1) * n_held] for fold in range(folds)]
    return [*((np.setdiff1d(rest, held), np.sort(held)) for held in parts), (np.sort(rest), check)]


def find_sources() -> NDArray[np.int64]:
    """Return the number of the source package of each training document of the bundled set."""
    with gzip.open(PATH, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    sources = [row["source"] for row in rows if row["part"] == "train"]
    return np.unique(sources, return_inverse=True)[1].astype(np.int64)


def load_documents(data: str) -> tuple[Dataset, sp.csr_matrix]:
    """Return the training documents, also as rows."""
    dataset = (load_debian() if data == "bundled" else longtail.load(data))[0]
    return dataset, Tfidf().fit_transform(dataset.texts or []) if dataset.X is None else dataset.X


def listen(
    models: list[Model], dataset: Dataset, X: sp.csr_matrix, held: NDArray[Any], most: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the labels, `most` of each model, that are proposed for documents; scores of all."""
    texts = dataset.texts or []
    read: list[Any] = [
        X[held] if "rows" in model.reads else [texts[i] for i in held.tolist()] for model in models
    ]
    width = min(most, dataset.n_labels)
    tops = [model.predict_documents(each, width) for model, each in zip(models, read, strict=True)]
    labels = unite([top.labels for top in tops], dataset.n_labels)
    scores = [model.score_documents(each, labels) for model, each in zip(models, read, strict=True)]
    return labels, np.stack(scores)


def write_parts(path: Path, names: list[str], parts: list[Part]) -> None:
    """Write the parts; scores as log-odds of 16 bits."""
    arrays: dict[str, Any] = {"members": np.array(names)}
    for number, part in enumerate(parts):
        p = np.clip(part.scores, FINEST, 1 - FINEST, dtype=np.float64)
        arrays[f"{number}.scores"] = np.where(part.scores > 0, np.log(p / (1 - p)), -np.inf).astype(
            np.float16
        )
        arrays[f"{number}.labels"] = part.labels.astype(np.int32)
        arrays[f"{number}.kept"], arrays[f"{number}.held"] = part.kept, part.held
    np.savez_compressed(path, **arrays)


def read_parts(path: Path) -> tuple[list[str], list[Part]]:
    """Return the members' names, and the parts that were written."""
    with np.load(path) as file:
        n_parts = sum(name.endswith(".held") for name in file)
        parts = [
            Part(
                file[f"{number}.kept"],
                file[f"{number}.held"],
                file[f"{number}.labels"],
                (1 / (1 + np.exp(-file[f"{number}.scores"].astype(np.float32)))).astype(np.float32),
            )
            for number in range(n_parts)
        ]
        return [str(name) for name in file["members"]], parts


def main(arguments: list[str] | None = None) -> None:
    """Train the members and write what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--members", default="linear,knn")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--most", type=int, default=MOST_PROPOSED, help="labels of each member")
    parser.add_argument("--grouped", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    dataset, X = load_documents(given.data)
    names, parts = given.members.split(","), list[Part]()
    choices: dict[str, dict[str, Any]] = {}  # of each member's first training
    groups = find_sources() if given.data == "bundled" else None
    for kept, held in split(len(dataset), given.folds, given.seed, groups, given.grouped):
        models = []
        for name in names:
            began = time.process_time()
            model = get_model_class(name)(seed=given.seed, **choices.get(name, {}))
            models.append(model.fit(documents_for(model, dataset, X, kept)))
            choices.setdefault(name, model.choices)
            print(f"{name}: {time.process_time() - began:.0f} s of the processor", flush=True)
        parts.append(Part(kept, held, *listen(models, dataset, X, held, given.most)))
        write_parts(given.out, names, parts)


if __name__ == "__main__":
    main()
