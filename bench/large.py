"""Training on data larger than memory: peak memory and time at three sizes, and further on.

    python -m bench.large                                       # linear and glas, three sizes
    python -m bench.large --models linear --documents 2M        # one size

Made-up rows, ten documents a label unless told otherwise, are packed block by block, and each
model is trained on the pack in a process of its own. What counts is memory that the process holds
itself (RssAnon), beside what it held before: pages of mapped files count as free, since the system
takes them back when it needs them. Straight lines through the sizes say what 10 million documents
would take.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from bench.made_up import SCALES, WORDS_OF_A_STRETCH, _count, _draw_places, _draw_ranks
from bench.memory import noted_plans, read_memory
from longtail.data import Dataset, Splits
from longtail.data.labels import NumberedNames
from longtail.data.packed import read_packed, write_packed
from longtail.models import get_model_class
from longtail.models.sizing import parse_count
from longtail.runtime.mapped import MatrixWriter, TextWriter, scratch_in

BLOCK = 20_000  # documents made at a time
LABELS_EACH, WORDS_EACH, N_FEATURES = 4, 40, 200_000
SIZES = "100k,200k,400k"
TARGET = 10_000_000  # documents


def make_blocks(n_documents: int, n_labels: int) -> Iterator[tuple[sp.csr_matrix, sp.csr_matrix]]:
    """Yield rows and labels, the same whatever the number of documents that follow."""
    shared = np.random.default_rng(0)
    words = [
        _draw_ranks(shared, N_FEATURES, (scale, WORDS_OF_A_STRETCH), power=0.5) for scale in SCALES
    ]
    rarity = None
    for first in range(0, n_documents, BLOCK):
        n = min(BLOCK, n_documents - first)
        rng = np.random.default_rng([1, first])
        places = _draw_places(rng, n, LABELS_EACH)
        share = WORDS_EACH // (len(SCALES) + 1)
        cells = [_draw_ranks(rng, N_FEATURES, (n, WORDS_EACH - share * len(SCALES)))]
        for scale, own in zip(SCALES, words, strict=True):
            chosen = np.take_along_axis(places, rng.integers(LABELS_EACH, size=(n, share)), axis=1)
            which = rng.integers(WORDS_OF_A_STRETCH, size=(n, share))
            cells.append(own[(chosen * scale).astype(np.int32), which])
        X = _count(np.hstack(cells), N_FEATURES)
        if rarity is None:  # the first block says how rare words are
            seen = np.bincount(X.indices, minlength=N_FEATURES)
            rarity = (np.log((1 + n) / (1 + seen)) + 1).astype(np.float32)
        X.data = (1 + np.log(X.data)) * rarity[X.indices]
        Y = _count((places * n_labels).astype(np.int32), n_labels)
        Y.data[:] = 1
        yield X, Y


def make_pack(n_documents: int, per_label: int, folder: Path) -> None:
    """Pack made-up documents."""
    n_labels = max(2, n_documents // per_label)
    X, Y = MatrixWriter(), MatrixWriter()
    with scratch_in(folder.parent):
        for rows, labels in make_blocks(n_documents, n_labels):
            X.add(rows)
            Y.add(labels)
        data = Dataset(Y.map(), NumberedNames(n_labels), X=X.map())
        write_packed(Splits(data, None), folder)


def as_texts(X: sp.csr_matrix) -> Iterator[str]:
    """Yield the rows as texts, a word for each feature."""
    for i in range(X.shape[0]):
        yield " ".join(f"w{word}" for word in X.indices[X.indptr[i] : X.indptr[i + 1]])


def as_dataset(X: sp.csr_matrix, Y: sp.csr_matrix, model_class: Any) -> Dataset:
    """Return rows as a data set, or texts for models of these; labels are named like words."""
    names = [f"w{7 * label}" for label in range(Y.shape[1])]
    if "rows" in model_class.reads:
        return Dataset(Y, names, X=X)
    return Dataset(Y, names, texts=list(as_texts(X)))


def make_text_pack(n_documents: int, per_label: int, folder: Path) -> None:
    """Pack the same documents as texts."""
    n_labels = max(2, n_documents // per_label)
    texts, Y = TextWriter(), MatrixWriter()
    with scratch_in(folder.parent):
        for rows, labels in make_blocks(n_documents, n_labels):
            texts.extend(as_texts(rows))
            Y.add(labels)
        names = [f"w{7 * label}" for label in range(n_labels)]
        write_packed(Splits(Dataset(Y.map(), names, texts=texts.map()), None), folder)


class Measured(NamedTuple):
    """What a training took: bytes of memory beside what was there before, as planned, and time."""

    documents: int
    labels: int
    own: int
    planned: int
    seconds: float
    cpu_seconds: float


class _Watch(threading.Thread):
    """Notes the largest memory of the process's own, ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.ends = 0, threading.Event()

    def run(self) -> None:
        while not self.ends.wait(0.1):
            self.peak = max(self.peak, read_memory("RssAnon"))


def measure_here(model_name: str, folder: Path) -> Measured:
    """Train the preset fast on packed data in this process."""
    model_class = get_model_class(model_name)
    settings: dict[str, Any] = {"preset": "fast"} if "fast" in model_class.presets else {}
    if model_class.needs_torch:
        settings |= {"device": "cpu", "epochs": 1}
    few = [make_blocks(500, 50).__next__()]
    model_class.from_settings(settings).fit(as_dataset(*few[0], model_class))  # compiles, imports
    gc.collect()
    before, watch = read_memory("RssAnon"), _Watch()
    watch.start()
    began, cpu = time.monotonic(), time.process_time()
    with scratch_in(folder.parent), noted_plans() as planned:
        data = read_packed(folder).train
        model_class.from_settings(settings).fit(data)
    took = time.monotonic() - began, time.process_time() - cpu
    watch.ends.set()
    watch.join()
    return Measured(len(data), data.n_labels, watch.peak - before, max(planned), *took)


def measure(model_name: str, folder: Path) -> Measured:
    """Do so in a process of its own."""
    command = [sys.executable, "-m", "bench.large", "--cell", model_name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{model_name} on {folder}: {done.stderr[-2000:]}")
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def extrapolate(found: Sequence[Measured], n_documents: int = TARGET) -> Measured:
    """Return what so many documents would take, by straight lines through all sizes."""
    sizes = [each.documents for each in found]

    def lead_on(field: str) -> float:
        slope, constant = np.polyfit(sizes, [getattr(each, field) for each in found], 1)
        return float(slope * n_documents + constant)

    return Measured(n_documents, *(lead_on(field) for field in Measured._fields[1:]))  # type: ignore[arg-type]


def describe(each: Measured) -> str:
    """Return one row of the table."""
    own, planned = (size / (1 << 30) for size in (each.own, each.planned))
    return (
        f"{each.documents:,.0f} | {each.labels:,.0f} | {own:.2f} | {planned:.2f} | "
        f"{each.seconds:,.0f} | {each.cpu_seconds:,.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="linear,glas")
    parser.add_argument("--documents", default=SIZES, help="such as 100k,200k,2M")
    parser.add_argument("--per-label", type=int, default=10, help="documents for each label")
    parser.add_argument("--folder", type=Path, help="where packs go; a temporary one unless given")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "PACK"), help="measure one, here")
    args = parser.parse_args(arguments)
    if args.cell:
        print(json.dumps(measure_here(args.cell[0], Path(args.cell[1]))))
        return 0
    print("| model | documents | labels | memory, GiB | planned, GiB | seconds | CPU seconds |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        for model in args.models.split(","):
            has_rows = "rows" in get_model_class(model).reads
            found = []
            for size in args.documents.split(","):
                pack = Path(temporary) / f"{size}-{'rows' if has_rows else 'texts'}"
                if not pack.exists():
                    make = make_pack if has_rows else make_text_pack
                    make(parse_count(size, "documents"), args.per_label, pack)
                found.append(measure(model, pack))
                print(f"| {model} | {describe(found[-1])}", flush=True)
            if len(found) > 1:
                print(f"| {model}, by a line | {describe(extrapolate(found))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
