"""`python -m bench.size DATA --models a,b`: what saved models take, and what they are worth.

A fifth of the training part is held out. Every model is trained on the rest, saved, loaded again
and asked for the held-out documents; the table says what the folder takes, how long loading and
labelling take (CPU seconds, so that a busy machine matters little), and how good the labels are.
Below it stand the largest arrays and texts of each folder. `--settings NAME:key=value` are
parameters of one model; `--documents N` takes N documents of the training part.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import longtail
from bench.table import markdown
from longtail.evaluation.metrics import evaluate
from longtail.models import get_model_class
from longtail.runtime.store import read_folder

HEADINGS = ["model", "MB", "load s", "documents/s", "P@1", "P@5", "PSP@5"]
MEGABYTE = 1e6
SHOWN = 6


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each model, then print the tables."""
    args = _arguments(arguments)
    train, _ = longtail.load(args.data)
    if args.documents is not None and args.documents < len(train):
        train, _ = train.split(1 - args.documents / len(train), seed=0)
    train, held = train.split(0.2, seed=1)
    rows, parts = [], []
    for name in args.models.split(","):
        own = [pair.partition(":")[2] for pair in args.settings if pair.startswith(f"{name}:")]
        settings = dict(pair.split("=", 1) for pair in own)
        model = get_model_class(name).from_settings(settings).fit(train)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            model.save(path)
            rows.append([" ".join([name, *own]), *measure(path, held, train)])
            parts.append(f"{name}: {list_largest(path)}")
        print(*rows[-1], flush=True)
    print(f"\n{Path(args.data).name}, {len(train):,} documents\n")
    print(markdown(HEADINGS, rows))
    print("\n" + "\n".join(parts))


def measure(path: Path, held: longtail.Dataset, train: longtail.Dataset) -> list[str]:
    """Return the size of a folder, CPU seconds to load it, documents a CPU second, accuracy."""
    began = time.process_time()
    model = longtail.load_model(path)
    loaded = time.process_time() - began
    model.predict(held.take(np.arange(50)))  # compiles what is not compiled yet
    began = time.process_time()
    top = model.predict(held, k=5)
    seconds = time.process_time() - began
    found = evaluate(top, held, train=train)
    size = sum(file.stat().st_size for file in path.iterdir()) / MEGABYTE
    scores = [f"{found[metric]:.2f}" for metric in ("P@1", "P@5", "PSP@5")]
    return [f"{size:.1f}", f"{loaded:.2f}", f"{len(held) / seconds:,.0f}", *scores]


def list_largest(path: Path) -> str:
    """Return the largest arrays and texts of a folder, with their megabytes."""
    files = read_folder(path)
    sizes = {name: array.nbytes for name, array in files.arrays.items()}
    sizes |= {f"{name}.txt": (path / f"{name}.txt").stat().st_size for name in files.texts}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
    return ", ".join(f"{name} {sizes[name] / MEGABYTE:.1f}" for name in largest)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a data set")
    parser.add_argument("--models", default="linear,knn", help="names of models, by commas")
    parser.add_argument("--settings", action="append", default=[], help="NAME:key=value")
    parser.add_argument("--documents", type=int, help="so many of the training part")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
